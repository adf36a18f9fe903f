"""The core: samples and batches, settings, pools, weight updates, tracking and the controller.

Importing it loads neither torch nor Ray. It checks that the four packages beside it (`schedulers`, `envs`,
`workers`, `recipes`) are the ones that will be imported: their names are common, and a user's own folder
of such a name may come first on the import path.
"""

from __future__ import annotations

from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from pathlib import Path

from roll_ray.errors import RollRayError

__version__ = "0.1.0"

SIBLINGS = ("schedulers", "envs", "workers", "recipes")


class ShadowedPackageError(RollRayError, ImportError):
    """A package of roll-ray is missing, or another folder of its name would be imported in its place."""


def _place(spec: ModuleSpec) -> Path:
    """The folder of a package, or the file of a plain module."""
    if spec.submodule_search_locations:
        return Path(next(iter(spec.submodule_search_locations))).resolve()
    return Path(spec.origin or "unknown").resolve()


def check_siblings(root: Path) -> None:
    """Raise `ShadowedPackageError` unless each sibling would be imported from `root`. Imports none of them."""
    for name in SIBLINGS:
        ours = root / name
        spec = find_spec(name)
        if spec is None:
            raise ShadowedPackageError(
                f"the package {name} of roll-ray is missing: {ours} cannot be imported",
                why="roll-ray consists of five packages side by side, and this installation is not complete",
                next_step="install it again (pip install --force-reinstall --no-deps roll-ray, or make setup)",
            )
        found = _place(spec)
        if found != ours.resolve():
            raise ShadowedPackageError(
                f"{found} shadows {ours}: `import {name}` would load it in place of roll-ray's package",
                why=f"{found.parent} comes before {root} on the import path",
                next_step=f"rename {found}, or start the program from another folder or without this entry in "
                "PYTHONPATH",
            )


check_siblings(Path(__file__).resolve().parent.parent)
