"""Tail batching (RollPacker, 2509.21009, section 3): long responses wait for a batch of their own.

A *short* round launches N = ceil(eta_prompts P) prompts x ceil(eta_responses R) responses, and its batch is the first P
prompts that are complete with their first R. The rest is aborted, and its prompts are deferred to the long queue. A
*long* round launches P deferred prompts x R responses, from scratch, and waits for all of them; it runs as soon as the
queue holds P. Nothing is dropped, and every token is trained under the weights that wrote it.

With several domains each has its share of every batch. A short round divides its P places as the N prompts offered are
divided, and carries what does not come out even over to the next; a domain whose places are full stops there and then.
A long round divides its P places as the queue is divided, first come first served within a domain, so it can run when
the queue holds P in all. A replacement stands in the place of the visit that it replaces, whatever its own domain.

Invariant. A batch is exactly P x R, validly scored and launched after its step began. Every visit ends exactly once as
trained, filtered, invalid or still deferred; attempts of a sample only rise, over deferrals too, and only the highest
is listened to. Visits that dynamic sampling filters are not deferred, unfinished ones are. The queue holds less than N.
Each short round defers N - P visits and each long round takes P, so that short : long = P : (N - P) in the long run.
With eta_prompts = eta_responses = 1 equal events give the actions of `Synchronous`.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, NamedTuple

from schedulers.protocol import Action, Defer, PromptsOffered, Visit
from schedulers.step_scheduler import StepScheduler
from schedulers.visit_filter import VisitFilter
from schedulers.visits import OpenVisit


class Deferred(NamedTuple):
    """A visit in the long queue; `attempt` is the number that its next launch gets."""

    visit: Visit
    domain: str
    attempt: int


@dataclass(slots=True)
class _Places:
    """A domain's share of the open step: `quota` of its visits go into the batch, `room` may be open at once."""

    quota: int
    room: int


