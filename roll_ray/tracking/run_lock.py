"""Who writes the folder of a run: a lock that ends with its process; pid and host stand in it for people."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import socket
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

from roll_ray.errors import RollRayError

LOCK, RECORD, SETTINGS, FAILURE = "run.lock", "run.json", "settings.yaml", "failure.json"
_WRITTEN_BY_A_START = (LOCK, RECORD, SETTINGS, FAILURE)
_OWNER_BYTES = 4096


@contextlib.contextmanager
def held(folder: Path) -> Iterator[None]:
    """Make the folder of a run and hold it: two runs in one folder would write over each other.

    A folder that was made here and in which nothing has run when the block fails is removed again. Raises
    RollRayError when another process holds the folder, and for disk faults."""
    made = not folder.exists()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock = os.open(folder / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    except OSError as error:
        raise cannot_be_written(folder, error) from error
    try:
        _take(lock, folder)
        try:
            yield
        except BaseException:
            if made:
                _remove_unused(folder)
            raise
    finally:
        os.close(lock)


def writer_of(folder: Path) -> str | None:
    """The process that holds the folder of a run, in words; None when nobody does."""
    owner = _owner_of(folder)
    return None if owner is None else _in_words(owner)


def refuse_held(folder: Path) -> None:
    """Raise RollRayError when a run is writing `folder`."""
    if (owner := _owner_of(folder)) is not None:
        raise _under_way(folder, owner)


def cannot_be_written(folder: Path, error: OSError) -> RollRayError:
    return RollRayError(
        f"the run folder {folder} cannot be written",
        why=error.strerror or str(error),
        next_step="name another place with run_dir=, or mend permissions and room there",
    )


def _take(lock: int, folder: Path) -> None:
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise _under_way(folder, _owner(lock)) from None
    except OSError as error:  # file systems without locks exist; there the user has to take care
        print(f"note: {folder} cannot be locked ({error.strerror}): start no second run in it", flush=True)
    owner = {
        "pid": os.getpid(),
        "host": socket.gethostname(),
        "since": datetime.now(UTC).isoformat(timespec="seconds"),
    }
    with contextlib.suppress(OSError):  # a full disk: the lock itself holds, and what needs room will say so
        os.ftruncate(lock, 0)
        os.pwrite(lock, json.dumps(owner).encode(), 0)


def _owner_of(folder: Path) -> dict[str, object] | None:
    try:
        lock = os.open(folder / LOCK, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return _owner(lock)
    except OSError:  # no locks here: nothing can be told
        return None
    finally:
        os.close(lock)
    return None


def _owner(lock: int) -> dict[str, object]:
    try:
        owner = json.loads(os.pread(lock, _OWNER_BYTES, 0))
    except (OSError, ValueError):  # it is being written at this moment
        return {}
    return owner if isinstance(owner, dict) and {"pid", "host", "since"} <= owner.keys() else {}


def _in_words(owner: dict[str, object]) -> str:
    if not owner:
        return "another process"
    return f"process {owner['pid']} on {owner['host']}, since {owner['since']}"


def _under_way(folder: Path, owner: dict[str, object]) -> RollRayError:
    end = f"`kill -INT {owner['pid']}` on {owner['host']}" if owner else "Ctrl-C"
    return RollRayError(
        f"the run {folder} is under way",
        why=f"it is being written by {_in_words(owner)}",
        next_step=f"wait for its end, or end it with {end}, which saves the last finished step; for a second run "
        "choose another run_name",
    )


def _remove_unused(folder: Path) -> None:
    """Remove what a start writes, and the folder, if there is nothing else in it."""
    if {p.name for p in folder.iterdir()} <= set(_WRITTEN_BY_A_START):
        for name in _WRITTEN_BY_A_START:
            (folder / name).unlink(missing_ok=True)
        folder.rmdir()
