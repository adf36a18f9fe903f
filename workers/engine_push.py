"""Weights that a trainer pushes: its calls and the engine's transaction, brought into step."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, Literal

from roll_ray.errors import WeightUpdateError
from workers.engine_spec import CommitReport

PushStep = Literal["init", "start", "update", "finish"]


class PushedWeights:
    """A version on its way. The trainer's steps wait until the engine has paused; the engine waits for the last.

    An engine that waits longer than the update's time limit gives up: its trainer may have left it out, or died.
    """

    def __init__(self) -> None:
        self._paused = asyncio.Event()
        self._last: asyncio.Future[None] | None = None
        self._commit: asyncio.Task[CommitReport] | None = None

    async def begin(self, commit: Coroutine[Any, Any, CommitReport]) -> bool:
        """Run a transaction; True once it waits for the trainer's steps, False where it needs none. Raises why it
        could not be opened."""
        self._commit = asyncio.create_task(commit)
        paused = asyncio.create_task(self._paused.wait())
        await asyncio.wait({self._commit, paused}, return_when=asyncio.FIRST_COMPLETED)
        paused.cancel()
        if self._commit.done():
            self._commit.result()
        return not self._commit.done()

    async def finish(self) -> CommitReport:
        """The end of the transaction begun last, however it ends."""
        assert self._commit is not None
        return await self._commit

    async def arrive(self, timeout_s: float) -> dict[str, float]:
        """Called by the transaction once paused: let the steps through; seconds until the last was taken."""
        started_s = time.perf_counter()
        self._last = asyncio.get_running_loop().create_future()
        self._paused.set()
        try:
            await asyncio.wait_for(self._last, timeout_s)
        except TimeoutError:
            raise WeightUpdateError(
                f"the trainer's push was not finished within {timeout_s:.0f} s",
                next_step="see what the trainer ranks say; a push to other engines may have failed",
            ) from None
        finally:
            self._paused.clear()
        return {"load": time.perf_counter() - started_s}

    async def take(self, step: PushStep, work: Callable[[], Awaitable[None]]) -> None:
        """Carry out a step of the trainer. What it raises ends the transaction too."""
        await self._paused.wait()
        assert self._last is not None
        try:
            await work()
        except Exception as error:  # both sides are told: the trainer by this call, the engine by `arrive`
            if not self._last.done():
                self._last.set_exception(error)
            raise
        if step == "finish" and not self._last.done():
            self._last.set_result(None)
