"""The rollout manager: turns what the runners report into events, and the scheduler's actions into calls.

It decides nothing and holds no tokens. Invariant: an action is carried out only after the events that led
to it are in the log, so a manager that restarts from the log knows of everything that it ever ordered. What
was open then is fenced: runners drop it, and it is launched again as the next attempt.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from roll_ray.actors import Actor
from roll_ray.errors import RollRayError
from roll_ray.receipts import Outcome, Receipt, Stopped
from schedulers.events_log import to_record
from schedulers.protocol import (
    Abort,
    Action,
    BatchTrained,
    Event,
    Failed,
    Launch,
    PromptsOffered,
    SampleId,
    Scheduler,
    Scored,
    Visit,
    WeightsPublished,
)
from workers.episode_runner import EpisodeRunner
from workers.event_log import EventLog, events_of, last_session, since_last_snapshot
from workers.rollout_ledger import Ledger
from workers.runner_links import RunnerLinks
from workers.sample_store import SampleStore
from workers.waiting_sentence import waiting_sentence

log = logging.getLogger(__name__)

INVENTORY_TIMEOUT_S = 30.0


@dataclass(frozen=True, slots=True)
class ManagerSpec:
    """`session` names one start of the driver: with the session that the log ends with, the manager goes on
    from the log; with another, it begins anew below what is there."""

    session: str
    log_path: Path
    scheduler: Callable[[], Scheduler]


class RolloutManager:
    """Owns the scheduler, the event log and the ledger. Every method may be called again after a failure."""

    def __init__(
        self,
        spec: ManagerSpec,
        runners: Sequence[Actor[EpisodeRunner]],
        stores: Sequence[Actor[SampleStore]],
    ) -> None:
        self.spec = spec
        self._scheduler = spec.scheduler()
        self._ledger = Ledger()
        self._stores = {store.name: store for store in stores}
        self._runners = RunnerLinks(runners, self._taken, self._runner_lost)
        self._news = asyncio.Event()
        self._ready: asyncio.Task[None] | None = None
        self._drops: set[asyncio.Task[None]] = set()
        self._counters = {"events": 0, "reports": 0, "restarts": 0, "runners_lost": 0, "samples_lost": 0}

    # --- what the driver asks ----------------------------------------------------------------------

    async def start(self) -> None:
        """Begin, or go on from the log after a crash. Every other method does this first; again: nothing."""
        if self._ready is None:
            self._ready = asyncio.create_task(self._get_ready())
        await asyncio.shield(self._ready)

    async def prompts_wanted(self) -> int:
        """How many prompts the next step is to be offered; 0 when it goes on with deferred ones."""
        await self.start()
        return self._scheduler.prompts_wanted()

    async def offer(
        self,
        step: int,
        visits: Sequence[Visit],
        domains: Sequence[str],
        prompts_ref: Any,
        starts_step: bool = True,
    ) -> None:
        """Prompts to launch: they begin `step`, or answer `PromptsWanted`. `prompts_ref` leads the runners to
        the prompts by id. Offering the same visits again only renews the handle. Raises ValueError when the
        scheduler has no place for them."""
        await self.start()
        visits = [Visit(*visit) for visit in visits]
        await self.renew_prompts(visits, prompts_ref)
        if all(v in self._ledger.visits for v in visits) if visits else self._ledger.step == step:
            return
        event = PromptsOffered(time.time(), step, tuple(visits), tuple(domains), starts_step)
        self._handle("driver", 0, [event])

    async def renew_prompts(self, visits: Sequence[Visit], prompts_ref: Any) -> None:
        """A handle that leads to the prompts of these visits, for launches now and later."""
        await self.start()
        await self._runners.hand_out([Visit(*visit) for visit in visits], prompts_ref)
        self._runners.place_held_back(self._ledger.running)

    async def next_outcome(self, timeout_s: float) -> Outcome | None:
        """What the driver has to act on, as soon as there is anything; None after `timeout_s`.

        An outcome is given again at each call until it is acted on: a cut until `trained` or `lost`, a
        request for prompts until they are offered. So neither side's restart loses one.
        """
        await self.start()
        deadline_s = time.monotonic() + timeout_s
        while True:
            outcome = self._owed()
            left_s = deadline_s - time.monotonic()
            if outcome is not None or left_s <= 0:
                return outcome
            self._news.clear()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(left_s):
                    await self._news.wait()

    def _owed(self) -> Outcome | None:
        if self._runners.fault is not None:
            raise RollRayError(
                "the rollout manager cannot go on",
                why=f"{type(self._runners.fault).__name__}: {self._runners.fault}",
                next_step="mend the cause (a full disk, say) and resume the run",
            ) from self._runners.fault
        dead = self._runners.all_dead()
        return Stopped(f"every episode runner is dead: {dead}") if dead else self._ledger.owed()

    async def trained(self, version: int) -> None:
        """The batch that was cut is trained and gave weight version `version`: its samples are dropped."""
        await self.start()
        self._handle("driver", 0, [BatchTrained(time.time(), version)])
        self._log.append("snapshot", t_s=time.time(), state=self._state())
        await self._runners.forget(self._ledger.visits_over())

    async def weights_published(self, version: int) -> None:
        await self.start()
        self._handle("driver", 0, [WeightsPublished(time.time(), version)])

    async def lost(self, samples: Sequence[SampleId], reason: str) -> None:
        """The driver could not fetch these samples of the cut: they are launched again."""
        await self.start()
        now_s, scored = time.time(), self._ledger.scored
        ids = [SampleId(Visit(*visit), index) for visit, index in samples]
        events = [Failed(now_s, s, scored[s], f"tokens lost: {reason}") for s in ids if s in scored]
        self._counters["samples_lost"] += len(events)
        self._handle("driver", 0, events)

    async def state(self) -> dict[str, Any]:
        """Plain data for a checkpoint."""
        await self.start()
        return self._state()

    async def restore(self, state: Mapping[str, Any]) -> list[Visit]:
        """Take over the state of a checkpoint; what was open in it is launched again. Returns the visits whose prompts
        nobody here knows: they are to be given with `renew_prompts`."""
        await self.start()
        self._load(state)
        self._log.append("snapshot", t_s=time.time(), state=self._state())
        await self._take_stock()
        return [visit for visit in self._ledger.visits if visit not in self._runners.prompts]

    async def waiting_for(self) -> str:
        """A sentence that names whom the rollout waits for."""
        await self.start()
        return await waiting_sentence(self._ledger, self._runners)

    async def metrics(self) -> dict[str, float]:
        await self.start()
        counters = {name: float(n) for name, n in self._counters.items()}
        return {**self._scheduler.metrics(), **counters, **self._ledger.verdicts()}

    async def close(self) -> None:
        """Stop polling (tests and the end of a run)."""
        await self.start()
        await self._runners.close()
        self._log.close()

    # --- events in, actions out --------------------------------------------------------------------

    def _taken(
        self, runner: str, sequence: int, events: Sequence[Event], receipts: Sequence[Receipt]
    ) -> None:
        """A runner reported. Its links make sure that each report is taken once."""
        self._counters["reports"] += 1
        self._handle(runner, sequence, events, receipts)

    def _runner_lost(self, runner: str, held: Sequence[tuple[SampleId, int]], reason: str) -> None:
        self._counters["runners_lost"] += 1
        now_s = time.time()
        self._handle("manager", 0, [Failed(now_s, s, a, f"{runner} is lost: {reason}") for s, a in held])

    def _handle(
        self, sender: str, sequence: int, events: Sequence[Event], receipts: Sequence[Receipt] = ()
    ) -> None:
        """Decide, log, then do."""
        if not events:
            return
        actions: list[Action] = []
        for event in events:
            actions += self._decide(event)
        for receipt in receipts:
            self._ledger.took(receipt)
        self._log.append_events(sender, sequence, events, actions)
        self._counters["events"] += len(events)
        self._runners.ended(events)
        self._carry_out(actions)

    def _decide(self, event: Event) -> list[Action]:
        actions = self._scheduler.handle([event])
        self._ledger.saw(event)
        self._ledger.did(actions)
        return actions

    def _carry_out(self, actions: Sequence[Action]) -> None:
        for action in actions:
            match action:
                case Launch():
                    self._runners.launch(action)
                case Abort(samples):
                    self._runners.abort(samples)
                case _:
                    pass  # what is owed to the driver is in the ledger
        self._drop_garbage()
        self._news.set()

    def _drop_garbage(self) -> None:
        garbage, self._ledger.garbage = self._ledger.garbage, []
        by_store: dict[str, list[tuple[SampleId, int]]] = {}
        for receipt in garbage:
            by_store.setdefault(receipt.store, []).append((receipt.sample, receipt.attempt))
        for name, keys in by_store.items():
            if name in self._stores:
                drop = asyncio.create_task(self._drop(self._stores[name], keys))
                self._drops.add(drop)
                drop.add_done_callback(self._drops.discard)

    async def _drop(self, store: Actor[SampleStore], keys: list[tuple[SampleId, int]]) -> None:
        try:
            await store.call(SampleStore.drop, keys)
        except Exception as error:  # a store that is gone holds nothing that could be dropped
            log.warning("%s: %d samples were not dropped: %s", store.name, len(keys), error)

    # --- starting, and starting again --------------------------------------------------------------

    async def _get_ready(self) -> None:
        path, session = self.spec.log_path, self.spec.session
        goes_on = last_session(path) == session
        self._log = EventLog(path)
        if goes_on:
            self._replay()
            self._counters["restarts"] += 1
            await self._take_stock()
        else:
            self._log.append("session", session=session, t_s=time.time())
            await self._runners.fence_all()
        self._runners.start()

    def _replay(self) -> None:
        """Become what the manager was when it wrote the last line of the log; do nothing."""
        for record in since_last_snapshot(self.spec.log_path):
            match record["kind"]:
                case "snapshot":
                    self._load(record["state"])
                case "events":
                    for event in events_of(record):
                        self._decide(event)
                case "fence":
                    self._fence()

    async def _take_stock(self) -> None:
        """Fence all that was open, find out which scored samples the stores still hold, launch the rest again."""
        await self._runners.fence_all()
        receipts = [
            r for held in await asyncio.gather(*map(self._inventory, self._stores.values())) for r in held
        ]
        running, now_s = self._ledger.running, time.time()
        found: list[Event] = [
            Scored(now_s, r.sample, r.attempt, r.reward, r.reason)
            for r in receipts
            if r.reward is not None and running.get(r.sample) == r.attempt
        ]
        self._handle("manager", 0, found)
        for receipt in receipts:
            self._ledger.took(receipt)
        actions = self._fence()
        self._log.append("fence", t_s=time.time(), actions=[to_record(action) for action in actions])
        self._runners.drop_placed()
        self._carry_out(actions)
        missing: list[Event] = [
            Failed(now_s, sample, attempt, "no store holds its tokens any more")
            for sample, attempt in self._ledger.scored.items()
            if sample not in self._ledger.receipts
        ]
        self._handle("manager", 0, missing)

    def _fence(self) -> list[Action]:
        actions = self._scheduler.restore(self._scheduler.state())
        self._ledger.owe_nothing()
        self._ledger.did(actions)
        return actions

    async def _inventory(self, store: Actor[SampleStore]) -> list[Receipt]:
        try:
            async with asyncio.timeout(INVENTORY_TIMEOUT_S):
                return await store.call(SampleStore.inventory)
        except Exception as error:  # a store that does not answer has lost what it held
            log.warning("%s has no inventory: %s", store.name, error)
            return []

    def _state(self) -> dict[str, Any]:
        return {"scheduler": self._scheduler.state(), "ledger": self._ledger.state()}

    def _load(self, state: Mapping[str, Any]) -> None:
        self._scheduler.load(state["scheduler"])
        self._ledger.load(state["ledger"])
