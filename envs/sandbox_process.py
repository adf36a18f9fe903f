"""The process tree of a sandbox, from outside: its pipes, its end, and a watchdog."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import IO


@contextlib.contextmanager
def killed_after(seconds: float, process: subprocess.Popen[bytes]) -> Iterator[None]:
    """Kill the process and all below it, should the block take longer."""
    timer = threading.Timer(seconds, kill_tree, [process.pid])
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
        timer.join()


def reads_to_end(stdout: int, within_s: float) -> bool:
    """Read the output; whether it ended in time. Its end comes with that of the last process behind the walls."""
    poller, deadline_s = select.poll(), time.monotonic() + within_s
    poller.register(stdout, select.POLLIN)
    while poller.poll(max(0.0, 1000 * (deadline_s - time.monotonic()))):
        if not os.read(stdout, 1 << 16):
            return True
    return False


def kill_tree(pid: int) -> None:
    """Kill a process and all below it: a bubblewrap of root may not signal what it started as another user."""
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):
        for task in os.listdir(f"/proc/{pid}/task"):
            for child in Path(f"/proc/{pid}/task/{task}/children").read_text().split():
                kill_tree(int(child))
        os.kill(pid, signal.SIGKILL)


def number_of(pipe: IO[bytes] | None) -> int:
    """The file descriptor of a pipe that was asked for."""
    assert pipe is not None
    return pipe.fileno()


def unnamed_file(content: bytes) -> IO[bytes]:
    """A file in memory, open at its beginning, for a program that is given its descriptor."""
    file = open(os.memfd_create("filter"), "wb+")  # noqa: SIM115 - the caller closes it
    file.write(content)
    file.flush()
    file.seek(0)
    return file
