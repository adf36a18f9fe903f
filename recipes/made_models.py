"""Made once, whole or not at all: folders that a recipe fills and later runs find again.

A folder is written beside its place under another name and renamed when complete, so a killed recipe leaves
no half model, and two that race end with one whole model.
"""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from roll_ray.errors import RollRayError

RECORD = "made_with.json"


def made_once(folder: Path, settings: Mapping[str, Any], fill: Callable[[Path], None]) -> Path:
    """`folder`, filled by `fill(empty_folder)` unless it is there already with equal `settings`.

    Raises RollRayError when the folder holds something else: nothing is ever written over.
    """
    folder = folder.expanduser().absolute()
    if is_made(folder, settings):
        return folder
    _refuse_other(folder)
    folder.parent.mkdir(parents=True, exist_ok=True)
    new = Path(tempfile.mkdtemp(prefix=f".{folder.name}-", dir=folder.parent))
    try:
        fill(new)
        (new / RECORD).write_text(json.dumps(dict(settings), indent=1, sort_keys=True) + "\n")
        new.chmod(0o755)  # mkdtemp gives 0700, and other users of a shared home read models too
        _move_into_place(new, folder, settings)
    finally:
        shutil.rmtree(new, ignore_errors=True)
    return folder


def is_made(folder: Path, settings: Mapping[str, Any]) -> bool:
    """Whether `folder` is complete and was made with these settings."""
    try:
        found = json.loads((folder / RECORD).read_text())
    except (FileNotFoundError, NotADirectoryError):
        return False
    except ValueError as error:
        raise RollRayError(
            f"{folder / RECORD} is damaged", why=str(error), next_step=f"remove {folder}; it is made again"
        ) from None
    return bool(found == json.loads(json.dumps(dict(settings))))


def _move_into_place(new: Path, folder: Path, settings: Mapping[str, Any]) -> None:
    try:
        os.rename(new, folder)
    except OSError:
        if not is_made(folder, settings):  # else another process was first, and its model is as good
            raise


def _refuse_other(folder: Path) -> None:
    if folder.is_dir() and not any(folder.iterdir()):
        return
    if folder.exists():
        raise RollRayError(
            f"{folder} holds something else",
            why="it was not made with these settings, and nothing is written over",
            next_step="name another folder, or remove this one",
        )
