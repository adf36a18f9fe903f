"""Process 1 of a sandbox: runs programs, one after another, and ends each within its limits.

As process 1 it cannot be killed or stopped from inside, and being undumpable it cannot be traced or looked into,
though programs run under the same user. All that a program started is dead, and its folder empty, before the next
one begins. After a broken limit, or where the folder cannot be emptied, it says that it is spent, and ends;
it also ends, in the middle of a case too, when whoever holds the other end of its requests is gone.

Programs are forked from here, so they get a copy of this memory. Therefore it never holds a program, an input, an
output or a test: each process reads its own from the outside.

Frames on descriptor 0: a job, as JSON, once; then for each case a header, as JSON, the program, its standard input,
and, where the header says so, the tests as JSON. Frames on descriptor 1: `READY`; then for each case what the program
prints, the verdict of the tests' process, and last what was seen, as JSON; each after a letter that says which.
"""

from __future__ import annotations

import ctypes
import gc
import json
import os
import select
import signal
import socket
import sys
import time
import traceback
from collections.abc import Callable
from typing import Any

from envs.sandbox_inside import candidate, checker
from envs.sandbox_inside.streams import Streams
from envs.sandbox_inside.watch import Watch, empty_folder, kill_descendants, reap_ended
from envs.sandbox_inside.wire import READY, SEEN, VERDICT, PeerGone, receive_frame, send_frame

REQUESTS_FD, ANSWERS_FD = 0, 1
_LOOK_EVERY_S = 0.01
_PR_SET_PDEATHSIG, _PR_SET_DUMPABLE, _PR_SET_CHILD_SUBREAPER = 1, 4, 36


def main() -> None:
    _prctl(_PR_SET_DUMPABLE, 0)
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    send_frame(ANSWERS_FD, READY)
    try:
        job = json.loads(receive_frame(REQUESTS_FD))
        gc.freeze()
        while True:
            header = json.loads(receive_frame(REQUESTS_FD))
            seen = Case(job, header["timeout_s"], with_tests=header["with_tests"]).run()
            # after a breach the frame of tests may not have been read
            seen["spent"] = bool(seen["breach"] or seen["tests_status"]) or not _emptied(job["folder"])
            send_frame(ANSWERS_FD, SEEN, json.dumps(seen).encode())
            if seen["spent"]:
                return
    except PeerGone:
        pass


def _emptied(folder: str) -> bool:
    try:
        empty_folder(folder)
    except (OSError, RecursionError):
        return False
    return True


def _prctl(option: int, value: int) -> None:
    if ctypes.CDLL(None, use_errno=True).prctl(option, value, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), f"prctl({option}, {value})")


class Case:
    """One run of a program. `run` returns what was seen; what it means is for the outside to say."""

    def __init__(self, job: dict[str, Any], timeout_s: float, *, with_tests: bool) -> None:
        self.job = job
        self.timeout_s = timeout_s
        self.with_tests = with_tests
        limits = job["limits"]
        self.streams = Streams(ANSWERS_FD, limits["output_bytes"])
        folder = job["folder"] if job["isolated"] else ""
        self.watch = Watch(limits["memory_bytes"], limits["processes"], limits["files"], folder)
        self.statuses: dict[int, int] = {}

    def run(self) -> dict[str, Any]:
        program_end, tests_end = socket.socketpair() if self.with_tests else (None, None)
        program = self._start_program(program_end)
        started_s = time.monotonic()
        tests = None
        if program_end is not None and tests_end is not None:
            program_end.close()
            tests = _fork(lambda: self._be_tests(tests_end))
            tests_end.close()
        self.streams.close_child_ends()
        breach = self._attend(tests or program, started_s + self.timeout_s)
        seconds = time.monotonic() - started_s
        kill_descendants(self.statuses)
        self.streams.finish()
        return {
            "seconds": seconds,
            "breach": breach or ("output" if self.streams.over else ""),
            "status": self.statuses.get(program),
            "tests_status": self.statuses[tests] if tests else None,
            "scratch_full": os.statvfs(self.job["folder"]).f_bavail == 0,
        }

    def _start_program(self, calls: socket.socket | None) -> int:
        """Returns once the new process has read what is its own from the outside."""
        has_read, tell = os.pipe()
        pid = _fork(lambda: self._be_program(calls, tell))
        os.close(tell)
        os.read(has_read, 1)
        os.close(has_read)
        return pid

    def _be_program(self, calls: socket.socket | None, has_read: int) -> int:
        job, folder = self.job, self.job["folder"]
        program, given = receive_frame(REQUESTS_FD), receive_frame(REQUESTS_FD)
        os.close(has_read)
        stdin = candidate.file_with(given, folder)
        candidate.take_streams(stdin, *self.streams.child_ends, None if calls is None else calls.fileno())
        os.setsid()
        _prctl(
            _PR_SET_PDEATHSIG, signal.SIGKILL
        )  # without walls nothing else ends it if this process is killed
        _prctl(_PR_SET_DUMPABLE, 1)  # so that its memory can be measured; it knows no secret
        signal.signal(signal.SIGINT, signal.default_int_handler)
        self._limit()
        start = candidate.run_as_script if calls is None else candidate.serve_calls
        return start(program, folder, job["packages"])

    def _be_tests(self, program: socket.socket) -> int:
        answers = os.dup(ANSWERS_FD)
        os.dup2(self.streams.child_ends[0], ANSWERS_FD)  # what tests print must not land among the answers
        self._limit()
        sys.path.extend(self.job["packages"])
        reason = checker.check(REQUESTS_FD, program.fileno())
        verdict = json.dumps({"reason": reason}).encode()
        assert (
            len(verdict) < select.PIPE_BUF
        )  # one write, whole or not at all, should a program kill this process
        send_frame(answers, VERDICT, verdict)
        return 0

    def _limit(self) -> None:
        candidate.limit_this_process(self.job["limits"], self.timeout_s, own_users=self.job["isolated"])

    def _attend(self, awaited: int, deadline_s: float) -> str:
        """Hear the program until the awaited process ended (nothing) or a limit is broken (its name)."""
        poller, ended = select.poll(), os.pidfd_open(awaited)
        poller.register(ended, select.POLLIN)
        poller.register(REQUESTS_FD, 0)  # only to hear that it was hung up
        self.streams.register(poller)
        breach, look_again_s = "", 0.0
        while awaited not in self.statuses and not breach:
            for fd, events in poller.poll(_LOOK_EVERY_S * 1000):
                if fd == REQUESTS_FD and events & select.POLLHUP:
                    breach = "abandoned"
                self.streams.handle(fd, poller)
            now_s = time.monotonic()
            if now_s >= look_again_s:
                breach, look_again_s = breach or self.watch.breach(), now_s + _LOOK_EVERY_S
            if self.streams.over:
                breach = "output"
            if now_s > deadline_s:
                breach = breach or "time-out"
            reap_ended(self.statuses)
        os.close(ended)
        return breach


def _fork(child: Callable[[], int]) -> int:
    """The pid of a new process that does `child` and ends with what it returns."""
    pid = os.fork()
    if pid:
        return pid
    status = 1
    try:
        status = child()
    except BaseException:  # the boundary of the process
        traceback.print_exc()
    finally:
        os._exit(status)
