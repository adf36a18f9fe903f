"""From a recipe's words to a finished run: the one seam between settings and the program that `build` makes."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import os
import signal
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn, Protocol, TypeVar

from recipes.plan import batch_sentence
from recipes.recipe_files import Recipe
from roll_ray.controller import RunResult
from roll_ray.errors import RollRayError
from roll_ray.home import RunPlace, has_checkpoint, inside_ray_job, resolve_run_dir
from roll_ray.settings import RunSettings
from roll_ray.settings_io import flat, read_settings
from roll_ray.tracking.report import write_report
from roll_ray.tracking.run_folder import RunRecord, prepare, read_settings_of, record_failure
from roll_ray.tracking.run_lock import held

S = TypeVar("S", bound=RunSettings)

STOPPED_SHORT, INTERRUPTED = 1, 130
"""Exit codes: the run did not reach max_steps; the user interrupted it."""


class Program(Protocol):
    """What `build(settings)` makes. `interrupt`, once set, ends the run after saving the last finished step."""

    interrupt: asyncio.Event

    async def run(self) -> RunResult: ...


def run_recipe(settings_class: type[S], build: Callable[[S], Program]) -> NoReturn:
    """Run a recipe with the words of the command line and exit; a recipe's last lines are

    if __name__ == "__main__":
        run_recipe(Settings, build)
    """
    caller = inspect.stack()[1].frame.f_globals  # the recipe; `build` may be another one's
    file = Path(caller["__file__"])
    recipe = Recipe(file.stem, file, settings_class, build, (caller.get("__doc__") or "").strip())
    words = sys.argv[1:]
    if words in (["-h"], ["--help"]):
        print(_usage(recipe))
        sys.exit(0)
    sys.exit(guarded(lambda: execute(recipe, read_settings(settings_class, words))))


def guarded(action: Callable[[], int]) -> int:
    """The exit code of `action`. What the user can mend is printed without a traceback."""
    try:
        return action()
    except RollRayError as error:
        print("\n".join([f"error: {error}", *getattr(error, "__notes__", ())]), file=sys.stderr)
        return STOPPED_SHORT
    except KeyboardInterrupt as interrupt:
        print("\n".join(["interrupted", *getattr(interrupt, "__notes__", ())]), file=sys.stderr)
        return INTERRUPTED


def execute(recipe: Recipe, settings: RunSettings) -> int:
    """Run `settings` to the end and say where the results are.

    `build` gets the settings with `run_dir` (absolute), `run_name` and `resume` (whether there is a checkpoint
    to go on from) made definite; settings.yaml in the run folder has them as they were given.
    """
    place = resolve_run_dir(settings, recipe.name, in_ray_job=inside_ray_job())
    print(f"{recipe.name}: {batch_sentence(settings)}")
    print(place.note or f"run folder: {place.folder}", flush=True)
    with held(place.folder):
        if place.resumes:
            for change in _changes(read_settings_of(place.folder), settings.plain()):
                print(f"changed since the run was last started: {change}", flush=True)
        prepare(place.folder, settings, RunRecord.now(recipe.name, recipe.file))
        definite = {"run_dir": place.folder, "run_name": place.name, "resume": place.resumes}
        try:
            result = asyncio.run(_run(recipe.build(settings.model_copy(update=definite))))
        except (KeyboardInterrupt, Exception) as error:
            record_failure(place.folder, error)
            if has_checkpoint(place.folder) or isinstance(error, KeyboardInterrupt):
                error.add_note(_what_is_saved(place.folder))
            raise
        return _end(place, result)


async def _run(program: Program) -> RunResult:
    with _signals_heeded(program, asyncio.get_running_loop()):
        return await program.run()


@contextlib.contextmanager
def _signals_heeded(program: Program, loop: asyncio.AbstractEventLoop) -> Iterator[None]:
    """The first SIGINT or SIGTERM asks the program to end, the second one does not ask: it ends whatever is under
    way. These are plain signal handlers, so that the second one is not kept waiting by a blocking call."""
    signals = (signal.SIGINT, signal.SIGTERM)

    def ask(number: int, frame: FrameType | None) -> None:
        os.write(
            sys.stderr.fileno(), b"\ninterrupted: saving the last finished step (once more: end at once)\n"
        )
        loop.call_soon_threadsafe(program.interrupt.set)
        for number in signals:
            signal.signal(number, end_at_once)

    def end_at_once(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    before = {number: signal.signal(number, ask) for number in signals}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _end(place: RunPlace, result: RunResult) -> int:
    first, last = (e.get("heldout_accuracy") for e in (result.first_evaluation, result.last_evaluation))
    if first is not None and last is not None:
        print(f"held-out accuracy: {first:.3f} -> {last:.3f} ({last - first:+.3f})")
    elif last is not None:
        print(f"held-out accuracy: {last:.3f}")
    print(f"step {result.step} of {result.max_steps} is finished; results: {place.folder}")
    try:
        print(f"report: {write_report(place.folder)}")
    except OSError as error:
        print(
            f"the report could not be written ({error}); later: roll-ray report {place.folder}",
            file=sys.stderr,
        )
    if result.interrupted:
        print(_what_is_saved(place.folder))
        return INTERRUPTED
    return 0 if result.step >= result.max_steps else STOPPED_SHORT


def _changes(before: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """What a resumed run does otherwise than before; where it is written and that it resumes is not worth a line."""
    old, new = flat(before), flat(now)
    names = [name for name in old | new if name not in ("run_dir", "run_name", "resume")]
    return [f"{n}: {old.get(n)} -> {new.get(n)}" for n in names if old.get(n) != new.get(n)]


def _what_is_saved(folder: Path) -> str:
    if not has_checkpoint(folder):
        return f"no step was saved in {folder}"
    newest = max(folder.glob("checkpoints/step-*")).name.removeprefix("step-").lstrip("0") or "0"
    return f"step {newest} is saved; go on with: roll-ray resume {folder}"


def _usage(recipe: Recipe) -> str:
    return (
        f"{recipe.doc}\n\nusage: python {recipe.file.name} [name=value ...] [@settings.yaml]\n"
        f"`roll-ray plan {recipe.file}` shows every setting and what would be run."
    )
