"""The rollout engines of a run: started, updated as a transaction per engine, supervised, caught up.

An engine that misses a weight update is fenced (runners send it nothing) and catches up from the last
published weights, which stay in host memory. The step goes on with a quorum of half the engines.
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
    copies: WeightCopies = field(init=False)
    manifest: Any = None
    version: int = -1
    reports: dict[str, Any] = field(default_factory=dict)
    _down: set[str] = field(default_factory=set)
    _ready: set[str] = field(default_factory=set)
    _catching_up: dict[str, asyncio.Task[None]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.copies = WeightCopies(self.trainers[0])

    async def publish(self, version: int) -> None:
        """Export the trainer's weights as `version` and commit them on every engine that can take them.

        Raises WeightUpdateError when less than half of the engines commit in time."""
        manifests = await self.trainers.broadcast(TrainerWorker.publish, version, self.folder_root)
        self.manifest = next(m for m in manifests if m is not None)
        self.version = version
        await self.copies.published()
        up = [engine for engine in self.engines if engine.name not in self._down]
        problems = await asyncio.gather(*(self._commit(engine) for engine in up))
        failed = {e.name: p for e, p in zip(up, problems, strict=True) if p}
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

    async def _commit(self, engine: Actor[EngineWorker]) -> str:
        """Update one engine; an empty string, or why it failed."""
        try:
            async with asyncio.timeout(self.deadline_s):
                manifest = await self.copies.manifest_for(engine, self.manifest)
                self.reports[engine.name] = await engine.call(
                    EngineWorker.update_weights, manifest, self.update_mode
                )
        except TimeoutError:
            return f"no commit within {self.deadline_s:.0f} s"
        except (RollRayError, ActorUnavailable) as error:
            return str(error)
        return ""

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
            while engine.name not in self._ready:
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
