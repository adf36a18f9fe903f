"""Weights that a trainer pushes: its calls and the engine's transaction, brought into step."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Literal

PushStep = Literal["init", "start", "update", "finish"]


class PushedWeights:
    """A version on its way. The trainer's steps wait until the engine has paused; the engine waits for the last."""

    def __init__(self) -> None:
        self._paused = asyncio.Event()
        self._last: asyncio.Future[None] | None = None

    async def arrive(self) -> dict[str, float]:
        """Called by the transaction once paused: let the steps through; seconds until the last was taken."""
        started_s = time.perf_counter()
        self._last = asyncio.get_running_loop().create_future()
        self._paused.set()
        try:
            await self._last
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
