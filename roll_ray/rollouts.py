"""Live rollouts: prompts out to the rollout manager, complete batches back as references.

The driver sees receipts (numbers) only. Tokens go from the sample stores into the object store and from
there to the trainer ranks; the references are owned by the driver, so they outlive a store that dies.
"""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from roll_ray.actors import Actor, ActorUnavailable
from roll_ray.errors import RollRayError
from roll_ray.parts import MiniBatch, Part, Share, share_out, split_by_visit
from roll_ray.receipts import Cut, PromptsWanted, Receipt, Stopped
from roll_ray.sample import Prompt
from roll_ray.worker_protocols import ManagerWorker, StoreWorker
from schedulers.protocol import SampleId, Visit

POLL_S = 5.0


class PromptSource(Protocol):
    """Where prompts come from, in an order that a state of a few integers pins down."""

    def draw(self, n: int) -> Sequence[tuple[Visit, Prompt]]: ...

    def state(self) -> dict[str, Any]: ...

    def restore(self, state: Mapping[str, Any]) -> None: ...


class ObjectStore(Protocol):
    def put(self, value: Any) -> Any: ...


class SharesLost(Exception):
    """Samples of a cut that no store holds any more."""

    def __init__(self, samples: Sequence[SampleId], reason: str) -> None:
        super().__init__(f"{len(samples)} samples lost: {reason}")
        self.samples, self.reason = tuple(samples), reason


@dataclass(slots=True)
class LiveRollouts:
    """The `Rollouts` of a run with engines. `say_waiting` is told whom a long wait is for."""

    manager: Actor[ManagerWorker]
    stores: Mapping[str, Actor[StoreWorker]]
    prompts: PromptSource
    objects: ObjectStore
    prompts_per_step: int
    mini_batches: int
    ranks: int
    say_waiting: Callable[[str], None]
    waiting_interval_s: float = 60.0
    peek: int = 2
    shown: list[tuple[Prompt, Any]] = field(default_factory=list)
    _prompts_of_step: dict[str, Prompt] = field(default_factory=dict)
    _receipts_of_step: tuple[Receipt, ...] = ()

    async def parts(self, step: int) -> AsyncIterator[Part]:
        """Offer the prompts of a step and give its batch when it is complete."""
        self._prompts_of_step.clear()
        await self._offer(step, self.prompts_per_step, starts_step=True)
        said_s = time.monotonic()
        while True:
            outcome = await _patient(lambda: self.manager.call(ManagerWorker.next_outcome, POLL_S))
            if outcome is None:
                if time.monotonic() - said_s > self.waiting_interval_s:
                    said_s = time.monotonic()
                    self.say_waiting(await _patient(lambda: self.manager.call(ManagerWorker.waiting_for)))
            elif isinstance(outcome, PromptsWanted):
                await self._offer(step, outcome.count, starts_step=False)
            elif isinstance(outcome, Stopped):
                raise RollRayError(
                    f"step {step} cannot be completed",
                    why=outcome.reason,
                    next_step="mend the reward function or the data; the event log of the run has every attempt",
                )
            else:
                try:
                    yield await self._deliver(outcome)
                    return
                except SharesLost as lost:
                    samples, reason = lost.samples, lost.reason
                    await _patient(lambda: self.manager.call(ManagerWorker.lost, samples, reason))

    async def trained(self, version: int) -> None:
        """The batch gave this weight version, which the engines now have: forget its samples."""
        await _patient(lambda: self.manager.call(ManagerWorker.trained, version))
        await _patient(lambda: self.manager.call(ManagerWorker.weights_published, version))
        by_store = itertools.groupby(sorted(self._receipts_of_step, key=lambda r: r.store), lambda r: r.store)
        for store, receipts in by_store:
            ids = [(r.sample, r.attempt) for r in receipts]
            try:
                await self.stores[store].call(StoreWorker.drop, ids)
            except ActorUnavailable:
                continue  # a store that died holds nothing that could be dropped
        self._receipts_of_step = ()

    def state(self) -> dict[str, Any]:
        return {"prompts": self.prompts.state()}

    def restore(self, state: Mapping[str, Any]) -> None:
        self.prompts.restore(state["prompts"])

    async def _offer(self, step: int, n: int, *, starts_step: bool) -> None:
        drawn = self.prompts.draw(n)
        self._prompts_of_step |= {prompt.id: prompt for _, prompt in drawn}
        book = self.objects.put({prompt.id: prompt for _, prompt in drawn})
        visits = [visit for visit, _ in drawn]
        domains = [prompt.domain for _, prompt in drawn]
        await _patient(
            lambda: self.manager.call(ManagerWorker.offer, step, visits, domains, [book], starts_step)
        )

    async def _deliver(self, cut: Cut) -> Part:
        shares = [
            share_out(receipts, self.ranks) for receipts in split_by_visit(cut.receipts, self.mini_batches)
        ]
        fetched = await asyncio.gather(
            *(self._share(receipts) for mini_batch in shares for receipts in mini_batch)
        )
        self._receipts_of_step = cut.receipts
        self.shown = await self._peek(cut)
        rows = [tuple(fetched[i : i + self.ranks]) for i in range(0, len(fetched), self.ranks)]
        return Part(cut, tuple(MiniBatch(row) for row in rows))

    async def _share(self, receipts: list[Receipt]) -> Share:
        handles = []
        for store, group in itertools.groupby(receipts, lambda r: r.store):
            ids = [(r.sample, r.attempt) for r in group]
            handles.append(await self._fetch(store, ids))
        return Share(tuple(receipts), tuple(handles))

    async def _fetch(self, store: str, ids: list[tuple[SampleId, int]]) -> Any:
        try:
            return await self.stores[store].refer(StoreWorker.fetch, ids)
        except (ActorUnavailable, LookupError) as error:
            raise SharesLost([sample for sample, _ in ids], f"{store}: {error}") from error

    async def _peek(self, cut: Cut) -> list[tuple[Prompt, Any]]:
        """A few samples whole, for people to read."""
        few = cut.receipts[:: max(1, len(cut.receipts) // self.peek)][: self.peek]
        shown = []
        for receipt in few:
            ids = [(receipt.sample, receipt.attempt)]
            try:
                batch = await self.stores[receipt.store].call(StoreWorker.fetch, ids)
            except (ActorUnavailable, LookupError):
                continue  # only for reading; the batch itself is already safe in the object store
            shown.append((self._prompts_of_step[receipt.sample.visit.prompt_id], batch.sample(0)))
        return shown


async def _patient(call: Callable[[], Any], attempts: int = 30, pause_s: float = 1.0) -> Any:
    """Make a call on an actor that may be restarting; its name is in the error when it stays away."""
    for attempt in itertools.count(1):
        try:
            return await call()
        except ActorUnavailable:
            if attempt >= attempts:
                raise
            await asyncio.sleep(pause_s)
    raise AssertionError("unreachable")
