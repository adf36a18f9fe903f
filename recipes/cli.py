"""The command line, `roll-ray`. Each command imports what it needs: `plan` and `report` load neither torch nor Ray."""

from __future__ import annotations

import argparse
import contextlib
import os
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO, NoReturn

from recipes.plan import Machine, make_plan
from recipes.recipe_files import known_recipes, load_recipe, recipe_file
from recipes.running import guarded
from roll_ray import __version__
from roll_ray.errors import RollRayError
from roll_ray.home import has_checkpoint
from roll_ray.settings_io import load_settings
from roll_ray.tracking.report import how_it_ended, write_report
from roll_ray.tracking.run_folder import RunRecord, read_record
from roll_ray.tracking.run_lock import refuse_held


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command and give its exit code."""
    options = _parser().parse_args(arguments)
    return guarded(lambda: options.command(options))


def _plan(options: argparse.Namespace) -> int:
    recipe = load_recipe(options.recipe)
    plan = make_plan(recipe, load_settings(recipe.settings_class, options.words), Machine.this())
    print("\n".join(plan.lines))
    for note in plan.notes:
        print(f"note: {note}")
    for problem in plan.problems:
        print(f"wrong: {problem}")
    print(
        "nothing is wrong so far; weights, tokenizer and the rest of the data are read when a run starts"
        if not plan.problems
        else f"{len(plan.problems)} to mend before it can run"
    )
    return 1 if plan.problems else 0


def _run(options: argparse.Namespace) -> NoReturn:
    _become(recipe_file(options.recipe), options.words)


def _resume(options: argparse.Namespace) -> NoReturn:
    folder = Path(options.run_dir).expanduser().absolute()
    record = read_record(folder)
    refuse_held(folder)
    if not has_checkpoint(folder):
        raise RollRayError(
            f"{folder} has no checkpoint to go on from",
            why="the run ended before the first one was written",
            next_step=f"start it again: roll-ray run {_recipe_of(record)} @{folder}/settings.yaml",
        )
    file = _recipe_of(record)
    if Path(record.working_folder).is_dir():
        os.chdir(record.working_folder)  # relative paths in the settings were meant from there
    _become(file, [f"@{folder}/settings.yaml", f"run_dir={folder}", "resume=true", *options.words])


def _report(options: argparse.Namespace) -> int:
    folder = Path(options.run_dir).expanduser()
    page = write_report(folder)
    for line in how_it_ended(folder):
        print(line, file=sys.stderr)
    print(page)
    return 0


def _selfcheck(options: argparse.Namespace) -> int:
    print("checking engine and trainer on this machine: a minute or two", flush=True)

    def report(claim: str, passed: bool, detail: str) -> None:
        print(f"{'ok    ' if passed else 'FAILED'}  {claim}" + (f": {detail}" if detail else ""), flush=True)

    name = "roll-ray-selfcheck-"
    with (
        tempfile.NamedTemporaryFile("w+", prefix=name, suffix=".log", delete=False) as log,
        _stderr_into(log),
    ):
        from workers.selfcheck import run_selfcheck

        passed = run_selfcheck(report)
    if passed:
        Path(log.name).unlink()
        return 0
    print(f"what engines and trainers said meanwhile: {log.name}", file=sys.stderr)
    return 1


@contextlib.contextmanager
def _stderr_into(file: IO[str]) -> Iterator[None]:
    """The warnings of libraries, and of the processes that they start, go into a file for a while."""
    sys.stderr.flush()
    kept = os.dup(2)
    os.dup2(file.fileno(), 2)
    try:
        yield
    finally:
        sys.stderr.flush()
        os.dup2(kept, 2)
        os.close(kept)


def _simulate(options: argparse.Namespace) -> int:
    from recipes.simulate import simulate

    return simulate(options.words)


def _recipe_of(record: RunRecord) -> Path:
    """The file the run was started from; for one that is gone (a Ray job's copy), ours of that name."""
    file = Path(record.recipe_file)
    return file if file.is_file() else recipe_file(record.recipe)


def _become(file: Path, words: Sequence[str]) -> NoReturn:
    """Go on as `python FILE WORDS`, so that both ways of starting a recipe are one."""
    if "run_recipe(" not in file.read_text(encoding="utf-8"):
        raise RollRayError(
            f"{file} would do nothing",
            why="a recipe ends with `if __name__ == '__main__': run_recipe(Settings, build)`",
            next_step="add these lines; run_recipe is in recipes.running",
        )
    sys.stdout.flush()
    os.execv(sys.executable, [sys.executable, str(file), *words])


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="roll-ray", description="Reinforcement learning of language models on Ray and vLLM."
    )
    parser.add_argument("--version", action="version", version=f"roll-ray {__version__}")
    commands = parser.add_subparsers(title="commands", required=True, metavar="COMMAND")

    def command(
        name: str, function: object, text: str, *positional: tuple[str, str]
    ) -> argparse.ArgumentParser:
        sub = commands.add_parser(name, help=text, description=text)
        sub.set_defaults(command=function)
        for argument, meaning in positional:
            sub.add_argument(argument, help=meaning)
        return sub

    recipe = ("recipe", f"a file, or one of {', '.join(known_recipes())}")
    run_dir = ("run_dir", "the folder of a run")
    with_words = [
        command("plan", _plan, "Show what a recipe would do, and what is wrong. Starts nothing.", recipe),
        command("run", _run, "Run a recipe; the same as `python FILE`.", recipe),
        command("resume", _resume, "Go on with a run at the step after its last checkpoint.", run_dir),
    ]
    for sub in with_words:
        sub.add_argument("words", nargs="*", metavar="name=value", help="settings, or @file.yaml")
    command("report", _report, "Write report.html into the folder of a run.", run_dir)
    sub = command("simulate", _simulate, "Rollout schedulers in virtual time, on any number of devices.")
    sub.add_argument(
        "words",
        nargs="*",
        metavar="name=value",
        help="settings; or an experiment: paper, sensitivity, scaling, planner, beyond, fit",
    )
    command("selfcheck", _selfcheck, "Check engine and trainer on this machine (some minutes).")
    return parser


if __name__ == "__main__":
    sys.exit(main())
