"""A pool of daemon threads that gives up on calls that take too long, from an asyncio loop.

A Python thread cannot be stopped. One whose call is out of time is abandoned: the caller is told, a new
thread takes its place, and the process can still end because the thread is a daemon.
"""

from __future__ import annotations

import asyncio
import queue
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

_WATCH_INTERVAL_S = 0.05


class OutOfTimeError(Exception):
    """The call ran longer than it may."""


@dataclass(slots=True, eq=False)
class _Call:
    function: Callable[[], Any]
    loop: asyncio.AbstractEventLoop
    done: asyncio.Future[Any]
    started_s: float = 0.0  # monotonic; 0 while it waits for a thread
    given_up: bool = False


class DaemonThreads:
    """`n_threads` calls at once; the time of each is counted from when it begins to run."""

    def __init__(self, n_threads: int, timeout_s: float, name: str) -> None:
        self._timeout_s, self._name = timeout_s, name
        self._queue: queue.SimpleQueue[_Call] = queue.SimpleQueue()
        self._open: set[_Call] = set()
        self._watch: asyncio.Task[None] | None = None
        self.abandoned = 0
        for _ in range(n_threads):
            self._start_thread()

    async def run(self, function: Callable[[], Any]) -> Any:
        """The function's result, or its exception. Raises `OutOfTimeError`."""
        loop = asyncio.get_running_loop()
        call = _Call(function, loop, loop.create_future())
        self._open.add(call)
        self._queue.put(call)
        if self._watch is None or self._watch.done():
            self._watch = asyncio.create_task(self._watch_open())
        try:
            return await call.done
        finally:
            self._open.discard(call)

    async def _watch_open(self) -> None:
        while self._open:
            await asyncio.sleep(min(_WATCH_INTERVAL_S, self._timeout_s / 4))
            now_s = time.monotonic()
            late = [c for c in self._open if c.started_s and now_s - c.started_s > self._timeout_s]
            for call in late:
                call.given_up = True
                self._open.discard(call)
                self.abandoned += 1
                self._start_thread()
                if not call.done.done():
                    call.done.set_exception(OutOfTimeError())

    def _start_thread(self) -> None:
        threading.Thread(target=self._work, name=f"{self._name}-verifier", daemon=True).start()

    def _work(self) -> None:
        while True:
            call = self._queue.get()
            call.started_s = time.monotonic()
            try:
                result, error = call.function(), None
            except Exception as raised:
                result, error = None, raised
            if call.given_up:
                return  # a new thread has taken this one's place
            try:
                call.loop.call_soon_threadsafe(_settle, call.done, result, error)
            except RuntimeError:
                return  # the loop is closed: nobody waits any more


def _settle(done: asyncio.Future[Any], result: Any, error: Exception | None) -> None:
    if done.done():
        return
    if error is not None:
        done.set_exception(error)
    else:
        done.set_result(result)
