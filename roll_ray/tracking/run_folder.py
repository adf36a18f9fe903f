"""The folder of a run. Everything that `report` and `resume` need is in it.

run.lock             held by the process that writes the folder, and names it (roll_ray.tracking.run_lock)
run.json             the recipe, the version of roll-ray, when it was started and how
settings.yaml        the resolved settings; `roll-ray run RECIPE @settings.yaml` runs them again
metrics.jsonl        a line a step
trajectories.jsonl   a few answers a step, with reward and reason
warnings.jsonl       what the run warned of
failure.json         the error that ended the run, if one did
timeline.json        phases, for Perfetto
tensorboard/         the metrics once more
checkpoints/         see roll_ray.checkpoint
report.html          written by `roll-ray report`
"""

from __future__ import annotations

import json
import math
import sys
import traceback
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from roll_ray import __version__
from roll_ray.errors import RollRayError
from roll_ray.settings import RunSettings
from roll_ray.settings_values import read_yaml, to_yaml
from roll_ray.tracking.jsonl import LineWriter, keep_lines, read_lines
from roll_ray.tracking.metrics import REQUIRED, Value, check_declared, in_order
from roll_ray.tracking.run_lock import FAILURE, RECORD, SETTINGS, cannot_be_written
from roll_ray.tracking.trajectories import Trajectory

METRICS, TRAJECTORIES, WARNINGS = "metrics.jsonl", "trajectories.jsonl", "warnings.jsonl"
TIMELINE, TENSORBOARD = "timeline.json", "tensorboard"


@dataclass(frozen=True, slots=True)
class RunRecord:
    """What is known of a run beside its settings; `working_folder` is where it was last started from."""

    recipe: str
    recipe_file: str
    working_folder: str
    started: str
    version: str
    command: tuple[str, ...]

    @staticmethod
    def now(recipe: str, recipe_file: Path) -> RunRecord:
        return RunRecord(
            recipe=recipe,
            recipe_file=str(recipe_file.resolve()),
            working_folder=str(Path.cwd()),
            started=datetime.now(UTC).isoformat(timespec="seconds"),
            version=__version__,
            command=tuple(sys.argv),
        )


def prepare(folder: Path, settings: RunSettings, record: RunRecord) -> None:
    """Write down what is run, in the folder of a run that starts or resumes. Disk faults are RollRayErrors."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / RECORD).write_text(json.dumps(asdict(record), indent=1) + "\n")
        (folder / SETTINGS).write_text(to_yaml(settings.plain()), encoding="utf-8")
        (folder / FAILURE).unlink(missing_ok=True)  # of an earlier start
    except OSError as error:
        raise cannot_be_written(folder, error) from error


def begin(folder: Path) -> None:
    """Workers are about to start: from now on the folder is kept, however the run ends."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / METRICS).touch()


@dataclass(frozen=True, slots=True)
class Failure:
    """How a run ended. `text` is the error as the user saw it, `trace` where it came from (faults of ours)."""

    when: str
    text: str
    trace: str = ""


def record_failure(folder: Path, error: BaseException) -> None:
    """Keep what ended the run, for the report. A disk that cannot be written is only said: `error` matters more."""
    when = datetime.now(UTC).isoformat(timespec="seconds")
    if isinstance(error, RollRayError):
        failure = Failure(when, str(error))
    elif isinstance(error, KeyboardInterrupt):
        failure = Failure(when, "interrupted: it was ended before the last finished step could be saved")
    else:
        trace = "".join(traceback.format_exception(error))
        failure = Failure(when, f"{type(error).__name__}: {error}".strip().removesuffix(":"), trace)
    try:
        (folder / FAILURE).write_text(json.dumps(asdict(failure), indent=1) + "\n", encoding="utf-8")
    except OSError as fault:
        print(f"note: {folder / FAILURE} could not be written ({fault.strerror})", file=sys.stderr)


def read_failure(folder: Path) -> Failure | None:
    """What ended the run when it was last started; None when nothing is recorded."""
    try:
        return Failure(**json.loads((folder / FAILURE).read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError):  # none, or cut short by a full disk
        return None


def read_record(folder: Path) -> RunRecord:
    """The record of a run. Raises RollRayError when `folder` is not the folder of a run."""
    try:
        plain = json.loads((folder / RECORD).read_text())
        return RunRecord(**plain | {"command": tuple(plain["command"])})
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise RollRayError(
            f"{folder} is not the folder of a run",
            why=f"it has no readable run.json ({error})",
            next_step="name the folder that the run printed, for example runs/<name>",
        ) from error


def read_settings_of(folder: Path) -> dict[str, Any]:
    """The plain resolved settings of a run."""
    return read_yaml(folder / SETTINGS)


class RunFolder:
    """Writes a run down, a step at a time. `resumed_step` is the step that is gone on from (0: a fresh run):
    lines after it belong to steps that are done again, and are cut."""

    def __init__(self, folder: Path, resumed_step: int = 0) -> None:
        self.folder = folder
        self.resumed_step = resumed_step
        folder.mkdir(parents=True, exist_ok=True)
        fresh = resumed_step == 0
        for name in (METRICS, TRAJECTORIES, WARNINGS):
            keep_lines(folder / name, lambda row: not fresh and row["step"] <= resumed_step)
        self._metrics = LineWriter(folder / METRICS)
        self._trajectories = LineWriter(folder / TRAJECTORIES)
        self._warnings = LineWriter(folder / WARNINGS)

    def record(self, step: int, metrics: Mapping[str, Value]) -> None:
        """One line of metrics.jsonl: every declared metric given, the required ones null where missing.

        A value that is not finite is written as null and named in `not_finite`, so that any JSON reader can
        read the line and nothing is hidden. Raises `UndeclaredMetricError`.
        """
        check_declared(metrics)
        row: dict[str, Any] = {"step": step}
        row |= {name: metrics.get(name) for name in in_order({*metrics, *REQUIRED})}
        not_finite = [k for k, v in row.items() if isinstance(v, float) and not math.isfinite(v)]
        row |= dict.fromkeys(not_finite)
        self._metrics.write(row | ({"not_finite": not_finite} if not_finite else {}))

    def record_trajectories(self, step: int, shown: Sequence[Trajectory]) -> None:
        for trajectory in shown:
            self._trajectories.write({"step": step} | trajectory.row())

    def record_warning(self, step: int, text: str) -> None:
        self._warnings.write({"step": step, "text": text})

    def close(self) -> None:
        for writer in (self._metrics, self._trajectories, self._warnings):
            writer.close()


def read_metrics(folder: Path) -> list[dict[str, Any]]:
    return list(read_lines(folder / METRICS))


def last_heldout_accuracy(folder: Path) -> float | None:
    """The last one measured: it stays true until the next evaluation, between which the lines have null."""
    known = [
        row["heldout_accuracy"] for row in read_metrics(folder) if row.get("heldout_accuracy") is not None
    ]
    return known[-1] if known else None
