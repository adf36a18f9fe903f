"""Run Python programs that nobody may trust: isolated, limited, and without a trace.

    with Sandbox(Limits()) as sandbox:
        outcome = sandbox.run("print(sum(map(int, input().split())))", "3 4\\n", timeout_s=2.0)
        outcome.stdout      # "7\\n"

bubblewrap makes the walls (`envs.sandbox_walls`), a supervisor inside holds the limits
(`envs.sandbox_inside.supervisor`). docs/code_rewards.md says what is stopped by what. A sandbox takes one program
after another, is used by one thread at a time, and ends with the thread that started it at the latest.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import json
import logging
import os
import subprocess
import sys
import tempfile
import threading
import time
import weakref
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from envs.sandbox_filter import system_call_filter
from envs.sandbox_inside.wire import STDERR, STDOUT, VERDICT, PeerGone, receive_frame, send_frame
from envs.sandbox_process import kill_tree, killed_after, number_of, reads_to_end, unnamed_file
from envs.sandbox_walls import (
    SCRATCH,
    bare_command,
    compile_supervisor,
    require_bubblewrap,
    seen_packages,
    walled_command,
)
from roll_ray.errors import RollRayError

log = logging.getLogger(__name__)

ISOLATIONS = ("bubblewrap", "none")
_START_LIMIT_S = 30.0
_GRACE_S = 5.0
"""How long after a case's own limit a supervisor may still answer, before it is ended from outside."""
_KEPT_STDERR_BYTES = 4096


@dataclass(frozen=True, slots=True)
class Limits:
    """What a program may use in one case; whatever it starts counts with it.

    `timeout_s` is wall clock, also the CPU time of each process within 2 s. `processes` counts threads too.
    `output_bytes` is standard output and error together; `scratch_bytes` and `files` are the folder it may write in.
    """

    timeout_s: float = 10.0
    memory_bytes: int = 1 << 30
    processes: int = 32
    output_bytes: int = 1 << 20
    scratch_bytes: int = 64 << 20
    files: int = 1024

    def __post_init__(self) -> None:
        for name, value in asdict(self).items():
            if value <= 0:
                raise ValueError(f"limits.{name}={value}: it must be above 0")


class SandboxError(Exception):
    """A sandbox that did not start. Nothing is known about the program."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What was seen of one run.

    `breach` names the limit that ended it: time-out, memory, processes, output, files; or "ended" where the sandbox
    itself was brought down. `status` is the exit status, negative for a signal; None if the program was still
    running. `stderr` is the end of it. `verdict`: of tests that came to their end, empty if they passed, else why
    they did not; None without tests, or if their process was brought down. `spent`: the next program gets a new
    sandbox.
    """

    seconds: float
    breach: str = ""
    status: int | None = None
    tests_status: int | None = None
    scratch_full: bool = False
    spent: bool = False
    stdout: str = ""
    stderr: str = ""
    verdict: str | None = None


_all: weakref.WeakSet[Sandbox] = weakref.WeakSet()


@atexit.register
def _close_all() -> None:
    for sandbox in list(_all):
        sandbox.close()


