"""The rollout engines of a run: started, updated as a transaction per engine, supervised, caught up.

An engine that misses a weight update is fenced (runners send it nothing) and catches up from the last
published weights, which stay in host memory. The step goes on with a quorum of half the engines. Engines that
share GPUs with the trainer sleep from `make_way` to the next `publish`.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Protocol

from roll_ray.actors import Actor, ActorUnavailable, Pool
from roll_ray.errors import RollRayError, WeightUpdateError
from roll_ray.interruption import cancelled
from roll_ray.supervision import restarts
from roll_ray.weight_copies import WeightCopies
from roll_ray.weight_push import WeightPush, attempted
from roll_ray.worker_protocols import EngineWorker, TrainerWorker

RETRY_INTERVAL_S = 5.0
UNPUBLISH_S = 2.0


class Announcer(Protocol):
    """Tells the runners which engines have the published version; the others are fenced."""

    async def __call__(self, version: int, ready: list[str]) -> None: ...


@dataclass(slots=True)
class EnginePool:
    """Engines and the weights they should have."""

    engines: Pool[EngineWorker]
    trainers: Pool[TrainerWorker]
    announce: Announcer
    folder_root: str
    update_mode: str
    say: Callable[[str], None]
    deadline_s: float = 120.0
    push: WeightPush | None = None
    sleepers: frozenset[str] = frozenset()
    copies: WeightCopies = field(init=False)
    manifest: Any = None
    version: int = -1
    reports: dict[str, Any] = field(default_factory=dict)
    _down: set[str] = field(default_factory=set)
    _ready: set[str] = field(default_factory=set)
    _catching_up: dict[str, asyncio.Task[None]] = field(default_factory=dict)
    _room: asyncio.Event = field(default_factory=asyncio.Event)  # the trainer leaves the engines theirs

    def __post_init__(self) -> None:
        self.copies = WeightCopies(self.trainers[0])
        self._room.set()

    async def publish(self, version: int) -> None:
        """Export the trainer's weights as `version` and commit them on every engine that can take them.

        Raises WeightUpdateError when less than half of the engines commit in time."""
        manifests = await self.trainers.broadcast(TrainerWorker.publish, version, self.folder_root)
        self.manifest = next(m for m in manifests if m is not None)
        self.version = version
        await self.copies.published()
        self._room.set()
        up = [engine for engine in self.engines if engine.name not in self._down]
        failed = await self._update(up)
        self._ready = {e.name for e in up} - set(failed)
        await self.announce(version, sorted(self._ready))
        for engine in up:
            if problem := failed.get(engine.name):
                self.say(f"{engine.name} did not take weight version {version} and is fenced: {problem}")
                self._bring_up(engine)
        if len(self._ready) < math.ceil(len(self.engines) / 2):
            raise WeightUpdateError(
                f"weight version {version} was committed by {len(self._ready)} of {len(self.engines)} engines",
                why="; ".join(
                    [f"{name}: {problem}" for name, problem in failed.items()]
                    + [f"{name} died and is not back" for name in sorted(self._down)]
                ),
                next_step="the run can be resumed from its last checkpoint once the cause is mended",
            )

    async def make_way(self) -> None:
        """Before the trainer computes: let the engines that share its GPUs sleep. One that cannot is said."""
        if not self.sleepers:
            return
        self._room.clear()
        here = [e for e in self.engines if e.name in self.sleepers and e.name not in self._down]
        calls = (attempted(engine.call(EngineWorker.sleep), self.deadline_s) for engine in here)
        for engine, (_, problem) in zip(here, await asyncio.gather(*calls), strict=True):
            if problem:
                self.say(f"{engine.name} does not sleep while the trainer trains: {problem}")

    async def _update(self, engines: list[Actor[EngineWorker]]) -> dict[str, str]:
        """Bring engines to the published version, by push where there is one; why, for those that failed. Who is
        catching up pulls."""
        pushed = [e for e in engines if self.push is not None and e.name not in self._catching_up]
        pulled = [e for e in engines if e not in pushed]

        by_push, by_pull = await asyncio.gather(
            self._push(pushed), asyncio.gather(*(self._commit(engine) for engine in pulled))
        )
        problems = zip([*pushed, *pulled], [*by_push, *by_pull], strict=True)
        return {engine.name: problem for engine, problem in problems if problem}

    async def _push(self, engines: list[Actor[EngineWorker]]) -> list[str]:
        if self.push is None or not engines:
            return []
        ends = await self.push(engines, self.manifest)
        for engine, (report, problem) in zip(engines, ends, strict=True):
            if not problem:
                self.reports[engine.name] = report
        return [problem for _, problem in ends]

    async def _commit(self, engine: Actor[EngineWorker]) -> str:
        """Let one engine pull the published version; an empty string, or why it failed."""

        async def pull() -> Any:
            manifest = await self.copies.manifest_for(engine, self.manifest)
            return await engine.call(EngineWorker.update_weights, manifest, self.update_mode)

        report, problem = await attempted(pull(), self.deadline_s)
        if not problem:
            self.reports[engine.name] = report
        return problem

    async def supervise(self) -> None:
        """Until cancelled: an engine that came back as a new process is started and brought up to date."""
        async for engine, pid in restarts(self.engines.actors):
            self._ready.discard(engine.name)
            self.copies.lost(engine.name)
            if task := self._catching_up.get(engine.name):
                await cancelled(task)
            if pid is None:
                self._down.add(engine.name)
                self.say(f"{engine.name} died; its requests go on elsewhere, or when it is back")
            else:
                self._down.discard(engine.name)
                self.say(f"{engine.name} is back as process {pid}")
                self._bring_up(engine)

    def _bring_up(self, engine: Actor[EngineWorker]) -> None:
        if engine.name not in self._catching_up:
            self._catching_up[engine.name] = asyncio.create_task(self._catch_up(engine))

    async def _catch_up(self, engine: Actor[EngineWorker]) -> None:
        """Start an engine, unless it runs, and update it until it has the published version."""
        try:
            await engine.call(EngineWorker.start)
            sleeps = engine.name in self.sleepers
            if sleeps and not self._room.is_set():
                await engine.call(EngineWorker.sleep)
            while engine.name not in self._ready:
                if sleeps:
                    await self._room.wait()
                version = self.version
                problem = await self._commit(engine)
                if problem:
                    self.say(f"{engine.name} is still behind: {problem}")
                    await asyncio.sleep(RETRY_INTERVAL_S)
                elif version == self.version:
                    self._ready.add(engine.name)
                    await self.announce(version, sorted(self._ready))
                    self.say(f"{engine.name} has caught up with weight version {version}")
        except (RollRayError, ActorUnavailable) as error:
            self.say(f"{engine.name} could not be brought up: {error}")
        finally:
            del self._catching_up[engine.name]

    async def close(self) -> None:
        """Stop catching up, and let the trainer, which may be on another node, remove what it published."""
        if tasks := list(self._catching_up.values()):
            await cancelled(*tasks)
        with contextlib.suppress(TimeoutError, RollRayError, ActorUnavailable):
            async with asyncio.timeout(UNPUBLISH_S):
                await self.trainers[0].call(TrainerWorker.unpublish, self.folder_root)