class TailBatching(StepScheduler):
    """RollPacker's rollout scheduler. `keep` is dynamic sampling's rule.

    The first R of more responses are the short ones: `kept_tokens_mean` against `launched_tokens_mean` in the metrics
    says how far the batch is from what the policy writes (aborted responses count with what they had).
    """

    COUNTERS = (*StepScheduler.COUNTERS, "short_rounds", "long_rounds", "visits_deferred")

    def __init__(
        self,
        prompts_per_step: int,
        samples_per_prompt: int,
        eta_prompts: float,
        eta_responses: float,
        max_attempts: int = 3,
        keep: VisitFilter | None = None,
    ) -> None:
        super().__init__(prompts_per_step, samples_per_prompt, max_attempts, keep)
        self._prompts_launched = over_launched(prompts_per_step, eta_prompts)
        self._responses_launched = over_launched(samples_per_prompt, eta_responses)
        self._queue: list[Deferred] = []
        self._places: dict[str, _Places] = {}
        self._vacant: list[str] = []  # whose places the prompts asked for will take, in that order
        self._carried: dict[str, int] = {}  # what short rounds owe a domain, in places / N

    def prompts_wanted(self) -> int:
        """None for a long round, ceil(eta_prompts P) for a short one."""
        return 0 if len(self._queue) >= self.prompts_per_step else self._prompts_launched

    # --- a step ------------------------------------------------------------------------------------

    def _begin(self, event: PromptsOffered, actions: list[Action]) -> None:
        self._vacant = []
        if event.visits:
            self._begin_short(event, actions)
        else:
            self._begin_long(actions)

    def _begin_short(self, event: PromptsOffered, actions: list[Action]) -> None:
        self._counters["short_rounds"] += 1
        self._step.launched = self._responses_launched
        self._divide(event.domains)
        for visit, domain in zip(event.visits, event.domains, strict=True):
            self._open_or_defer(visit, domain, domain, actions)

    def _divide(self, domains: Sequence[str]) -> None:
        """The places of a round that launches more prompts than it trains, among the domains of those prompts."""
        offered, n = Counter(domains), len(domains)
        owed = {
            d: offered[d] * self.prompts_per_step + self._carried.get(d, 0)
            for d in {*offered, *self._carried}
        }
        quotas = shared_out(self.prompts_per_step, owed, n, offered)
        self._carried = {d: owed[d] - quotas[d] * n for d in sorted(owed) if owed[d] != quotas[d] * n}
        self._places = {d: _Places(quotas[d], offered[d] if quotas[d] else 0) for d in offered}

    def _begin_long(self, actions: list[Action]) -> None:
        self._counters["long_rounds"] += 1
        self._step.launched = self.samples_per_prompt
        waiting = Counter(deferred.domain for deferred in self._queue)
        owed = {d: waiting[d] * self.prompts_per_step for d in waiting}
        quotas = shared_out(self.prompts_per_step, owed, len(self._queue), waiting)
        self._places = {d: _Places(quota, quota) for d, quota in quotas.items()}
        queue, self._queue = self._queue, []
        for deferred in queue:
            visit, domain, attempt = deferred
            if self._step.visits.n_open[domain] < quotas[domain]:
                self._open_visit(visit, domain, domain, actions, attempt)
            else:
                self._queue.append(deferred)

    def _ended(self, ended: OpenVisit) -> None:
        self._vacant.append(ended.place)

    def _replace(self, visit: Visit, domain: str, actions: list[Action]) -> None:
        self._open_or_defer(visit, domain, self._vacant.pop(0), actions)

    def _open_or_defer(self, visit: Visit, domain: str, place: str, actions: list[Action]) -> None:
        if self._step.visits.n_open[place] < self._places[place].room:
            self._open_visit(visit, domain, place, actions)
        else:
            self._defer(Deferred(visit, domain, 0), actions)

    def _completed(self, visit: Visit, actions: list[Action]) -> None:
        visits = self._step.visits
        place = visits.by_id[visit].place
        places = self._places[place]
        if visits.n_complete[place] == places.quota:
            places.room = places.quota
            if visits.n_open[place] > places.quota:
                self._defer_unfinished(place, actions)
        self._cut_if_complete(actions)

    def _defer_unfinished(self, place: str, actions: list[Action]) -> None:
        visits = self._step.visits
        rest = [v for v, opened in visits.by_id.items() if opened.place == place and v not in visits.complete]
        for visit in rest:
            closed = self._close(visit, actions)
            attempt = max(response.attempt for response in closed.responses) + 1
            self._defer(Deferred(visit, closed.domain, attempt), actions)

    def _defer(self, deferred: Deferred, actions: list[Action]) -> None:
        self._queue.append(deferred)
        self._counters["visits_deferred"] += 1
        actions.append(Defer(deferred.visit, f"the batch of step {self._step.number} is full without it"))

    # --- state -------------------------------------------------------------------------------------

    def state(self) -> dict[str, Any]:
        return {
            **super().state(),
            "queue": [[*deferred.visit, deferred.domain, deferred.attempt] for deferred in self._queue],
            "places": {domain: [places.quota, places.room] for domain, places in self._places.items()},
            "vacant": list(self._vacant),
            "carried": dict(self._carried),
        }

    def load(self, state: Mapping[str, Any]) -> None:
        super().load(state)
        self._queue = [Deferred(Visit(prompt, number), d, a) for prompt, number, d, a in state["queue"]]
        self._places = {domain: _Places(*places) for domain, places in state["places"].items()}
        self._vacant = list(state["vacant"])
        self._carried = dict(state["carried"])

    def metrics(self) -> dict[str, float]:
        """Those of every scheduler, the length of the queue, and mean lengths of kept and of all responses."""
        counters = self._counters
        responses = counters["responses_generated"] + counters["responses_aborted"]
        tokens = counters["tokens_generated"] + counters["tokens_aborted"]
        return {
            **super().metrics(),
            "visits_queued": float(len(self._queue)),
            "kept_tokens_mean": counters["tokens_trained"] / max(1, counters["responses_trained"]),
            "launched_tokens_mean": tokens / max(1, responses),
        }


def over_launched(count: int, eta: float) -> int:
    """ceil(eta count), eta taken as it is written: 1.1 x 10 is 11. Raises ValueError for eta < 1."""
    if not eta >= 1:
        raise ValueError(f"eta={eta}: fewer than the batch needs cannot be launched; 1 is no over-launch")
    return math.ceil(Fraction(str(eta)) * count)


def shared_out(places: int, owed: Mapping[str, int], unit: int, at_most: Mapping[str, int]) -> dict[str, int]:
    """Whole places by domain, `places` in all: each goes to the domain that is owed most (ties: the first by name), and
    costs it `unit`. With debts that sum to `places` x `unit` this is the method of largest remainders."""
    quotas = dict.fromkeys(sorted(owed), 0)
    for _ in range(places):
        open_to = [d for d in quotas if quotas[d] < at_most.get(d, 0)]
        chosen = max(open_to, key=lambda d: owed[d] - quotas[d] * unit)
        quotas[chosen] += 1
    return quotas