class Sandbox:
    """A sandbox that starts with the first program, and again after one that broke a limit."""

    def __init__(
        self, limits: Limits, *, isolation: str = "bubblewrap", packages: Sequence[str] = ()
    ) -> None:
        self._limits = limits
        self._isolation = isolation
        self._packages = [os.path.abspath(p) for p in packages]
        self._seen_packages = self._packages if isolation == "none" else seen_packages(self._packages)
        self._process: subprocess.Popen[bytes] | None = None
        self._folder: tempfile.TemporaryDirectory[str] | None = None
        self._owner = 0
        _all.add(self)

    def run(self, program: str, stdin: str = "", *, timeout_s: float | None = None) -> Outcome:
        """Run a program as a script. Raises `SandboxError` if no sandbox can be started."""
        return self._case([_text(program), _text(stdin)], timeout_s, with_tests=False)

    def run_tests(self, program: str, tests: Mapping[str, Any], *, timeout_s: float | None = None) -> Outcome:
        """Load a program as a module and run `tests` against it: {"setup", "code", "entry_points", "call"}."""
        return self._case([_text(program), b"", json.dumps(dict(tests)).encode()], timeout_s, with_tests=True)

    def _case(self, frames: list[bytes], timeout_s: float | None, *, with_tests: bool) -> Outcome:
        limit_s = self._limits.timeout_s if timeout_s is None else timeout_s
        process = self._running() or self._start()
        header = json.dumps({"timeout_s": limit_s, "with_tests": with_tests}).encode()
        started_s = time.monotonic()
        try:
            with killed_after(limit_s + _GRACE_S, process):
                with contextlib.suppress(PeerGone):  # it broke a limit before it had read all: it answers
                    for frame in (header, *frames):
                        send_frame(number_of(process.stdin), frame)
                outcome = _receive_outcome(number_of(process.stdout))
        except (PeerGone, ValueError):
            seconds = time.monotonic() - started_s
            outcome = Outcome(seconds, "time-out" if seconds > limit_s else "ended", spent=True)
        if outcome.spent:
            self.close()
        return outcome

    def _running(self) -> subprocess.Popen[bytes] | None:
        """The process, unless it has ended, as it does with the thread that started it, or is a parent's."""
        if self._process is not None and (self._owner != os.getpid() or self._process.poll() is not None):
            self.close()
        return self._process

    def _start(self) -> subprocess.Popen[bytes]:
        folder = SCRATCH
        if self._isolation == "none":
            self._folder = tempfile.TemporaryDirectory(prefix="roll-ray-code-")
            folder = self._folder.name
        process = self._process = self._popen(folder)
        self._owner = os.getpid()
        job = {
            "limits": asdict(self._limits),
            "packages": self._seen_packages,
            "folder": folder,
            "isolated": self._isolation != "none",
        }
        try:
            with killed_after(_START_LIMIT_S, process):
                receive_frame(number_of(process.stdout))
                send_frame(number_of(process.stdin), json.dumps(job).encode())
        except (PeerGone, ValueError):
            kill_tree(process.pid)
            said = process.stderr.read().decode("utf-8", "replace").strip() if process.stderr else ""
            self.close()
            raise SandboxError(said or "it ended without a word") from None
        return process

    def _popen(self, folder: str) -> subprocess.Popen[bytes]:
        compile_supervisor()
        pipes: dict[str, Any] = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
        if self._isolation == "none":
            command = bare_command()
            return subprocess.Popen(
                command, **pipes, cwd=folder, env={"HOME": folder}, start_new_session=True
            )
        with unnamed_file(system_call_filter()) as rules:
            command = walled_command(self._limits.scratch_bytes, self._packages, rules.fileno())
            return subprocess.Popen(
                command, **pipes, cwd="/", pass_fds=[rules.fileno()], start_new_session=True
            )

    def close(self) -> None:
        """End the sandbox and everything in it; returns when it is gone."""
        process, self._process = self._process, None
        folder, self._folder = self._folder, None
        mine = self._owner == os.getpid()
        if process is not None:
            pipes = [pipe for pipe in (process.stdin, process.stdout, process.stderr) if pipe is not None]
            pipes[0].close()  # the supervisor ends when it hears that
            if mine:
                if not reads_to_end(pipes[1].fileno(), _GRACE_S):
                    kill_tree(process.pid)
                process.wait()
            for pipe in pipes:
                pipe.close()
        if folder is not None and mine:
            folder.cleanup()

    def __enter__(self) -> Sandbox:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __del__(self) -> None:
        if not sys.is_finalizing():  # all were closed before that
            self.close()


_kept = threading.local()


def kept_sandbox(limits: Limits, isolation: str, packages: Sequence[str]) -> Sandbox:
    """This thread's own sandbox of these settings, kept warm between programs; it ends with the thread."""
    sandboxes: dict[Any, Sandbox] = vars(_kept).setdefault("sandboxes", {})
    key = (limits, isolation, tuple(packages))
    if key not in sandboxes:
        sandboxes[key] = Sandbox(limits, isolation=isolation, packages=packages)
    return sandboxes[key]


def _receive_outcome(fd: int) -> Outcome:
    stdout, stderr = bytearray(), bytearray()
    verdict: str | None = None
    while True:
        frame = receive_frame(fd)
        letter, content = frame[:1], frame[1:]
        if letter == STDOUT:
            stdout += content
        elif letter == STDERR:
            stderr = (stderr + content)[-_KEPT_STDERR_BYTES:]
        elif letter == VERDICT:
            verdict = json.loads(content)["reason"]
        else:
            seen = json.loads(content)
            return Outcome(
                **seen,
                stdout=stdout.decode("utf-8", "replace"),
                stderr=stderr.decode("utf-8", "replace"),
                verdict=verdict,
            )


def _text(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")


def require_isolation(isolation: str) -> None:
    """Raise `RollRayError` unless sandboxes of this kind start on this machine; "none" is warned about."""
    if isolation not in ISOLATIONS:
        raise RollRayError(f"sandbox={isolation!r} is none of {', '.join(ISOLATIONS)}")
    if isolation == "none":
        log.warning(
            "sandbox=none: PROGRAMS THAT A MODEL WROTE RUN ON THIS MACHINE WITH YOUR RIGHTS: they can read your "
            "files and keys, write and delete, and use the network. Only for programs that you would run yourself."
        )
        return
    require_bubblewrap()
    _require_start()


@functools.cache
def _require_start() -> None:
    """An empty program must run; this is tried once in a process, and again after it failed."""
    with Sandbox(Limits()) as sandbox:
        try:
            outcome = sandbox.run("")
        except SandboxError as error:
            raise RollRayError(
                "the sandbox for code rewards does not start",
                why=str(error),
                next_step="allow user namespaces to this user (in a container: to the container), "
                "or set sandbox=none if you trust every program",
            ) from None
    if outcome.breach or outcome.status != 0:
        raise RollRayError("an empty program fails in the sandbox for code rewards", why=str(outcome))
