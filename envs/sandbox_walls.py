"""The command that starts a supervisor behind walls: what bubblewrap is told, as a user and as root.

A program sees the interpreter, the system's libraries and its scratch folder; everything else does not exist for it.
As root, a first bubblewrap lends the folders to user `nobody`, who starts the second one: a program that were still
root of the machine could write to /proc/sys, capabilities or not.
"""

from __future__ import annotations

import compileall
import functools
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from roll_ray.errors import RollRayError

SCRATCH = "/scratch"
OLDEST_BUBBLEWRAP = (0, 8, 0)
INSTALL_LINE = "apt-get install bubblewrap (Debian, Ubuntu; dnf install bubblewrap on Fedora)"

_HOME, _OURS, _NOBODY = "/home/sandbox", "/roll_ray", 65534
_INSIDE = Path(__file__).parent / "sandbox_inside"
_LIBRARIES = ("/usr/lib", "/usr/lib32", "/usr/lib64", "/lib", "/lib32", "/lib64")
_SYSTEM_FILES = ("/etc/ld.so.cache", "/etc/localtime", "/usr/share/zoneinfo")
_DEVICES = ("null", "zero", "full", "random", "urandom")
_DEVICE_LINKS = {
    "/dev/fd": "/proc/self/fd",
    "/dev/stdin": "/proc/self/fd/0",
    "/dev/stdout": "/proc/self/fd/1",
    "/dev/stderr": "/proc/self/fd/2",
    "/dev/shm": SCRATCH,
    "/tmp": SCRATCH,
}
_ENVIRONMENT = {
    "HOME": _HOME,
    "PATH": "/usr/bin:/bin",
    "LANG": "C.UTF-8",
    "TMPDIR": SCRATCH,
    "PYTHONHASHSEED": "0",
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "MALLOC_ARENA_MAX": "1",  # else each thread reserves 64 MiB of the address space that is limited
}


def require_bubblewrap() -> None:
    """Raise `RollRayError` with the line that installs it, unless bubblewrap is there and new enough."""
    program = shutil.which("bwrap")
    if program is None:
        raise RollRayError(
            "code rewards need a sandbox, and bubblewrap (bwrap) is not installed",
            why="programs that a model wrote are not run without one",
            next_step=f"{INSTALL_LINE}, or set sandbox=none if you trust every program",
        )
    version = _version(program)
    if version < OLDEST_BUBBLEWRAP:
        raise RollRayError(
            f"bubblewrap {'.'.join(map(str, version))} is too old for code rewards",
            why=f"{'.'.join(map(str, OLDEST_BUBBLEWRAP))} is the first that limits folders and nested namespaces",
            next_step=INSTALL_LINE,
        )


@functools.cache
def _version(program: str) -> tuple[int, ...]:
    said = subprocess.run([program, "--version"], capture_output=True, text=True, check=False).stdout
    return tuple(map(int, re.findall(r"\d+", said)))


@functools.cache
def compile_supervisor() -> None:
    """Have the byte code at hand, where it can be written: a sandbox sees its folder read-only."""
    compileall.compile_dir(_INSIDE, maxlevels=0, quiet=2)


def bare_command() -> list[str]:
    """The supervisor without walls."""
    return _interpreter(str(_INSIDE.parents[1]))


def seen_packages(packages: Sequence[str]) -> list[str]:
    """Where the folders are seen behind the walls."""
    return [f"/packages/{i}" for i in range(len(packages))]


def walled_command(scratch_bytes: int, packages: Sequence[str], filter_fd: int) -> list[str]:
    """The supervisor behind walls. `packages` are folders that it sees besides, read-only."""
    shown = {path: path for path in _interpreter_folders()}
    shown |= dict(zip(seen_packages(packages), packages, strict=True))
    shown[f"{_OURS}/envs/sandbox_inside"] = str(_INSIDE)
    if os.geteuid() != 0:
        return _walls(shown, scratch_bytes, filter_fd)
    lent = {path: f"/tmp/{i}" for i, path in enumerate(shown)}
    # fmt: off
    lend = [
        "bwrap", "--die-with-parent", "--cap-drop", "ALL", "--cap-add", "CAP_SETUID", "--cap-add", "CAP_SETGID",
        "--bind", "/", "/", "--tmpfs", "/tmp",
        *(word for path, source in shown.items() for word in ("--ro-bind", source, lent[path])),
        "--", "setpriv", "--reuid", str(_NOBODY), "--regid", str(_NOBODY), "--clear-groups", "--",
    ]
    # fmt: on
    return lend + _walls(lent, scratch_bytes, filter_fd)


def _walls(shown: dict[str, str], scratch_bytes: int, filter_fd: int) -> list[str]:
    # fmt: off
    return [
        "bwrap",
        "--unshare-user", "--unshare-pid", "--unshare-ipc", "--unshare-uts", "--unshare-net",
        "--unshare-cgroup-try", "--disable-userns", "--uid", "1000", "--gid", "1000", "--hostname", "sandbox",
        "--die-with-parent", "--new-session", "--as-pid-1", "--seccomp", str(filter_fd),
        "--clearenv", *(word for name, value in _ENVIRONMENT.items() for word in ("--setenv", name, value)),
        *(word for path, source in shown.items() for word in ("--ro-bind", source, path)),
        *(word for path in _LIBRARIES if os.path.islink(path)
          for word in ("--symlink", os.readlink(path), path)),
        "--proc", "/proc",
        *(word for name in _DEVICES for word in ("--dev-bind", f"/dev/{name}", f"/dev/{name}")),
        *(word for path, target in _DEVICE_LINKS.items() for word in ("--symlink", target, path)),
        "--size", str(scratch_bytes), "--tmpfs", SCRATCH,
        "--dir", _HOME, "--chdir", SCRATCH, "--remount-ro", "/",
        "--", *_interpreter(_OURS),
    ]
    # fmt: on


def _interpreter(root: str) -> list[str]:
    """A bare interpreter (no site-packages, no environment variables) that becomes the supervisor."""
    start = (
        f"import sys; sys.path.insert(0, {root!r}); from envs.sandbox_inside.supervisor import main; main()"
    )
    return [_executable(), "-I", "-S", "-c", start]


@functools.cache
def _executable() -> str:
    """The interpreter itself, not the link to it in a virtual environment."""
    return os.path.realpath(sys.executable)


@functools.cache
def _interpreter_folders() -> tuple[str, ...]:
    """What must be visible for the interpreter to start: itself, its library, the system's libraries."""
    prefix = sys.base_prefix
    wanted = [*_LIBRARIES, *_SYSTEM_FILES, _executable(), f"{prefix}/lib", f"{prefix}/lib64"]
    return tuple(p for p in dict.fromkeys(wanted) if os.path.exists(p) and not _is_link_of_folder(p))


def _is_link_of_folder(path: str) -> bool:
    return path in _LIBRARIES and os.path.islink(path)
