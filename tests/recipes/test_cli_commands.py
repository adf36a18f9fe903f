"""The command line: what each command prints and its exit code, on a recipe that pretends to train."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from recipes.cli import main
from recipes.recipe_files import load_recipe
from roll_ray.errors import RollRayError

TOY = '''"""A toy that pretends to train."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

from recipes.running import run_recipe
from roll_ray.settings import RunSettings


class Settings(RunSettings):
    model: str = "none"
    max_steps: int = 4
    waits: bool = False
    stops_short: bool = False


class Toy:
    """Checkpoints when it ends."""

    def __init__(self, settings: Settings) -> None:
        self.settings, self.interrupt = settings, asyncio.Event()

    async def run(self):
        from roll_ray.controller import RunResult
        from roll_ray.errors import RollRayError

        print("definite:", json.dumps(self.settings.plain()), flush=True)
        if self.settings.seed == 13:
            (Path(self.settings.run_dir) / "metrics.jsonl").touch()  # as a pipeline does when its workers start
        if self.settings.seed in (12, 13):
            raise RollRayError("no luck", why=f"the seed is {self.settings.seed}", next_step="take another")
        if self.settings.waits:
            print("waiting", flush=True)
            await self.interrupt.wait()
        step = 3 if self.settings.stops_short or self.settings.waits else self.settings.max_steps
        folder = Path(self.settings.run_dir) / "checkpoints" / f"step-{step:06d}"
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "manifest.json").write_text("{}")
        return RunResult(
            step, self.settings.max_steps, self.interrupt.is_set(),
            {"heldout_accuracy": 0.1}, {"heldout_accuracy": 0.45},
        )


def build(settings):
    return Toy(settings)


if __name__ == "__main__":
    run_recipe(Settings, build)
