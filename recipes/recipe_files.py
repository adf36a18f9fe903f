"""Finding a recipe by path or name. A recipe is a module with `Settings` (typed) and `build(settings)`."""

from __future__ import annotations

import difflib
import importlib.util
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from roll_ray.errors import RollRayError
from roll_ray.settings import RunSettings

_OURS = Path(__file__).resolve().parent


@dataclass(frozen=True, slots=True)
class Recipe:
    """A loaded recipe. `build` makes the program that `run_recipe` runs; heavy imports are inside it."""

    name: str
    file: Path
    settings_class: type[RunSettings]
    build: Callable[[Any], Any]
    doc: str


def known_recipes() -> list[str]:
    """Names of the recipes that come with roll-ray."""
    return sorted(p.stem for p in _OURS.glob("*.py") if "\ndef build(" in p.read_text(encoding="utf-8"))


def recipe_file(word: str) -> Path:
    """The file that a path (`mine/recipe.py`) or the name of one of ours (`grpo_qwen`) means."""
    path = Path(word).expanduser()
    if path.suffix == ".py" or path.is_file():
        if path.is_file():
            return path.resolve()
        raise RollRayError(
            f"there is no recipe {word}",
            why=f"{path.absolute()} does not exist",
            next_step=f"check the path, or name one of {', '.join(known_recipes())}",
        )
    known = known_recipes()
    if word in known:
        return _OURS / f"{word}.py"
    close = difflib.get_close_matches(word, known, n=1)
    meant = f", did you mean {close[0]}?" if close else ""
    raise RollRayError(
        f"unknown recipe {word}{meant}",
        next_step=f"name one of {', '.join(known)}, or give the path of a file that ends in .py",
    )


def load_recipe(word: str) -> Recipe:
    """Load a recipe as a module. What its file imports at the top is loaded with it: keep that light."""
    file = recipe_file(word)
    spec = importlib.util.spec_from_file_location(f"recipe_{file.stem}", file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    sys.path.insert(
        0, str(file.parent)
    )  # as `python FILE` does: a recipe may have files of its own beside it
    try:
        spec.loader.exec_module(module)
    finally:
        sys.path.remove(str(file.parent))
    settings_class, build = getattr(module, "Settings", None), getattr(module, "build", None)
    if not (isinstance(settings_class, type) and issubclass(settings_class, RunSettings)) or build is None:
        raise RollRayError(
            f"{file} is not a recipe",
            why="a recipe has a class Settings(RunSettings) and a function build(settings)",
            next_step="see docs/custom_pipeline.md",
        )
    return Recipe(file.stem, file, settings_class, build, (module.__doc__ or "").strip())
