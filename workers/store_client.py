"""A runner's side of the sample store: what one tick scored is put in one call, and again while it restarts."""

from __future__ import annotations

import asyncio
import contextlib
import time
from dataclasses import dataclass, field

from roll_ray.actors import Actor, ActorUnavailable
from roll_ray.errors import WorkerDiedError
from roll_ray.receipts import Receipt
from roll_ray.sample import Sample
from workers.sample_store import SampleStore

RETRY_INTERVAL_S = 0.5


@dataclass(slots=True)
class StoreClient:
    """Puts samples into the store of the node."""

    store: Actor[SampleStore]
    patience_s: float = 60.0
    """How long to wait for a store that is restarting."""
    _outbox: list[tuple[Sample, asyncio.Future[Receipt]]] = field(default_factory=list)
    _aborted: list[Sample] = field(default_factory=list)  # nobody knows that the store has them
    _flush: asyncio.Task[None] | None = None

    async def put(self, sample: Sample) -> Receipt:
        """The receipt of the sample once the store holds it. Raises `ActorUnavailable` or `WorkerDiedError`."""
        done: asyncio.Future[Receipt] = asyncio.get_running_loop().create_future()
        self._outbox.append((sample, done))
        self._start()
        try:
            return await done
        except asyncio.CancelledError:
            if not done.cancelled():  # the receipt came in the tick of the abort
                self._aborted.append(sample)
                self._start()
            raise

    def _start(self) -> None:
        if self._flush is None or self._flush.done():
            self._flush = asyncio.create_task(self._send_gathered())

    async def _send_gathered(self) -> None:
        await asyncio.sleep(0)
        while self._outbox or self._aborted:
            outbox, self._outbox = self._outbox, []
            aborted, self._aborted = self._aborted, []
            await self._drop(aborted)
            try:
                receipts = await self._put_patiently([sample for sample, _ in outbox])
            except Exception as error:  # the boundary to the store: its fault is that of each sample
                for _, done in outbox:
                    if not done.done():
                        done.set_exception(error)
                continue
            for (_, done), receipt in zip(outbox, receipts, strict=True):
                if not done.done():
                    done.set_result(receipt)
            await self._drop([sample for sample, done in outbox if done.cancelled()])

    async def _drop(self, aborted: list[Sample]) -> None:
        """Samples whose attempt was aborted on the way."""
        if aborted:
            with contextlib.suppress(ActorUnavailable, WorkerDiedError):
                await self.store.call(SampleStore.drop, [(s.id, s.attempt) for s in aborted])

    async def _put_patiently(self, samples: list[Sample]) -> list[Receipt]:
        deadline_s = time.monotonic() + self.patience_s
        while samples:
            try:
                return await self.store.call(SampleStore.put_many, samples)
            except ActorUnavailable:
                if time.monotonic() > deadline_s:
                    raise
                await asyncio.sleep(RETRY_INTERVAL_S)
        return []
