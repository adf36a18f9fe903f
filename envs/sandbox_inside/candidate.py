"""The process of the program: forked from the supervisor, stripped of all that is not the program's.

Either it runs as a script would, on standard input and output, or it is loaded as module `solution` and its
functions wait for calls. It is hostile from the first line on: nothing that it sends is believed.
"""

from __future__ import annotations

import _sitebuiltins
import atexit
import builtins
import contextlib
import os
import resource
import sys
import threading
import traceback
import types
from collections.abc import Mapping, Sequence
from typing import Any

from envs.sandbox_inside.remote import Peer
from envs.sandbox_inside.wire import PeerGone

CALLS_FD = 3
_MAX_OPEN_FILES = 64
_SPARE_TASKS = 8
_FIRST_CORE_PER_USER_LIMITS = (5, 14)


def limit_this_process(limits: Mapping[str, Any], timeout_s: float, *, own_users: bool) -> None:
    """Limits of the kernel on this process and on what it starts.

    `own_users`: the user namespace is the sandbox's own, so that its tasks alone count against the number of tasks.
    """
    seconds = int(timeout_s) + 2
    for what, limit in {
        resource.RLIMIT_AS: limits["memory_bytes"],
        resource.RLIMIT_CPU: seconds,
        resource.RLIMIT_FSIZE: limits["scratch_bytes"],
        resource.RLIMIT_NOFILE: _MAX_OPEN_FILES,
        resource.RLIMIT_CORE: 1,  # 1 rather than 0: then a program that the kernel pipes cores to gets none either
    }.items():
        resource.setrlimit(what, (limit, limit))
    kernel = tuple(int("".join(filter(str.isdigit, part)) or 0) for part in os.uname().release.split(".")[:2])
    if own_users and kernel >= _FIRST_CORE_PER_USER_LIMITS:
        tasks = limits["processes"] + _SPARE_TASKS  # the watch speaks first: it has a name for the breach
        resource.setrlimit(resource.RLIMIT_NPROC, (tasks, tasks))


def take_streams(stdin: int, stdout: int, stderr: int, calls: int | None) -> None:
    """Have these as descriptors 0, 1, 2 and `CALLS_FD`, and no other one."""
    fds = [stdin, stdout, stderr] + ([] if calls is None else [calls])
    above = [os.dup2(fd, 100 + i) for i, fd in enumerate(fds)]
    for i, fd in enumerate(above):
        os.dup2(fd, i)
    os.closerange(len(fds), os.sysconf("SC_OPEN_MAX"))
    given = open(0, encoding="utf-8", closefd=False)  # noqa: SIM115
    said = open(1, "w", encoding="utf-8", closefd=False)  # noqa: SIM115
    complained = open(2, "w", 1, encoding="utf-8", errors="backslashreplace", closefd=False)  # noqa: SIM115
    vars(sys).update(stdin=given, stdout=said, stderr=complained)
    vars(sys).update(__stdin__=given, __stdout__=said, __stderr__=complained)


def file_with(content: bytes, folder: str) -> int:
    """A descriptor of a file without a name that holds the content, at its beginning."""
    path = os.path.join(folder, "stdin")
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
    os.unlink(path)
    rest = memoryview(content)
    while rest:
        rest = rest[os.write(fd, rest) :]
    os.lseek(fd, 0, os.SEEK_SET)
    return fd


def run_as_script(program: bytes, folder: str, packages: Sequence[str]) -> int:
    """Run to the end as `python solution.py` would; the exit status."""
    module = _fresh_module("__main__", program, folder, packages)
    status = _status_of(lambda: _execute(program, module))
    with contextlib.suppress(Exception):
        threading._shutdown()  # type: ignore[attr-defined]  # waits for threads, as an interpreter that ends does
        atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):
            stream.flush()
    return status


def serve_calls(program: bytes, folder: str, packages: Sequence[str]) -> int:
    """Load the program and answer calls until nobody asks any more."""
    module = _fresh_module("solution", program, folder, packages)
    peer = _Program(CALLS_FD, module)
    try:
        try:
            _execute(program, module)
        except BaseException as error:  # the boundary: the tests' process gets it
            traceback.print_exc()
            peer.send("failed", f"{type(error).__name__}: {error}")
            return 1
        peer.send("loaded")
        peer.serve()
    except PeerGone:
        pass
    return 0


class _Program(Peer):
    """The program's end of the line: it also knows what it has under a name."""

    def __init__(self, fd: int, module: types.ModuleType) -> None:
        super().__init__(fd, trusted=False)
        self.module = module

    def _perform(self, action: str, number: int, *operands: Any) -> tuple[Any, Any]:
        if action == "names":
            return {n: vars(self.module)[n] for n in operands[0] if n in vars(self.module)}, None
        return super()._perform(action, number, *operands)


def _fresh_module(name: str, program: bytes, folder: str, packages: Sequence[str]) -> types.ModuleType:
    """A module as the interpreter would make it; nothing of ours is left among the modules or on the path."""
    for ours in [n for n in sys.modules if n.partition(".")[0] == "envs"]:
        del sys.modules[ours]
    path = os.path.join(folder, "solution.py")
    with open(path, "wb") as file:
        file.write(program)
    sys.path[:] = [folder, *sys.path[1:], *packages]
    sys.argv = ["solution.py"]
    for word in ("exit", "quit"):  # as an interpreter with its site module has them
        setattr(builtins, word, _sitebuiltins.Quitter(word, "Ctrl-D (i.e. EOF)"))
    module = types.ModuleType(name)
    module.__file__ = path
    sys.modules[name] = module
    return module


def _execute(program: bytes, module: types.ModuleType) -> None:
    exec(compile(program, module.__file__ or "", "exec", dont_inherit=True), module.__dict__)


def _status_of(run: Any) -> int:
    try:
        run()
    except SystemExit as error:
        if error.code is None or isinstance(error.code, int):
            return (error.code or 0) & 0xFF
        print(error.code, file=sys.stderr)
        return 1
    except BaseException:  # the boundary: what an interpreter prints before it ends
        traceback.print_exc()
        return 1
    return 0
