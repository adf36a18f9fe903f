"""Noticing that an actor's process died and another took its name."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from typing import Any, Protocol

from roll_ray.actors import ActorUnavailable
from roll_ray.errors import RollRayError

INTERVAL_S = 1.0
ANSWER_S = 10.0


class Supervised(Protocol):
    """An actor whose processes can be told apart."""

    name: str

    async def identity(self) -> Any: ...


async def restarts(
    actors: Sequence[Any], interval_s: float = INTERVAL_S
) -> AsyncIterator[tuple[Any, int | None]]:
    """Without end: (actor, None) when its process is gone, (actor, pid) when a new one answers.

    An actor that is only slow to answer is not gone: it is asked again."""
    known = {actor.name: await _pid(actor) for actor in actors}
    while True:
        await asyncio.sleep(interval_s)
        for actor, pid in zip(actors, await asyncio.gather(*map(_pid, actors)), strict=True):
            if pid != known[actor.name] and pid != _SLOW:
                known[actor.name] = pid
                yield actor, pid


_SLOW = -1


async def _pid(actor: Supervised) -> int | None:
    try:
        return int((await asyncio.wait_for(actor.identity(), ANSWER_S)).pid)
    except TimeoutError:
        return _SLOW
    except (ActorUnavailable, RollRayError):
        return None
