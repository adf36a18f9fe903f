"""Synchronous rollout: launch P prompts x R responses, wait for all of them, cut the batch.

Invariant. Between a step's offer and its `BatchTrained`, each offered visit is in exactly one of four
states: open, trained, filtered, or invalid; it leaves the first once and for good. A batch that is cut holds P
visits with R samples each, each sample once, each validly scored under its highest attempt. Attempts of a
sample only rise, and only the highest one is listened to, so a result of any other is counted and ignored.
A sample is launched only while its visit is open. With a `VisitFilter` no visit of a batch is one that it
refuses.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from schedulers.protocol import (
    Abort,
    Aborted,
    Action,
    BatchTrained,
    CutBatch,
    Event,
    Failed,
    Generated,
    Launch,
    PromptsOffered,
    RequestPrompts,
    SampleId,
    Scored,
    Started,
    Stop,
    Visit,
)
from schedulers.visit_filter import VisitFilter

Phase = Literal["idle", "rollout", "cut", "stopped"]
_REASONS_NAMED = 3
_COUNTERS = (
    "launches",
    "retries",
    "relaunches_after_restore",
    "ignored_results",
    "lost_after_scoring",
    "visits_offered",
    "visits_trained",
    "visits_filtered",
    "visits_invalid",
    "wasted_tokens",
    "batches_cut",
    "batches_trained",
)


@dataclass(slots=True)
class _Response:
    """One of the R responses of an open visit."""

    attempt: int = 0
    failures: int = 0
    scored: bool = False
    n_tokens: int = 0
    reward: float = 0.0


@dataclass(slots=True)
class _Step:
    """What the open step knows. `in_cut` are the visits of the last batch cut, trained when it is; `reasons`
    are the last ones for which visits ended invalid, `filtered_because` the last of the filter."""

    number: int
    visits: dict[Visit, list[_Response]] = field(default_factory=dict)
    wanted: int = 0
    invalid: int = 0
    filtered: int = 0
    reasons: list[str] = field(default_factory=list)
    filtered_because: str = ""
    in_cut: set[Visit] = field(default_factory=set)


class Synchronous:
    """The baseline rollout scheduler, and what the others reduce to. `keep` is dynamic sampling's rule."""

    def __init__(
        self,
        prompts_per_step: int,
        samples_per_prompt: int,
        max_attempts: int = 3,
        keep: VisitFilter | None = None,
    ) -> None:
        self.prompts_per_step = prompts_per_step
        self.samples_per_prompt = samples_per_prompt
        self.max_attempts = max_attempts
        self.keep = keep
        self._phase: Phase = "idle"
        self._step = _Step(-1)
        self._n_unscored = 0
        self._counters = dict.fromkeys(_COUNTERS, 0)

    def prompts_wanted(self) -> int:
        """Every step begins with P prompts."""
        return self.prompts_per_step

    # --- events in, actions out ---------------------------------------------------------------

    def handle(self, events: Sequence[Event]) -> list[Action]:
        """Actions for the events, one event after the other: how they are batched changes nothing.

        Raises ValueError, and takes nothing in, for an offer that the open step has no place for.
        """
        actions: list[Action] = []
        for event in events:
            match event:
                case Started():
                    self._open(event.sample, event.attempt)
                case Generated():
                    response = self._open(event.sample, event.attempt)
                    if response is not None:
                        response.n_tokens = event.n_tokens
                case Scored():
                    self._scored(event, actions)
                case Failed():
                    self._failed(event.sample, event.attempt, event.reason, actions)
                case Aborted():
                    self._aborted(event, actions)
                case PromptsOffered():
                    self._offered(event, actions)
                case BatchTrained():
                    self._trained(actions)
                case _:
                    pass  # engines and clocks do not matter to it
        return actions

    def _current(self, sample: SampleId, attempt: int) -> _Response | None:
        """The response, if its visit is open and this is its attempt."""
        responses = self._step.visits.get(sample.visit)
        if responses is None or not 0 <= sample.index < len(responses):
            return None
        response = responses[sample.index]
        return response if response.attempt == attempt else None

    def _open(self, sample: SampleId, attempt: int) -> _Response | None:
        """The response, if this attempt is waited for; else the result is counted as ignored."""
        response = self._current(sample, attempt)
        if response is not None and not response.scored:
            return response
        self._counters["ignored_results"] += 1
        return None

    def _offered(self, event: PromptsOffered, actions: list[Action]) -> None:
        problem = self._problem_with(event)
        if problem:
            raise ValueError(
                f"Synchronous cannot take {len(event.visits)} visits of step {event.step}: {problem}"
            )
        if event.starts_step:
            self._step = _Step(event.step)
            self._phase = "rollout"
        else:
            self._step.wanted -= len(event.visits)
        for visit in event.visits:
            self._step.visits[visit] = [_Response() for _ in range(self.samples_per_prompt)]
            self._launch(visit, tuple(range(self.samples_per_prompt)), 0, actions)
        self._n_unscored += len(event.visits) * self.samples_per_prompt
        self._counters["visits_offered"] += len(event.visits)

    def _problem_with(self, event: PromptsOffered) -> str:
        if len(set(event.visits)) != len(event.visits):
            return "a visit is offered twice"
        if event.starts_step:
            if self._phase != "idle":
                return f"step {self._step.number} is not trained yet"
            if len(event.visits) != self.prompts_per_step:
                return f"a step takes {self.prompts_per_step}"
            return ""
        if self._phase != "rollout" or event.step != self._step.number:
            return f"step {self._step.number} is in phase {self._phase}"
        if any(visit in self._step.visits for visit in event.visits):
            return "a visit of this step is offered again"
        if len(event.visits) > self._step.wanted:
            return f"only {self._step.wanted} were asked for"
        return ""

    def _scored(self, event: Scored, actions: list[Action]) -> None:
        if event.reward is None or not math.isfinite(event.reward):
            reason = event.reason or f"the reward is {event.reward}"
            self._failed(event.sample, event.attempt, reason, actions)
            return
        response = self._open(event.sample, event.attempt)
        if response is None:
            return
        response.scored, response.reward = True, event.reward
        self._n_unscored -= 1
        self._filter_if_complete(event.sample.visit, actions)
        self._cut_if_complete(actions)

    def _filter_if_complete(self, visit: Visit, actions: list[Action]) -> None:
        responses = self._step.visits[visit]
        if self.keep is None or not all(r.scored for r in responses):
            return
        refused = self.keep.refuses([r.reward for r in responses])
        if not refused:
            return
        step = self._step
        step.filtered += 1
        step.filtered_because = f"{visit.prompt_id} (visit {visit.number}) is filtered: {refused}"
        self._close(visit, actions)
        self._counters["visits_filtered"] += 1
        if step.filtered > self.keep.max_batches * self.prompts_per_step:
            self._stop(actions)
            return
        step.wanted += 1
        actions.append(RequestPrompts(step.number, 1, step.filtered_because))

    def _failed(self, sample: SampleId, attempt: int, reason: str, actions: list[Action]) -> None:
        """A failed attempt, or the loss of a scored one's tokens: launched again, or the visit ends."""
        response = self._current(sample, attempt)
        if response is None:
            self._counters["ignored_results"] += 1
            return
        if response.scored:
            response.scored = False
            self._n_unscored += 1
            self._counters["lost_after_scoring"] += 1
            self._phase = "rollout"
        self._counters["wasted_tokens"] += response.n_tokens
        response.failures += 1
        if response.failures >= self.max_attempts:
            self._end_invalid(sample, reason, actions)
            return
        self._counters["retries"] += 1
        self._launch_next(sample.visit, (sample.index,), actions)

    def _aborted(self, event: Aborted, actions: list[Action]) -> None:
        """The answer to an `Abort`; if nobody asked for it, the attempt failed."""
        response = self._current(event.sample, event.attempt)
        if response is not None and not response.scored:
            response.n_tokens = event.n_tokens
            self._failed(event.sample, event.attempt, "aborted without being asked to", actions)
            return
        self._counters["wasted_tokens"] += event.n_tokens

    def _end_invalid(self, sample: SampleId, reason: str, actions: list[Action]) -> None:
        step = self._step
        step.invalid += 1
        step.reasons = [*step.reasons, f"{_name(sample)}: {reason}"][-_REASONS_NAMED:]
        self._close(sample.visit, actions, without=sample)
        self._counters["visits_invalid"] += 1
        if step.invalid > self.prompts_per_step:
            self._stop(actions)
            return
        step.wanted += 1
        actions.append(RequestPrompts(step.number, 1, step.reasons[-1]))

    def _stop(self, actions: list[Action]) -> None:
        step = self._step
        for visit in list(step.visits):
            self._close(visit, actions)
            self._counters["visits_invalid"] += 1
        self._phase = "stopped"
        actions.append(Stop(self._stop_reason()))

    def _stop_reason(self) -> str:
        step = self._step
        if self.keep is not None and step.filtered > self.keep.max_batches * self.prompts_per_step:
            return (
                f"step {step.number}: dynamic sampling filtered {step.filtered} visits, more than "
                f"{self.keep.max_batches} times the {self.prompts_per_step} prompts of a step: the data has "
                f"nothing to teach this model. The last one: {step.filtered_because}"
            )
        return (
            f"step {step.number}: {step.invalid} visits ended invalid, more than the {self.prompts_per_step} "
            f"prompts of a step. The last reasons: {'; '.join(step.reasons)}"
        )

    def _close(self, visit: Visit, actions: list[Action], without: SampleId | None = None) -> None:
        """The visit is over: its siblings, scored or not, are of no more use."""
        responses = self._step.visits.pop(visit)
        self._n_unscored -= sum(not r.scored for r in responses)
        self._counters["wasted_tokens"] += sum(r.n_tokens for r in responses if r.scored)
        samples = tuple(SampleId(visit, i) for i in range(len(responses)))
        samples = tuple(s for s in samples if s != without)
        if samples:
            actions.append(Abort(samples))

    def _cut_if_complete(self, actions: list[Action]) -> None:
        step = self._step
        if self._n_unscored or self._phase != "rollout" or len(step.visits) != self.prompts_per_step:
            return
        self._phase = "cut"
        step.in_cut = set(step.visits)
        self._counters["batches_cut"] += 1
        actions.append(self._cut())

    def _cut(self) -> CutBatch:
        samples = (
            SampleId(v, i) for v, responses in self._step.visits.items() for i in range(len(responses))
        )
        return CutBatch(self._step.number, tuple(sorted(samples)))

    def _trained(self, actions: list[Action]) -> None:
        """Closes the samples of the last cut. If a loss re-opened it meanwhile, the trainer had the tokens
        already: what was launched again in vain is aborted."""
        step = self._step
        if self._phase not in ("cut", "rollout") or not step.in_cut:
            self._counters["ignored_results"] += 1
            return
        for visit in list(step.visits):
            if visit not in step.in_cut:
                self._close(visit, actions)
                self._counters["visits_invalid"] += 1
        again = tuple(
            SampleId(v, i) for v, rs in step.visits.items() for i, r in enumerate(rs) if not r.scored
        )
        if again:
            actions.append(Abort(again))
        self._counters["visits_trained"] += len(step.visits)
        self._counters["batches_trained"] += 1
        self._step, self._phase, self._n_unscored = _Step(step.number), "idle", 0

    def _launch_next(self, visit: Visit, indices: tuple[int, ...], actions: list[Action]) -> None:
        responses = self._step.visits[visit]
        attempt = responses[indices[0]].attempt + 1
        for i in indices:
            responses[i].attempt, responses[i].n_tokens = attempt, 0
        self._launch(visit, indices, attempt, actions)

    def _launch(self, visit: Visit, indices: tuple[int, ...], attempt: int, actions: list[Action]) -> None:
        self._counters["launches"] += len(indices)
        actions.append(Launch(visit, indices, attempt))

    # --- state ---------------------------------------------------------------------------------

    def state(self) -> dict[str, Any]:
        step = self._step
        return {
            "phase": self._phase,
            "step": step.number,
            "wanted": step.wanted,
            "invalid": step.invalid,
            "reasons": list(step.reasons),
            "filtered": step.filtered,
            "filtered_because": step.filtered_because,
            "in_cut": [list(v) for v in sorted(step.in_cut)],
            "visits": [
                [*visit, [[r.attempt, r.failures, r.scored, r.n_tokens, r.reward] for r in responses]]
                for visit, responses in step.visits.items()
            ],
            "counters": dict(self._counters),
        }

    def load(self, state: Mapping[str, Any]) -> None:
        """Become exactly the scheduler that gave `state`; nothing is launched."""
        visits = {Visit(p, n): [_Response(*r) for r in responses] for p, n, responses in state["visits"]}
        in_cut = {Visit(*v) for v in state["in_cut"]}
        self._step = _Step(
            number=state["step"],
            visits=visits,
            wanted=state["wanted"],
            invalid=state["invalid"],
            filtered=state["filtered"],
            reasons=list(state["reasons"]),
            filtered_because=state["filtered_because"],
            in_cut=in_cut,
        )
        self._phase = state["phase"]
        self._n_unscored = sum(not r.scored for responses in visits.values() for r in responses)
        self._counters = {**dict.fromkeys(_COUNTERS, 0), **state["counters"]}

    def restore(self, state: Mapping[str, Any]) -> list[Action]:
        """Take over a state: launch again, as the next attempt, what was open in it, and say again what is
        still owed: prompts that were asked for, a cut that was not trained, a stop."""
        self.load(state)
        actions: list[Action] = []
        for visit, responses in self._step.visits.items():
            by_attempt: dict[int, list[int]] = {}
            for i, response in enumerate(responses):
                if not response.scored:
                    by_attempt.setdefault(response.attempt, []).append(i)
            for _, indices in sorted(by_attempt.items()):
                self._counters["relaunches_after_restore"] += len(indices)
                self._launch_next(visit, tuple(indices), actions)
        if self._step.wanted:
            reason = self._step.reasons[-1] if self._step.reasons else self._step.filtered_because
            actions.append(RequestPrompts(self._step.number, self._step.wanted, reason))
        if self._phase == "cut":
            actions.append(self._cut())
        if self._phase == "stopped":
            actions.append(Stop(self._stop_reason()))
        return actions

    def metrics(self) -> dict[str, float]:
        """Counters since the start, and what the open step waits for."""
        return {
            **{name: float(n) for name, n in self._counters.items()},
            "responses_open": float(self._n_unscored),
            "visits_open": float(len(self._step.visits)),
        }


def _name(sample: SampleId) -> str:
    return f"{sample.visit.prompt_id} (visit {sample.visit.number}), response {sample.index}"
