"""Runs as a user starts them: `python letters.py ...` and `roll-ray resume`, in processes of their own."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from tests.live.runs import metrics_of

RECIPE = Path(__file__).parent / "letters.py"


class Program:
    """A program in a session of its own, with its output in a file. All that it starts is in that session."""

    def __init__(self, folder: Path, *command: str, **env: str) -> None:
        self.log = folder / f"output-{uuid.uuid4().hex[:6]}.txt"
        environment = {k: v for k, v in os.environ.items() if not k.startswith("RAY_")}
        environment |= {"OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1", **env}
        with self.log.open("w") as log:
            self.process = subprocess.Popen(
                command,
                cwd=folder,
                env=environment,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    @property
    def output(self) -> str:
        return self.log.read_text(errors="replace")

    def until(self, what: Callable[[], Any], timeout_s: float = 90.0) -> float:
        """Wait for something to become true; seconds that it took. Fails with the program's output."""
        began_s = time.monotonic()
        while not what():
            assert time.monotonic() - began_s < timeout_s, f"waited {timeout_s} s in vain:\n{self.output}"
            time.sleep(0.05)
        return time.monotonic() - began_s

    def ended(self, timeout_s: float = 120.0) -> int:
        """The exit code, once the program has ended by itself."""
        self.until(lambda: self.process.poll() is not None, timeout_s)
        return int(self.process.returncode)

    def family(self) -> list[str]:
        """Processes that this program started, directly or not, and that still run."""
        found = []
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit() and int(entry.name) != self.process.pid:
                with contextlib.suppress(OSError):
                    title = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
                    if title and os.getsid(int(entry.name)) == self.process.pid:  # a zombie has no title
                        found.append(f"{entry.name} {title[:80]}")
        return found

    def titles(self, words: str) -> list[str]:
        return [process for process in self.family() if words in process]

    def send(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    def clear_up(self) -> None:
        """End whatever is left of its session."""
        for process in [str(self.process.pid), *self.family()]:
            with contextlib.suppress(ProcessLookupError):
                os.kill(int(process.split()[0]), signal.SIGKILL)
        self.process.wait()


@contextlib.contextmanager
def program(folder: Path, *command: str, **env: str) -> Iterator[Program]:
    started = Program(folder, *command, **env)
    try:
        yield started
    finally:
        started.clear_up()


def letters(folder: Path, model: Path, *words: str, **env: str) -> contextlib.AbstractContextManager[Program]:
    """The recipe of this folder, started as a user does."""
    return program(folder, sys.executable, str(RECIPE), f"model={model}", *words, **env)


def resumed(
    folder: Path, run_dir: Path, *words: str, **env: str
) -> contextlib.AbstractContextManager[Program]:
    """`roll-ray resume`."""
    return program(folder, sys.executable, "-m", "recipes.cli", "resume", str(run_dir), *words, **env)


def shared_memory_of(run_name: str) -> list[str]:
    """Folders for weights of a run of this name; `-` is `_` in their names."""
    return [p.name for p in Path("/dev/shm").glob(f"roll-ray-{run_name.replace('-', '_')}-*")]


def steps_written(run_dir: Path) -> list[int]:
    return [row["step"] for row in metrics_of(run_dir) if row["step"] > 0]


def saved_step(run_dir: Path) -> int:
    return max((int(p.name[5:]) for p in run_dir.glob("checkpoints/step-*")), default=0)
