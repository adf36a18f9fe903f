"""Whether two expressions are equal, asked of math-verify in a process of its own.

math-verify limits its time with signals, which work in the main thread of a program only, and a computation
inside sympy cannot be stopped from another thread. So one helper process per process (started on first use,
shared by all threads) computes; the kernel ends it when a pair takes too long, and the next pair gets a new
one. It is a plain subprocess: no `__main__` guard, no fork of a process with threads.
"""

from __future__ import annotations

import atexit
import contextlib
import importlib.util
import json
import os
import select
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any, Literal, NoReturn

from envs.maths_process import WALL_PER_CPU_SECOND
from roll_ray.errors import RollRayError

PROGRAM = Path(__file__).with_name("maths_process.py")
START_LIMIT_S = 120.0
_GRACE_S = 2.0
_ENDED_BY_TIME = (-signal.SIGPROF, -signal.SIGALRM)

Verdict = Literal["equal", "different", "answer unreadable", "reference unreadable"]


class ComparisonTimeout(Exception):
    """The comparison took longer than its limit."""


class ComparisonFailed(Exception):
    """The helper process ended without a verdict: out of memory, or killed."""


class EqualityProcess:
    """The helper. Safe to call from any thread; calls are answered one at a time."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._unread = b""

    def compare(self, answer: str, reference: str, limit_s: float) -> Verdict:
        """Compare two LaTeX expressions.

        `limit_s` is CPU time (wall clock: four times as much), the start of the helper and the wait for other
        threads not counted. Raises ComparisonTimeout or ComparisonFailed.
        """
        with self._lock:
            process = self._running()
            request = {"answer": answer, "reference": reference, "limit_s": limit_s}
            try:
                assert process.stdin is not None
                process.stdin.write(json.dumps(request).encode() + b"\n")
                process.stdin.flush()
                reply = self._reply(process, limit_s * WALL_PER_CPU_SECOND + _GRACE_S)
            except (OSError, TimeoutError):
                reply = None
            if reply is None:
                self._discard(limit_s)
        if "unreadable" in reply:
            return "answer unreadable" if reply["unreadable"] == "the answer" else "reference unreadable"
        return "equal" if reply["equal"] else "different"

    def close(self) -> None:
        """End the helper; the next call starts another."""
        with self._lock:
            self._end()

    def forget(self) -> None:
        """After a fork, in the child: the helper, its pipes and the lock are the parent's."""
        self._lock, self._process = threading.Lock(), None

    def _running(self) -> subprocess.Popen[bytes]:
        """The helper, started anew if it is gone."""
        if self._process is not None and self._process.poll() is not None:
            self._end()
        if self._process is None:
            self._start()
        assert self._process is not None
        return self._process

    def _start(self) -> None:
        if importlib.util.find_spec("math_verify") is None:
            raise RollRayError(
                "the maths verifier needs the package math-verify, which is not installed",
                next_step="pip install 'math-verify[antlr4_13_2]'",
            )
        process = subprocess.Popen(
            [sys.executable, "-P", str(PROGRAM)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        self._process, self._unread = process, b""
        try:
            ready = self._reply(process, START_LIMIT_S)
        except TimeoutError:
            ready = None
        if ready is None:
            code = self._end()
            raise RollRayError(
                f"the helper process of the maths verifier did not start (exit code {code})",
                why="its own message is above, on standard error",
                next_step=f"try it by hand: {sys.executable} {PROGRAM}",
            )

    def _reply(self, process: subprocess.Popen[bytes], limit_s: float) -> dict[str, Any] | None:
        """The next line of the helper, None at its end. Raises TimeoutError."""
        assert process.stdout is not None
        while b"\n" not in self._unread:
            if not select.select([process.stdout], [], [], limit_s)[0]:
                raise TimeoutError
            if not (chunk := os.read(process.stdout.fileno(), 65536)):
                return None
            self._unread += chunk
        line, _, self._unread = self._unread.partition(b"\n")
        return dict(json.loads(line))

    def _discard(self, limit_s: float) -> NoReturn:
        code = self._end()
        if code in _ENDED_BY_TIME:
            raise ComparisonTimeout(f"the comparison took longer than {limit_s:g} s")
        raise ComparisonFailed(f"the helper process ended with exit code {code}")

    def _end(self) -> int | None:
        """End and reap the helper; its exit code, negative for a signal."""
        process, self._process = self._process, None
        if process is None:
            return None
        for pipe in (process.stdin, process.stdout):
            with contextlib.suppress(OSError):  # unsent bytes to a helper that is gone
                if pipe is not None:
                    pipe.close()
        try:
            return process.wait(0.5)
        except subprocess.TimeoutExpired:
            process.kill()
            return process.wait()


shared_process = EqualityProcess()
"""The one helper of this process, for every verifier in it."""
atexit.register(shared_process.close)
os.register_at_fork(after_in_child=shared_process.forget)
