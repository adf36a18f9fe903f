"""A killed process leaves no semaphore in /dev/shm once it has forgotten their names."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = """
import multiprocessing as mp, os, signal, sys
from workers.semaphores import forget_names

mp.set_start_method("spawn")
lock, other = mp.Lock(), mp.RLock()
names = [each._semlock.name for each in (lock, other)]
assert all(os.path.exists("/dev/shm/sem." + name[1:]) for name in names)
assert forget_names() == 2
assert forget_names() == 0
with lock, other:
    assert not lock.acquire(block=False), "it still works"
print(*names, flush=True)
if sys.argv[1] == "killed":
    os.killpg(0, signal.SIGKILL)
"""


@pytest.mark.parametrize("end", ["killed", "by itself"])
def test_semaphores_whose_names_are_forgotten_work_and_leave_nothing(end: str) -> None:
    command = [sys.executable, "-c", PROGRAM, end]
    done = subprocess.run(command, capture_output=True, text=True, check=False, start_new_session=True)
    assert done.returncode == (-9 if end == "killed" else 0), done.stderr
    assert done.stderr == ""
    names = done.stdout.split()
    assert len(names) == 2
    assert [name for name in names if Path(f"/dev/shm/sem.{name[1:]}").exists()] == []
