"""What schedulers have in common that cut one batch a step from the visits that were launched in it.

A visit is launched with at least R responses and is complete with the first R that are validly scored. As soon as R
that are not invalid have been generated, its other responses are aborted, before their rewards are known; if one of
the R then turns out invalid, it is launched again. A response that fails while at least R others are under way is not
missed. After `max_attempts` failures of one response the visit ends invalid and another prompt is asked for; one that
dynamic sampling filters is replaced the same way. The batch is cut with the first P complete visits.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

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
from schedulers.step import Step
from schedulers.visit_filter import VisitFilter
from schedulers.visits import OpenVisit, Response


class StepScheduler:
    """The base of `Synchronous` and `TailBatching`. `keep` is dynamic sampling's rule."""

    COUNTERS: ClassVar[tuple[str, ...]] = (
        "launches",
        "retries",
        "relaunches_after_restore",
        "ignored_results",
        "lost_after_scoring",
        "visits_offered",
        "visits_trained",
        "visits_filtered",
        "visits_invalid",
        "responses_generated",
        "responses_aborted",
        "responses_trained",
        "tokens_generated",
        "tokens_aborted",
        "tokens_trained",
        "wasted_tokens",
        "batches_cut",
        "batches_trained",
    )

    def __init__(
        self, prompts_per_step: int, samples_per_prompt: int, max_attempts: int, keep: VisitFilter | None
    ) -> None:
        self.prompts_per_step = prompts_per_step
        self.samples_per_prompt = samples_per_prompt
        self.max_attempts = max_attempts
        self.keep = keep
        self._step = Step(-1)
        self._counters = dict.fromkeys(self.COUNTERS, 0)

    # --- what a scheduler may change -------------------------------------------------------------

    def prompts_wanted(self) -> int:
        """How many prompts the next step begins with: P."""
        return self.prompts_per_step

    def _begin(self, event: PromptsOffered, actions: list[Action]) -> None:
        """The step that `event` starts is new: launch its first visits."""
        self._step.launched = self.samples_per_prompt
        for visit, domain in zip(event.visits, event.domains, strict=True):
            self._open_visit(visit, domain, domain, actions)

    def _replace(self, visit: Visit, domain: str, actions: list[Action]) -> None:
        """A prompt came that was asked for in the place of another."""
        self._open_visit(visit, domain, domain, actions)

    def _ended(self, ended: OpenVisit) -> None:
        """A visit ended without training, and a prompt is asked for in its place."""

    def _completed(self, visit: Visit, actions: list[Action]) -> None:
        """The visit is complete and passed the filter."""
        self._cut_if_complete(actions)

    @property
    def open_step(self) -> Step:
        """For who decides beside this scheduler; not to be changed."""
        return self._step

    # --- events in, actions out --------------------------------------------------------------------

    def handle(self, events: Sequence[Event]) -> list[Action]:
        """Actions for the events, one event after the other: how they are batched changes nothing.

        Raises ValueError, and takes nothing in, for an offer that the open step has no place for.
        """
        actions: list[Action] = []
        for event in events:
            match event:
                case Started():
                    self._expected(event.sample, event.attempt)
                case Generated():
                    self._generated(event, actions)
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
                    pass  # engines and clocks do not matter here
        return actions

    def _expected(self, sample: SampleId, attempt: int) -> Response | None:
        """The response, if this attempt is waited for; else the result is counted as ignored."""
        response = self._step.visits.listening(sample, attempt)
        if response is not None and response.state != "scored":
            return response
        self._counters["ignored_results"] += 1
        return None

    def _offered(self, event: PromptsOffered, actions: list[Action]) -> None:
        problem = self._step.problem_with(event, self.prompts_wanted())
        if problem:
            raise ValueError(
                f"{type(self).__name__} cannot take {len(event.visits)} visits of step {event.step}: {problem}"
            )
        self._counters["visits_offered"] += len(event.visits)
        if event.starts_step:
            self._step = Step(event.step, "rollout")
            self._begin(event, actions)
            return
        self._step.wanted -= len(event.visits)
        for visit, domain in zip(event.visits, event.domains, strict=True):
            self._replace(visit, domain, actions)

    def _open_visit(
        self, visit: Visit, domain: str, place: str, actions: list[Action], attempt: int = 0
    ) -> None:
        n = self._step.launched
        self._step.visits.open(visit, OpenVisit(domain, place, [Response(attempt) for _ in range(n)]))
        self._launch(visit, tuple(range(n)), attempt, actions)

    def _generated(self, event: Generated, actions: list[Action]) -> None:
        response = self._expected(event.sample, event.attempt)
        if response is None:
            return
        if response.state == "running":
            self._count_generated(1, event.n_tokens)
        response.state, response.n_tokens = "generated", event.n_tokens
        self._abort_surplus(event.sample.visit, actions)

    def _abort_surplus(self, visit: Visit, actions: list[Action]) -> None:
        opened = self._step.visits.by_id[visit]
        running = opened.indices("running")
        if running and opened.count("generated", "scored") >= self.samples_per_prompt:
            for i in running:
                opened.responses[i].state = "out"
            actions.append(Abort(tuple(SampleId(visit, i) for i in running)))

    def _scored(self, event: Scored, actions: list[Action]) -> None:
        if event.reward is None or not math.isfinite(event.reward):
            reason = event.reason or f"the reward is {event.reward}"
            self._failed(event.sample, event.attempt, reason, actions)
            return
        response = self._expected(event.sample, event.attempt)
        if response is None:
            return
        response.state, response.reward = "scored", event.reward
        visit = event.sample.visit
        self._abort_surplus(visit, actions)
        if self._step.visits.by_id[visit].count("scored") < self.samples_per_prompt:
            return
        if self._filter(visit, actions):
            return
        self._step.visits.completed(visit)
        self._completed(visit, actions)

    def _filter(self, visit: Visit, actions: list[Action]) -> bool:
        """Whether dynamic sampling refuses the visit, which is then closed."""
        step = self._step
        refused = self.keep.refuses(step.visits.by_id[visit].rewards()) if self.keep is not None else ""
        if self.keep is None or not refused:
            return False
        step.note_filtered(visit, refused)
        ended = self._close(visit, actions)
        self._counters["visits_filtered"] += 1
        if step.filtered > self.keep.max_batches * self.prompts_per_step:
            self._stop(actions)
        else:
            self._ask_for_another(ended, step.filtered_because, actions)
        return True

    def _ask_for_another(self, ended: OpenVisit, reason: str, actions: list[Action]) -> None:
        self._step.wanted += 1
        self._ended(ended)
        actions.append(RequestPrompts(self._step.number, 1, reason))

    def _failed(self, sample: SampleId, attempt: int, reason: str, actions: list[Action]) -> None:
        """A failed attempt, or the loss of a scored one's tokens: launched again if its siblings do not suffice, or
        the visit ends."""
        visits = self._step.visits
        response = visits.listening(sample, attempt)
        if response is None:
            self._counters["ignored_results"] += 1
            return
        if response.state == "scored":
            visits.reopen(sample.visit)
            self._counters["lost_after_scoring"] += 1
            self._step.phase = "rollout"
        self._counters["wasted_tokens"] += response.n_tokens
        response.failures += 1
        response.state = "out"
        if response.failures >= self.max_attempts:
            self._end_invalid(sample, reason, actions)
        elif visits.by_id[sample.visit].count("running", "generated", "scored") < self.samples_per_prompt:
            self._counters["retries"] += 1
            self._launch_next(sample.visit, (sample.index,), actions)

    def _aborted(self, event: Aborted, actions: list[Action]) -> None:
        """The answer to an `Abort`; if nobody asked for it, the attempt failed."""
        response = self._step.visits.listening(event.sample, event.attempt)
        if response is not None and response.state != "scored":
            response.n_tokens = event.n_tokens
            self._failed(event.sample, event.attempt, "aborted without being asked to", actions)
            return
        self._counters["responses_aborted"] += 1
        self._counters["tokens_aborted"] += event.n_tokens
        self._counters["wasted_tokens"] += event.n_tokens

    def _end_invalid(self, sample: SampleId, reason: str, actions: list[Action]) -> None:
        step = self._step
        step.note_invalid(sample, reason)
        ended = self._close(sample.visit, actions)
        self._counters["visits_invalid"] += 1
        if step.invalid > self.prompts_per_step:
            self._stop(actions)
        else:
            self._ask_for_another(ended, step.reasons[-1], actions)

    def _stop(self, actions: list[Action]) -> None:
        for visit in list(self._step.visits.by_id):
            self._close(visit, actions)
            self._counters["visits_invalid"] += 1
        self._step.phase = "stopped"
        actions.append(Stop(self._step.why_stopped(self.prompts_per_step, self.keep)))

    def _close(self, visit: Visit, actions: list[Action]) -> OpenVisit:
        """The visit is over, here and now: its responses, scored or not, are of no more use."""
        closed = self._step.visits.close(visit)
        for response in closed.responses:
            if response.state == "scored":
                self._counters["wasted_tokens"] += response.n_tokens
            elif response.state == "generated":  # it is counted when its `Aborted` comes
                self._count_generated(-1, -response.n_tokens)
        samples = tuple(SampleId(visit, i) for i in closed.indices("running", "generated", "scored"))
        if samples:
            actions.append(Abort(samples))
        return closed

    def _count_generated(self, n_responses: int, n_tokens: int) -> None:
        self._counters["responses_generated"] += n_responses
        self._counters["tokens_generated"] += n_tokens

    def _cut_if_complete(self, actions: list[Action]) -> None:
        step = self._step
        if self._step.phase == "rollout" and len(step.visits.complete) == self.prompts_per_step:
            self._step.phase = "cut"
            step.in_cut = set(step.visits.complete)
            self._counters["batches_cut"] += 1
            actions.append(self._cut())

    def _cut(self) -> CutBatch:
        return CutBatch(self._step.number, tuple(sorted(self._step.visits.samples("scored"))))

    def _trained(self, actions: list[Action]) -> None:
        """Closes the samples of the last cut. If a loss re-opened it meanwhile, the trainer had the tokens
        already: what was launched again in vain is aborted."""
        step = self._step
        if self._step.phase not in ("cut", "rollout") or not step.in_cut:
            self._counters["ignored_results"] += 1
            return
        for visit in list(step.visits.by_id):
            if visit not in step.in_cut:
                self._close(visit, actions)
                self._counters["visits_invalid"] += 1
        again = step.visits.samples("running", "generated")
        if again:
            actions.append(Abort(again))
        for opened in step.visits.by_id.values():
            self._counters["responses_trained"] += self.samples_per_prompt
            self._counters["tokens_trained"] += opened.scored_tokens()
        self._counters["visits_trained"] += len(step.visits)
        self._counters["batches_trained"] += 1
        self._step = Step(step.number)

    def _launch_next(self, visit: Visit, indices: tuple[int, ...], actions: list[Action]) -> None:
        responses = self._step.visits.by_id[visit].responses
        attempt = responses[indices[0]].attempt + 1
        for i in indices:
            responses[i].attempt, responses[i].n_tokens, responses[i].state = attempt, 0, "running"
        self._launch(visit, indices, attempt, actions)

    def _launch(self, visit: Visit, indices: tuple[int, ...], attempt: int, actions: list[Action]) -> None:
        self._counters["launches"] += len(indices)
        actions.append(Launch(visit, indices, attempt))

    # --- state -------------------------------------------------------------------------------------

    def state(self) -> dict[str, Any]:
        return {**self._step.state(), "counters": dict(self._counters)}

    def load(self, state: Mapping[str, Any]) -> None:
        """Become exactly the scheduler that gave `state`; nothing is launched."""
        self._step = Step.of(state)
        self._counters = {**dict.fromkeys(self.COUNTERS, 0), **state["counters"]}

    def restore(self, state: Mapping[str, Any]) -> list[Action]:
        """Take over a state: launch again, as the next attempt, what was open in it, and say again what is
        still owed: prompts that were asked for, a cut that was not trained, a stop."""
        self.load(state)
        actions: list[Action] = []
        for visit, opened in self._step.visits.by_id.items():
            for indices in opened.unscored_by_attempt():
                self._counters["relaunches_after_restore"] += len(indices)
                self._launch_next(visit, indices, actions)
        if self._step.wanted:
            actions.append(RequestPrompts(self._step.number, self._step.wanted, self._step.why_wanted()))
        if self._step.phase == "cut":
            actions.append(self._cut())
        if self._step.phase == "stopped":
            actions.append(Stop(self._step.why_stopped(self.prompts_per_step, self.keep)))
        return actions

    def metrics(self) -> dict[str, float]:
        """Counters since the start, and what the open step waits for."""
        visits = self._step.visits
        return {
            **{name: float(n) for name, n in self._counters.items()},
            "responses_open": float(len(visits.samples("running", "generated"))),
            "visits_open": float(len(visits)),
        }
