"""What the rollout manager knows beside the scheduler: which attempts run, where the scored samples lie, and
what is owed to the driver. A pure function of the events and actions, so a replay of the log rebuilds it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from roll_ray.receipts import Cut, Outcome, PromptsWanted, Receipt, Stopped
from schedulers.protocol import (
    Abort,
    Action,
    BatchTrained,
    CutBatch,
    Defer,
    Event,
    Failed,
    Launch,
    PromptsOffered,
    RequestPrompts,
    SampleId,
    Scored,
    Stop,
    Visit,
)


class Ledger:
    """`running` and `scored` map open samples to their attempt; `receipts` are those of scored samples. `visits` has
    the domain of each visit that is not over; the scheduler has `deferred` some of them."""

    def __init__(self) -> None:
        self.step = -1
        self.running: dict[SampleId, int] = {}
        self.scored: dict[SampleId, int] = {}
        self.receipts: dict[SampleId, Receipt] = {}
        self.visits: dict[Visit, str] = {}
        self.deferred: set[Visit] = set()
        self.garbage: list[Receipt] = []
        self.last_cut: tuple[SampleId, ...] = ()  # of the open step, even if a loss re-opened it
        self._verdicts: dict[str, float] = {}
        self.owe_nothing()

    def owe_nothing(self) -> None:
        """Before the scheduler says again what is owed."""
        self.wanted, self.wanted_why, self.stopped = 0, "", ""
        self.cut_stands = False

    # --- what happened -----------------------------------------------------------------------------

    def saw(self, event: Event) -> None:
        match event:
            case PromptsOffered():
                self.step = event.step
                self.visits.update(zip(event.visits, event.domains, strict=True))
                if not event.starts_step:
                    self.wanted = max(0, self.wanted - len(event.visits))
            case Scored(_, sample, attempt, reward):
                if self.running.get(sample) == attempt:
                    del self.running[sample]
                    self._count(sample, reward)
                    if reward is not None:
                        self.scored[sample] = attempt
            case Failed(_, sample, attempt):
                if self.running.get(sample) == attempt or self.scored.get(sample) == attempt:
                    self._close([sample])
            case BatchTrained():
                self._close(self.last_cut)
                self.last_cut, self.cut_stands = (), False
            case _:
                pass

    def did(self, actions: Iterable[Action]) -> None:
        for action in actions:
            match action:
                case Launch(visit, indices, attempt):
                    self.running.update((SampleId(visit, i), attempt) for i in indices)
                    self.deferred.discard(visit)
                case Abort(samples):
                    self._close(samples)
                case Defer(visit):
                    self.deferred.add(visit)
                case RequestPrompts(_, count, reason):
                    self.wanted, self.wanted_why = self.wanted + count, reason
                case CutBatch(_, samples):
                    self.last_cut, self.cut_stands = samples, True
                case Stop(reason):
                    self.stopped = reason
                case _:
                    pass

    def took(self, receipt: Receipt) -> None:
        """A receipt came in; if its sample is not wanted (any more), it is garbage."""
        if self.scored.get(receipt.sample) == receipt.attempt:
            self.receipts[receipt.sample] = receipt
        else:
            self.garbage.append(receipt)

    def _close(self, samples: Sequence[SampleId]) -> None:
        for sample in samples:
            self.running.pop(sample, None)
            self.scored.pop(sample, None)
            receipt = self.receipts.pop(sample, None)
            if receipt is not None:
                self.garbage.append(receipt)
        if self.cut_stands and not set(self.last_cut).isdisjoint(samples):
            self.cut_stands = False

    def visits_over(self) -> list[Visit]:
        """Visits that have neither a running nor a scored sample and are not deferred; this call forgets them."""
        live = {s.visit for s in self.running} | {s.visit for s in self.scored} | self.deferred
        over = sorted(self.visits.keys() - live)
        for visit in over:
            del self.visits[visit]
        return over

    def verdicts(self) -> dict[str, float]:
        """Responses scored so far, and how many of them invalid, by domain: `scored/maths`, `invalid/maths`.

        Counted since this process started: who wants a step's takes the difference."""
        return dict(self._verdicts)

    def _count(self, sample: SampleId, reward: float | None) -> None:
        domain = self.visits[sample.visit]
        for name, n in (("scored", 1), ("invalid", int(reward is None))):
            self._verdicts[f"{name}/{domain}"] = self._verdicts.get(f"{name}/{domain}", 0.0) + n

    # --- what is owed ------------------------------------------------------------------------------

    def owed(self) -> Outcome | None:
        """What the driver has to be told, until it acts on it."""
        if self.stopped:
            return Stopped(self.stopped)
        if self.wanted:
            return PromptsWanted(self.step, self.wanted, self.wanted_why)
        if self.cut_stands:
            return Cut(self.step, tuple(self.receipts[s] for s in self.last_cut))
        return None

    # --- plain data --------------------------------------------------------------------------------

    def state(self) -> dict[str, Any]:
        return {
            "step": self.step,
            "running": list(self.running.items()),
            "scored": list(self.scored.items()),
            "visits": [[*visit, domain] for visit, domain in sorted(self.visits.items())],
            "deferred": sorted(self.deferred),
            "wanted": self.wanted,
            "wanted_why": self.wanted_why,
            "stopped": self.stopped,
            "last_cut": self.last_cut,
            "cut_stands": self.cut_stands,
        }

    def load(self, state: Mapping[str, Any]) -> None:
        """The receipts are not part of the state: the stores have them."""
        self.step = state["step"]
        self.running = {_sample(s): n for s, n in state["running"]}
        self.scored = {_sample(s): n for s, n in state["scored"]}
        self.receipts, self.garbage = {}, []
        self.visits = {Visit(prompt_id, number): domain for prompt_id, number, domain in state["visits"]}
        self.deferred = {Visit(*v) for v in state["deferred"]}
        self.wanted, self.wanted_why = state["wanted"], state["wanted_why"]
        self.stopped = state["stopped"]
        self.last_cut = tuple(_sample(s) for s in state["last_cut"])
        self.cut_stands = state["cut_stands"]


def _sample(data: Any) -> SampleId:
    visit, index = data
    return SampleId(Visit(*visit), index)
