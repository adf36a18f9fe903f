"""Weights pushed from the trainer's GPUs: begin on every engine, push from every rank, finish on every engine.

Which engine processes take part is agreed when the senders are opened. When another set begins (one died, one is
back), or a push failed for some, they are opened anew.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Sequence
from dataclasses import dataclass
from typing import Any

from roll_ray.actors import Actor, ActorUnavailable, Pool
from roll_ray.errors import RollRayError, WeightUpdateError
from roll_ray.weight_transfer import WeightTransfer
from roll_ray.worker_protocols import EngineWorker, TrainerWorker


async def attempted(work: Awaitable[Any], deadline_s: float) -> tuple[Any, str]:
    """The result of an engine's part in an update and "", or None and why there is none."""
    try:
        async with asyncio.timeout(deadline_s):
            return await work, ""
    except TimeoutError:
        return None, f"no commit within {deadline_s:.0f} s"
    except (RollRayError, ActorUnavailable) as error:
        return None, str(error)


@dataclass(slots=True)
class WeightPush:
    """The push of one run; `transfer` is "ipc" or "nccl"."""

    transfer: WeightTransfer
    trainers: Pool[TrainerWorker]
    ranks_per_engine: int
    update_mode: str
    deadline_s: float = 120.0
    _opened: tuple[tuple[str, int], ...] = ()

    async def __call__(self, engines: Sequence[Actor[EngineWorker]], manifest: Any) -> list[tuple[Any, str]]:
        """For each engine its commit report and "", or None and why it failed.

        Raises WeightUpdateError when the push itself stands still: the trainer is of no use afterwards."""
        begun = await asyncio.gather(*(attempted(self._begin(e, manifest), self.deadline_s) for e in engines))
        waiting = [
            (engine, pid)
            for engine, (pid, problem) in zip(engines, begun, strict=True)
            if pid is not None and not problem
        ]
        if waiting:
            await self._send(waiting, manifest.version)

        async def end(engine: Actor[EngineWorker], problem: str) -> tuple[Any, str]:
            if problem:
                return None, problem
            return await attempted(engine.call(EngineWorker.finish_push), self.deadline_s)

        ends = await asyncio.gather(*(end(e, p) for e, (_, p) in zip(engines, begun, strict=True)))
        if any(problem for _, problem in ends):
            self._opened = ()
        return list(ends)

    async def _begin(self, engine: Actor[EngineWorker], manifest: Any) -> int | None:
        """The process that waits for the push; None where these weights are in force already."""
        waits = await engine.call(EngineWorker.begin_push, manifest, self.update_mode, self.deadline_s)
        return (await engine.identity()).pid if waits else None

    async def _send(self, waiting: Sequence[tuple[Actor[EngineWorker], int]], version: int) -> None:
        processes = tuple((engine.name, pid) for engine, pid in waiting)
        try:
            async with asyncio.timeout(self.deadline_s):
                if processes != self._opened:
                    self._opened = ()
                    engines = [engine for engine, _ in waiting]
                    await self.trainers.broadcast(
                        TrainerWorker.open_sender,
                        self.transfer,
                        engines,
                        self.ranks_per_engine,
                        self.deadline_s,
                    )
                    self._opened = processes
                await self.trainers.broadcast(TrainerWorker.push_weights)
        except TimeoutError:
            raise WeightUpdateError(
                f"the push of weight version {version} was not done within {self.deadline_s:.0f} s",
                why="an engine that takes part may have died or hang: "
                + ", ".join(engine.name for engine, _ in waiting),
                next_step="`roll-ray resume RUN_DIR` goes on from the last checkpoint",
            ) from None
