"""Work that ends early when the user asks the run to end."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import Any, TypeVar

R = TypeVar("R")

LET_GO_S = 2.0


class Interrupted(Exception):
    """The user asked the run to end."""


async def unless_interrupted(interrupt: asyncio.Event, work: Awaitable[R]) -> R:
    """The result of `work`. Raises `Interrupted` as soon as `interrupt` is set: `work` is then cancelled."""
    task = asyncio.ensure_future(work)
    stop = asyncio.ensure_future(interrupt.wait())
    try:
        await asyncio.wait({task, stop}, return_when=asyncio.FIRST_COMPLETED)
        if stop.done():
            raise Interrupted
        return await task
    finally:
        await cancelled(task, stop)


async def cancelled(*tasks: asyncio.Future[Any]) -> None:
    """Cancel tasks and give them a moment to let go of what they hold."""
    for task in tasks:
        task.cancel()
    await asyncio.wait(tasks, timeout=LET_GO_S)
