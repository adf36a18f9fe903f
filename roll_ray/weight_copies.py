"""The published weights on every node that has engines: one copy a node, fetched by reference.

The trainer's node has the original in shared memory. On another node the first engine to ask receives the
buckets into that node's shared memory, the others there map them. Buckets go from node to node through the
object store; the driver holds references only.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Any

from roll_ray.actors import Actor, ActorUnavailable
from roll_ray.interruption import cancelled
from roll_ray.worker_protocols import EngineWorker, TrainerWorker


@dataclass(slots=True)
class _Copy:
    """A node's copy, being made or ready; it lives as long as the process of the engine that received it."""

    holder: str
    manifest: asyncio.Task[Any]


class WeightCopies:
    """Finds, for an engine, the manifest whose folder lies on the engine's own node. `copied` counts by version."""

    def __init__(self, source: Actor[TrainerWorker]) -> None:
        self._source = source
        self._source_node = ""
        self._copies: dict[str, _Copy] = {}
        self.copied: dict[int, int] = {}

    async def published(self) -> None:
        """A new version is out: copies of the last one are of no use. Asked while the trainer has nothing to do."""
        old, self._copies = self._copies, {}
        if old:
            await cancelled(*(copy.manifest for copy in old.values()))
        if not self._source_node:
            self._source_node = (await self._source.identity()).node

    def lost(self, holder: str) -> None:
        """An engine's process has ended, and what it had received with it."""
        for node, copy in list(self._copies.items()):
            if copy.holder == holder:
                copy.manifest.cancel()
                del self._copies[node]

    async def manifest_for(self, engine: Actor[EngineWorker], manifest: Any) -> Any:
        """`manifest`, or one of the same weights on the engine's node. Raises what fetching them raises."""
        node = (await engine.identity()).node
        if node == self._source_node:
            return manifest
        if node not in self._copies:
            fetch = asyncio.create_task(self._fetch(engine, manifest))
            self._copies[node] = _Copy(engine.name, fetch)
        copy = self._copies[node]
        await asyncio.wait({copy.manifest})
        if copy.manifest.cancelled():
            raise ActorUnavailable(copy.holder, "it was lost while it received the weights for its node")
        if copy.manifest.exception() is not None and self._copies.get(node) is copy:
            del self._copies[node]  # who asks next tries again
        return copy.manifest.result()

    async def _fetch(self, engine: Actor[EngineWorker], manifest: Any) -> Any:
        buckets = [
            await self._source.refer(TrainerWorker.weight_bucket, manifest, bucket)
            for bucket in range(len(manifest.bucket_sizes))
        ]
        here = await engine.call(EngineWorker.receive_weights, manifest, *buckets)
        self.copied[manifest.version] = self.copied.get(manifest.version, 0) + 1
        return here
