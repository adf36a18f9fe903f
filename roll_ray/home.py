"""Where things live: made models and data under `$ROLL_RAY_HOME`, a run in its own folder."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from platformdirs import user_data_path

from roll_ray.errors import SettingsError
from roll_ray.settings import RunSettings
from roll_ray.tracking.run_lock import LOCK, RECORD, refuse_held

_RAY_JOB_VARIABLE = "RAY_JOB_CONFIG_JSON_ENV_VAR"
"""Ray's job supervisor hands a submitted driver its configuration under this (oddly named) variable."""


def home() -> Path:
    """`$ROLL_RAY_HOME`, by default the user's data folder. Absolute; need not exist."""
    given = os.environ.get("ROLL_RAY_HOME")
    return Path(given).expanduser().resolve() if given else user_data_path("roll-ray", appauthor=False)


def models_dir() -> Path:
    """Where recipes put the models that they make."""
    return home() / "models"


def data_dir() -> Path:
    """Where recipes put the data that they make."""
    return home() / "data"


def runs_dir(*, in_ray_job: bool) -> Path:
    """`runs/` below the folder the run was started in; for a Ray job, whose folder is deleted, below `home()`."""
    return (home() if in_ray_job else Path.cwd()) / "runs"


def inside_ray_job(environ: Mapping[str, str] = os.environ) -> bool:
    """Whether this process is a driver that `ray job submit` started."""
    return _RAY_JOB_VARIABLE in environ


@dataclass(frozen=True, slots=True)
class RunPlace:
    """The folder of a run. `resumes` says that a checkpoint there is gone on from; `note` is for the user."""

    folder: Path
    name: str
    resumes: bool
    note: str = ""


def resolve_run_dir(
    settings: RunSettings, recipe_name: str, *, in_ray_job: bool, now: datetime | None = None
) -> RunPlace:
    """Where this run is written. Makes nothing.

    Raises RollRayError when a run is writing the folder, SettingsError when it holds a run and `resume` is not set,
    when it holds something else, and for a relative `run_dir` in a Ray job. `resume` without `run_name` and
    `run_dir` means the newest run of the recipe that has a checkpoint.
    """
    folder = _folder(settings, recipe_name, in_ray_job, now or datetime.now())
    if folder is not None:
        refuse_held(folder)
    if settings.resume and folder is not None and has_checkpoint(folder):
        return RunPlace(folder, settings.run_name or folder.name, True, f"going on with {folder}")
    if folder is None:
        folder = runs_dir(in_ray_job=in_ray_job) / _fresh_name(recipe_name, now or datetime.now())
    if not settings.resume:
        _refuse_used(folder)
    note = f"resume is set and {folder} has no checkpoint: starting fresh" if settings.resume else ""
    return RunPlace(folder, settings.run_name or folder.name, False, note)


def has_checkpoint(run_dir: Path) -> bool:
    """Whether a sealed checkpoint lies there (its files are checked when it is loaded)."""
    return any(run_dir.glob("checkpoints/step-*/manifest.json"))


def _folder(settings: RunSettings, recipe_name: str, in_ray_job: bool, now: datetime) -> Path | None:
    """The folder that the settings name; None when a resume names none and there is none to go on with."""
    if settings.run_dir is not None:
        if in_ray_job and not settings.run_dir.expanduser().is_absolute():
            raise SettingsError(
                f"run_dir={settings.run_dir} is relative",
                why="this is a Ray job, and Ray deletes its working directory at the end",
                next_step=f"give an absolute path, or leave run_dir out: then it is {home()}/runs/<run_name>",
            )
        return settings.run_dir.expanduser().absolute()
    root = runs_dir(in_ray_job=in_ray_job)
    if settings.run_name is not None:
        if Path(settings.run_name).name != settings.run_name:
            raise SettingsError(
                f"run_name={settings.run_name} is not a folder name",
                next_step=f"write run_name={Path(settings.run_name).name or 'my-run'}, or run_dir=... for a path",
            )
        return root / settings.run_name
    if settings.resume:
        earlier = sorted(p for p in root.glob(f"{recipe_name}-*") if has_checkpoint(p))
        return earlier[-1] if earlier else None
    return root / _fresh_name(recipe_name, now)


def _fresh_name(recipe_name: str, now: datetime) -> str:
    return f"{recipe_name}-{now:%Y%m%d-%H%M%S}"


def _refuse_used(folder: Path) -> None:
    """A run that never finished a step may be written over; anything else in the folder may not."""
    metrics = folder / "metrics.jsonl"
    if has_checkpoint(folder) or (metrics.is_file() and metrics.stat().st_size):
        raise SettingsError(
            f"the run {folder} exists",
            why="its results would be written over",
            next_step=f"choose another run_name, go on with it (resume=true, or `roll-ray resume {folder}`), "
            "or remove the folder",
        )
    others = {p.name for p in folder.iterdir()} - {LOCK} if folder.is_dir() else set()
    if others and RECORD not in others:  # a lock alone: a start that was killed in its first moment
        raise SettingsError(
            f"{folder} is not empty and not a run of roll-ray",
            next_step="name a new folder with run_dir=, or give a run_name",
        )
    if folder.exists() and not folder.is_dir():
        raise SettingsError(f"{folder} is a file", next_step="name a new folder with run_dir=")