'''


@pytest.fixture
def toy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    (tmp_path / "toy.py").write_text(TOY)
    return tmp_path / "toy.py"


def roll_ray(*words: object, cwd: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "recipes.cli", *map(str, words)]
    path = {"PYTHONPATH": str(Path(__file__).parents[2])}
    return subprocess.run(
        command, cwd=cwd, env=os.environ | path, capture_output=True, text=True, check=False
    )


def test_a_run_prints_the_batch_sentence_first_and_the_results_last(toy: Path) -> None:
    done = roll_ray("run", "toy.py", "run_name=a", "prompts_per_step=4", cwd=toy.parent)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[0].startswith("toy: 4 prompts x 8 = 32 samples, 1 optimizer step of 32")
    assert "held-out accuracy: 0.100 -> 0.450 (+0.350)" in lines
    assert lines[-1] == f"report: {toy.parent}/runs/a/report.html"


def test_build_gets_definite_places_and_the_folder_keeps_what_was_given(toy: Path) -> None:
    done = roll_ray("run", "toy.py", "run_name=a", "resume=true", cwd=toy.parent)
    definite = json.loads(done.stdout.split("definite: ")[1].splitlines()[0])
    assert definite["run_dir"] == str(toy.parent / "runs" / "a")
    assert definite["resume"] is False, "there was nothing to go on from"
    assert "starting fresh" in done.stdout
    assert "resume: true\n" in (toy.parent / "runs" / "a" / "settings.yaml").read_text()


def test_run_is_the_same_as_python_with_the_file(toy: Path) -> None:
    done = subprocess.run(
        [sys.executable, "toy.py", "run_name=b"], cwd=toy.parent, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert (toy.parent / "runs" / "b" / "report.html").is_file()


def test_resume_goes_on_with_the_settings_of_the_run(toy: Path, tmp_path: Path) -> None:
    assert (
        roll_ray("run", "toy.py", "run_name=a", "stops_short=true", "seed=5", cwd=toy.parent).returncode == 1
    )
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    done = roll_ray("resume", toy.parent / "runs" / "a", "max_steps=3", cwd=elsewhere)
    assert done.returncode == 0, done.stderr
    assert f"going on with {toy.parent}/runs/a" in done.stdout
    definite = json.loads(done.stdout.split("definite: ")[1].splitlines()[0])
    assert (definite["seed"], definite["resume"], definite["max_steps"]) == (5, True, 3)
    changes = [line for line in done.stdout.splitlines() if line.startswith("changed since")]
    assert changes == ["changed since the run was last started: max_steps: 4 -> 3"]
    assert not (elsewhere / "runs").exists()


def test_a_run_that_stops_short_exits_non_zero(toy: Path) -> None:
    assert roll_ray("run", "toy.py", "stops_short=true", cwd=toy.parent).returncode == 1


def test_a_fault_of_the_users_is_told_without_a_traceback(toy: Path) -> None:
    done = roll_ray("run", "toy.py", "seed=13", cwd=toy.parent)
    assert done.returncode == 1
    assert done.stderr == "error: no luck\n  why:  the seed is 13\n  next: take another\n"


def test_a_fault_of_ours_keeps_its_traceback(toy: Path) -> None:
    toy.write_text(
        TOY.replace('print("definite:"', 'raise ZeroDivisionError("ours")\n        print("definite:"')
    )
    done = roll_ray("run", "toy.py", cwd=toy.parent)
    assert done.returncode == 1
    assert "Traceback" in done.stderr
    assert "ZeroDivisionError: ours" in done.stderr


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupt_ends_cleanly_and_says_what_is_saved(toy: Path, number: signal.Signals) -> None:
    command = [sys.executable, "toy.py", "run_name=a", "waits=true"]
    run = subprocess.Popen(command, cwd=toy.parent, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert run.stdout is not None
    while run.stdout.readline() != "waiting\n":
        assert run.poll() is None
    run.send_signal(number)
    began_s = time.monotonic()
    out, error = run.communicate(timeout=30)
    assert run.returncode == 130
    assert time.monotonic() - began_s < 30
    assert "saving the last finished step" in error
    assert f"step 3 is saved; go on with: roll-ray resume {toy.parent}/runs/a" in out


def test_resume_without_a_checkpoint_is_an_error_that_says_how_to_start_again(toy: Path) -> None:
    roll_ray("run", "toy.py", "run_name=a", "seed=13", cwd=toy.parent)
    done = roll_ray("resume", "runs/a", cwd=toy.parent)
    assert done.returncode == 1
    assert "has no checkpoint" in done.stderr
    assert f"roll-ray run {toy}" in done.stderr


def test_resume_of_a_run_that_is_under_way_says_so_and_what_to_do(toy: Path) -> None:
    command = [sys.executable, "toy.py", "run_name=a", "waits=true"]
    run = subprocess.Popen(command, cwd=toy.parent, stdout=subprocess.PIPE, text=True)
    try:
        assert run.stdout is not None
        while run.stdout.readline() != "waiting\n":
            assert run.poll() is None
        done = roll_ray("resume", "runs/a", cwd=toy.parent)
        assert done.returncode == 1
        assert f"the run {toy.parent}/runs/a is under way" in done.stderr
        assert f"process {run.pid} on {socket.gethostname()}" in done.stderr
        assert f"kill -INT {run.pid}" in done.stderr
        assert "checkpoint" not in done.stderr
    finally:
        run.send_signal(signal.SIGINT)
        run.communicate(timeout=30)


def test_a_start_that_fails_before_anything_ran_leaves_no_folder(toy: Path) -> None:
    done = roll_ray("run", "toy.py", "run_name=a", "seed=12", cwd=toy.parent)
    assert done.returncode == 1
    assert not (toy.parent / "runs" / "a").exists()
    assert roll_ray("run", "toy.py", "run_name=a", cwd=toy.parent).returncode == 0


def test_the_report_of_a_run_that_failed_says_that_no_step_was_finished_and_why(
    toy: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    roll_ray("run", "toy.py", "run_name=a", "seed=13", cwd=toy.parent)
    assert main(["report", "runs/a"]) == 0
    said = capsys.readouterr()
    assert said.out == "runs/a/report.html\n"
    assert said.err.startswith("no step was finished\nthe run ended with an error, ")
    assert said.err.endswith("no luck\n  why:  the seed is 13\n  next: take another\n")
    assert "the seed is 13" in Path("runs/a/report.html").read_text()
    assert roll_ray("run", "toy.py", "run_name=a", cwd=toy.parent).returncode == 0, "the name stays usable"


def test_a_recipe_that_borrows_build_and_settings_is_itself_what_is_resumed(toy: Path) -> None:
    mine = """\"\"\"Mine, with another one's build.\"\"\"
from toy import Settings, build
from recipes.running import run_recipe

print("this is mine")
if __name__ == "__main__":
    run_recipe(Settings, build)
"""
    (toy.parent / "mine.py").write_text(mine)
    done = roll_ray("run", "mine.py", "run_name=a", cwd=toy.parent)
    assert "this is mine" in done.stdout, done.stderr
    assert "\nmine: " in done.stdout
    done = roll_ray("resume", "runs/a", cwd=toy.parent)
    assert done.returncode == 0, done.stderr
    assert "this is mine" in done.stdout


def test_resume_of_something_else_is_an_error(toy: Path) -> None:
    assert "not the folder of a run" in roll_ray("resume", ".", cwd=toy.parent).stderr


def test_a_run_name_that_exists_is_an_error(toy: Path) -> None:
    assert roll_ray("run", "toy.py", "run_name=a", cwd=toy.parent).returncode == 0
    done = roll_ray("run", "toy.py", "run_name=a", cwd=toy.parent)
    assert done.returncode == 1
    assert "exists" in done.stderr


def test_report_names_the_file(toy: Path, capsys: pytest.CaptureFixture[str]) -> None:
    roll_ray("run", "toy.py", "run_name=a", cwd=toy.parent)
    assert main(["report", "runs/a"]) == 0
    assert capsys.readouterr().out == "runs/a/report.html\n"


def test_a_recipe_that_would_do_nothing_is_not_run(toy: Path) -> None:
    toy.write_text(TOY.split("if __name__")[0].replace("from recipes.running import run_recipe\n", ""))
    done = roll_ray("run", "toy.py", cwd=toy.parent)
    assert done.returncode == 1
    assert "would do nothing" in done.stderr


def test_an_unknown_recipe_is_told_the_nearest(toy: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", "toi.py"]) == 1
    assert "there is no recipe toi.py" in capsys.readouterr().err
    assert main(["plan", "no_such"]) == 1
    assert "unknown recipe no_such" in capsys.readouterr().err


def test_a_file_without_settings_and_build_is_not_a_recipe(tmp_path: Path) -> None:
    (tmp_path / "x.py").write_text("Settings = int\n")
    with pytest.raises(RollRayError, match="not a recipe"):
        load_recipe(str(tmp_path / "x.py"))


def test_selfcheck_prints_a_verdict_a_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    import types

    def run_selfcheck(report):  # type: ignore[no-untyped-def]
        report("engine and trainer agree", True, "3e-6 nats")
        report("pause loses nothing", False, "2 tokens")
        return False

    module = types.ModuleType("workers.selfcheck")
    module.run_selfcheck = run_selfcheck  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "workers.selfcheck", module)
    assert main(["selfcheck"]) == 1
    assert capsys.readouterr().out.splitlines()[1:] == [
        "ok      engine and trainer agree: 3e-6 nats",
        "FAILED  pause loses nothing: 2 tokens",
    ]
