"""Loads the libraries that adapters adapt; they are no dependencies of roll-ray."""

from __future__ import annotations

import importlib
from typing import Any

from roll_ray.errors import RollRayError


def load_package(module: str, package: str) -> Any:
    """The module. Raises RollRayError when it, or something that it needs, is not installed."""
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        raise RollRayError(
            f"environments of {package} need a package that is not installed: {error.name}",
            next_step=f"make envs, or pip install {package}",
        ) from None
