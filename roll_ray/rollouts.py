"""Live rollouts: prompts out to the rollout manager, complete batches back as references.

The driver sees receipts (numbers) only. Tokens go from the sample stores into the object store and from
there to the trainer ranks; the references are owned by the driver, so they outlive a store that dies.
"""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from roll_ray.actors import Actor, ActorUnavailable
from roll_ray.attempt_counts import AttemptCounts
from roll_ray.errors import RollRayError, WorkerDiedError
from roll_ray.parts import MiniBatch, Part, Share, share_out, split_by_visit
from roll_ray.receipts import Cut, PromptsWanted, Receipt, Stopped
from roll_ray.sample import Prompt
from roll_ray.worker_protocols import LearningWorker, ManagerWorker, StoreWorker
from schedulers.protocol import SampleId, Visit

POLL_S = 5.0
RETRY_INTERVAL_S = 0.5
PATIENCE_S = 60.0


class PromptSource(Protocol):
    """Where prompts come from, in an order that a state of a few integers pins down."""

    def draw(self, n: int) -> Sequence[tuple[Visit, Prompt]]: ...

    def prompt(self, prompt_id: str) -> Prompt: ...

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
    """The `Rollouts` of a run with engines. `say_waiting` is told whom a long wait is for; `example` gives an
    invalid reward with its response, to be read when a step is given up."""

    manager: Actor[ManagerWorker]
    stores: Mapping[str, Actor[StoreWorker]]
    rewards: Sequence[Actor[LearningWorker]]
    prompts: PromptSource
    objects: ObjectStore
    mini_batches: int
    ranks: int
    say_waiting: Callable[[str], None]
    example: Callable[[], Awaitable[str]]
    waiting_interval_s: float = 60.0
    peek: int = 2
    shown: list[tuple[Prompt, Any]] = field(default_factory=list)
    metrics: dict[str, float] = field(default_factory=dict)
    _counts: AttemptCounts = field(default_factory=AttemptCounts)

    async def parts(self, step: int) -> AsyncIterator[Part]:
        """Offer the prompts of a step and give its batch when it is complete."""
        wanted = await _patient(self.manager, ManagerWorker.prompts_wanted)
        await self._offer(step, wanted, starts_step=True)
        said_s = time.monotonic()
        while True:
            outcome = await _patient(self.manager, ManagerWorker.next_outcome, POLL_S)
            if outcome is None:
                if time.monotonic() - said_s > self.waiting_interval_s:
                    said_s = time.monotonic()
                    self.say_waiting(await _patient(self.manager, ManagerWorker.waiting_for))
            elif isinstance(outcome, PromptsWanted):
                await self._offer(step, outcome.count, starts_step=False)
            elif isinstance(outcome, Stopped):
                raise RollRayError(
                    f"step {step} cannot be completed",
                    why=outcome.reason + await self.example(),
                    next_step="mend the reward function or the data; the event log of the run has every attempt",
                )
            else:
                try:
                    yield await self._deliver(outcome)
                    return
                except SharesLost as lost:
                    await _patient(self.manager, ManagerWorker.lost, lost.samples, lost.reason)

    async def trained(self, version: int) -> None:
        """The batch gave this weight version, which the engines now have; the manager drops its samples."""
        await _patient(self.manager, ManagerWorker.trained, version)
        await _patient(self.manager, ManagerWorker.weights_published, version)

    async def state(self) -> dict[str, Any]:
        manager = await _patient(self.manager, ManagerWorker.state)
        rewards = await asyncio.gather(*(_patient(r, LearningWorker.learnt) for r in self.rewards))
        return {
            "prompts": self.prompts.state(),
            "manager": manager,
            "rewards": [learnt for learnt in rewards if learnt],
        }

    async def restore(self, state: Mapping[str, Any]) -> None:
        self.prompts.restore(state["prompts"])
        for learnt in state["rewards"]:
            await asyncio.gather(*(_patient(r, LearningWorker.learn, learnt) for r in self.rewards))
        lacking = await _patient(self.manager, ManagerWorker.restore, state["manager"])
        if lacking:
            book = self.objects.put({v.prompt_id: self.prompts.prompt(v.prompt_id) for v in lacking})
            await _patient(self.manager, ManagerWorker.renew_prompts, lacking, [book])
        self._counts.step(await _patient(self.manager, ManagerWorker.metrics))  # begin from what was restored

    async def _offer(self, step: int, n: int, *, starts_step: bool) -> None:
        drawn = self.prompts.draw(n)
        book = self.objects.put({prompt.id: prompt for _, prompt in drawn})
        visits = [visit for visit, _ in drawn]
        domains = [prompt.domain for _, prompt in drawn]
        await _patient(self.manager, ManagerWorker.offer, step, visits, domains, [book], starts_step)

    async def _deliver(self, cut: Cut) -> Part:
        shares = [
            share_out(receipts, self.ranks) for receipts in split_by_visit(cut.receipts, self.mini_batches)
        ]
        fetched = await asyncio.gather(
            *(self._share(receipts) for mini_batch in shares for receipts in mini_batch)
        )
        self.shown, counts = await asyncio.gather(
            self._peek(cut), _patient(self.manager, ManagerWorker.metrics)
        )
        self.metrics = self._counts.step(counts)
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
        except (ActorUnavailable, WorkerDiedError, LookupError) as error:
            raise SharesLost([sample for sample, _ in ids], f"{store}: {error}") from error

    async def _peek(self, cut: Cut) -> list[tuple[Prompt, Any]]:
        """A few samples whole, for people to read."""
        few = cut.receipts[:: max(1, len(cut.receipts) // self.peek)][: self.peek]
        shown = []
        for receipt in few:
            ids = [(receipt.sample, receipt.attempt)]
            try:
                batch = await self.stores[receipt.store].call(StoreWorker.fetch, ids)
            except (ActorUnavailable, WorkerDiedError, LookupError):
                continue  # only for reading; the batch itself is already safe in the object store
            shown.append((self.prompts.prompt(receipt.sample.visit.prompt_id), batch.sample(0)))
        return shown


async def _patient(actor: Actor[Any], method: Callable[..., Any], *args: Any) -> Any:
    """Call an actor that may be restarting, for up to `PATIENCE_S`; its name is in the error if it stays away."""
    deadline_s = time.monotonic() + PATIENCE_S
    while True:
        try:
            return await actor.call(method, *args)
        except ActorUnavailable:
            if time.monotonic() > deadline_s:
                raise
            await asyncio.sleep(RETRY_INTERVAL_S)
