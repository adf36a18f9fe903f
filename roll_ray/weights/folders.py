"""Folders in shared memory: one per run and owner process, gone when the owner is.

    /dev/shm/roll-ray-<run>-<pid>/owner.lock        locked as long as the owner lives
    /dev/shm/roll-ray-<run>-<pid>/v000012/bucket-000.bin

The name tells a person whose it is. Whether the owner lives is told by the lock, which holds across process
namespaces that share /dev/shm; the pid alone would not.
"""

from __future__ import annotations

import fcntl
import os
import shutil
from pathlib import Path
from typing import Any

from roll_ray.errors import RollRayError

BASE_VARIABLE = "ROLL_RAY_SHM_DIR"
PREFIX = "roll-ray-"
_LOCK_NAME = "owner.lock"
_owned: dict[str, int] = {}
kept_mappings: dict[str, Any] = {}
"""By folder, what this process keeps mapped to write it again; forgotten with the folder, so that memory is freed."""


def shared_memory_base() -> Path:
    """Where run folders are made: $ROLL_RAY_SHM_DIR, else /dev/shm."""
    return Path(os.environ.get(BASE_VARIABLE) or "/dev/shm")


def run_folder(run_id: str, base: Path | str | None = None) -> str:
    """The folder of this process for the buckets of a run; made and locked by the first use."""
    safe_id = "".join(c if c.isalnum() or c in "._" else "_" for c in run_id)
    return own(Path(base or shared_memory_base()) / f"{PREFIX}{safe_id}-{os.getpid()}")


def own(folder: Path | str) -> str:
    """Make a folder and hold its lock until this process ends (or `remove_run`)."""
    path = str(folder)
    if path not in _owned:
        Path(path).mkdir(parents=True, exist_ok=True)
        lock = os.open(f"{path}/{_LOCK_NAME}", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        fcntl.flock(lock, fcntl.LOCK_SH)
        _owned[path] = lock
    return path


def remove_run(folder: Path | str) -> None:
    """Delete a run folder; who has its buckets mapped keeps them until unmapping."""
    kept_mappings.pop(str(folder), None)
    lock = _owned.pop(str(folder), None)
    shutil.rmtree(folder, ignore_errors=True)
    if lock is not None:
        os.close(lock)


def sweep_stale(base: Path | str | None = None) -> list[str]:
    """Delete the run folders below `base` whose owner lives no more; their names."""
    removed = []
    for folder in sorted(Path(base or shared_memory_base()).glob(f"{PREFIX}*-*")):
        if folder.is_dir() and not _is_owned(folder):
            shutil.rmtree(folder, ignore_errors=True)
            removed.append(folder.name)
    return removed


def _is_owned(folder: Path) -> bool:
    try:
        lock = os.open(folder / _LOCK_NAME, os.O_RDWR | os.O_CLOEXEC)
    except FileNotFoundError:  # between mkdir and lock, or never an owner: the pid decides
        return _alive(folder)
    except PermissionError:  # another user's: not ours to judge
        return True
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(lock)
    return False


def _alive(folder: Path) -> bool:
    pid = folder.name.rsplit("-", 1)[-1]
    return pid.isdigit() and Path(f"/proc/{pid}").exists()


def check_free(folder: Path | str, needed_bytes: int) -> None:
    """Raise `RollRayError` unless the file system of `folder` has room for `needed_bytes`."""
    if (free := free_bytes(folder)) < needed_bytes:
        raise no_room(folder, needed_bytes, free)


def free_bytes(folder: Path | str) -> int:
    place = Path(folder)
    while not place.exists():
        place = place.parent
    status = os.statvfs(place)
    return status.f_bavail * status.f_frsize


def no_room(folder: Path | str, needed_bytes: int, free: int) -> RollRayError:
    return RollRayError(
        f"no room for the weights in {folder}: {needed_bytes:,} bytes needed, {free:,} free",
        why="the last published version stays in memory while the next is written, so twice the model must fit",
        next_step=f"enlarge it (docker run --shm-size=...; mount -o remount,size=... /dev/shm), or set "
        f"{BASE_VARIABLE} to a folder with room (a disk works and is slower)",
    )
