"""What a case uses: processes, memory and files of everything that descends from this process.

The supervisor is process 1 of the sandbox, so all that lives there descends from it. Without a sandbox it is a
subreaper: an orphan becomes its child and is found all the same.
"""

from __future__ import annotations

import contextlib
import os
import signal
from dataclasses import dataclass

_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


@dataclass(frozen=True)
class Process:
    """A line of /proc/PID/stat. `rss_bytes` counts a page that two processes share in each of them."""

    pid: int
    parent: int
    tasks: int
    rss_bytes: int


def descendants() -> list[Process]:
    """All living processes below this one; zombies are not among them."""
    alive = [p for name in os.listdir("/proc") if name.isdigit() and (p := _process(name)) is not None]
    found, parents = [], {os.getpid()}
    while grown := [p for p in alive if p.parent in parents]:
        found += grown
        parents = {p.pid for p in grown}
    return found


def _process(pid: str) -> Process | None:
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            fields = file.read().rpartition(b")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return None
    if fields[0] in (b"Z", b"X"):
        return None
    return Process(int(pid), int(fields[1]), int(fields[17]), int(fields[21]) * _PAGE_BYTES)


def memory_bytes(processes: list[Process], enough: int) -> int:
    """Resident memory of the processes; a page shared by n of them counts as 1/n in each.

    The cheap sum, which counts shared pages more than once, is returned while it is not above `enough`.
    """
    at_most = sum(p.rss_bytes for p in processes)
    return at_most if at_most <= enough else sum(_proportional_bytes(p) for p in processes)


def _proportional_bytes(process: Process) -> int:
    try:
        with open(f"/proc/{process.pid}/smaps_rollup", "rb") as file:
            for line in file:
                if line.startswith(b"Pss:"):
                    return int(line.split()[1]) * 1024
    except (PermissionError, FileNotFoundError, ProcessLookupError):
        pass  # a process that hid itself counts in full; one that ended, not for long
    return process.rss_bytes


@dataclass
class Watch:
    """Finds the first limit that the processes of a case are over.

    `scratch` is the folder whose files are counted; empty where it lies on a file system with other files in it.
    """

    memory: int
    processes: int
    files: int
    scratch: str

    def breach(self) -> str:
        """The name of the limit: processes, memory or files; empty if there is none."""
        living = descendants()
        if sum(p.tasks for p in living) > self.processes:
            return "processes"
        if memory_bytes(living, self.memory) > self.memory:
            return "memory"
        if self.scratch:
            space = os.statvfs(self.scratch)
            if space.f_files - space.f_ffree > self.files:
                return "files"
        return ""


def kill_descendants(statuses: dict[int, int]) -> None:
    """End everything below this process; returns when nothing is left, not even a zombie.

    `statuses` gets the exit status (negative: the signal) of every process that was waited for.
    """
    reap_ended(statuses)
    if os.getpid() == 1:
        # a process namespace of its own: all at once, so that nothing can fork its way out
        with contextlib.suppress(ProcessLookupError):
            os.kill(-1, signal.SIGKILL)
    else:
        while living := descendants():
            for process in living:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(process.pid, signal.SIGKILL)
            _reap(statuses, 0)
    while _reap(statuses, 0):
        pass


def reap_ended(statuses: dict[int, int]) -> None:
    """Take note of the processes that have ended, orphans among them."""
    while _reap(statuses, os.WNOHANG):
        pass


def _reap(statuses: dict[int, int], options: int) -> bool:
    """Wait for one process; false if none has ended, or none is left."""
    try:
        pid, status = os.waitpid(-1, options)
    except ChildProcessError:
        return False
    if pid:
        statuses[pid] = os.waitstatus_to_exitcode(status)
    return pid != 0


def empty_folder(path: str) -> None:
    """Remove what is in a folder, following no link. OSError or RecursionError where it cannot be done."""
    with os.scandir(path) as entries:
        for entry in entries:
            if entry.is_dir(follow_symlinks=False):
                empty_folder(entry.path)
                os.rmdir(entry.path)
            else:
                os.unlink(entry.path)
