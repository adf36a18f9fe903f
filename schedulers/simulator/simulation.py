"""A training run in virtual time: the scheduler objects of a live run, driven through their events and actions.

Each step offers prompts, carries out what the scheduler answers on a fleet of simulated engines and reward pools until
it cuts the batch, then trains and publishes weights. Nothing is decided here.

Invariant. Every token that an engine generates is counted once, as trained or as wasted. Equal settings and seed give
equal records.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from heapq import heappop, heappush
from random import Random

from schedulers.protocol import (
    Abort,
    Aborted,
    Action,
    BatchTrained,
    CutBatch,
    Event,
    Generated,
    Launch,
    PromptsOffered,
    RequestPrompts,
    SampleId,
    Scheduler,
    Scored,
    Started,
    Stop,
    WeightsPublished,
)
from schedulers.simulator.engine import Boundary, Key, Request
from schedulers.simulator.fleet import Fleet, Totals
from schedulers.simulator.records import StepRecord, TracePoint
from schedulers.simulator.rewards import RewardPools, Scoring
from schedulers.simulator.streaming import Streaming
from schedulers.simulator.training import TrainingCosts
from schedulers.simulator.workload import Workload
from schedulers.tensor_parallel_planner import TensorParallelPlanner


class SimulationStopped(Exception):
    """The scheduler said `Stop`, or nothing can happen any more and no batch is cut."""


@dataclass(slots=True)
class _Open:
    """What the simulation knows of the step under way."""

    number: int
    starts_s: float
    cut: CutBatch | None = None
    cut_s: float = 0.0
    idle_s: float = 0.0
    launched: int = 0
    launched_tokens: int = 0
    lengths: dict[SampleId, int] = field(default_factory=dict)
    wasted: int = 0
    released_s: float | None = None


class Simulation:
    """Options beside the scheduler:

    `rewards_after_rollout` scores a batch once it is cut, as systems without asynchronous rewards do; the scheduler
    then takes every response for scored as soon as it is generated. With `streaming` complete prompts are trained
    during the rollout. With a `planner` the engines' degree follows it, and a switch takes `switch_s`.
    """

    def __init__(
        self,
        scheduler: Scheduler,
        workload: Workload,
        fleet: Fleet,
        rewards: RewardPools,
        training: TrainingCosts,
        *,
        prompts_per_step: int,
        samples_per_prompt: int,
        rewards_after_rollout: bool = False,
        streaming: Streaming | None = None,
        planner: TensorParallelPlanner | None = None,
        switch_s: float = 0.0,
        seed: int = 0,
        trace_resolution_s: float | None = None,
    ) -> None:
        self.scheduler, self.workload, self.fleet = scheduler, workload, fleet
        self.rewards, self.training = rewards, training
        self.records: list[StepRecord] = []
        self.trace: list[TracePoint] = []
        self.n_events = 0
        self._streaming = streaming
        self._planner, self._switch_s = planner, switch_s
        self._prompts_per_step, self._samples_per_prompt = prompts_per_step, samples_per_prompt
        self._rewards_after_rollout = rewards_after_rollout
        self._resolution_s = trace_resolution_s
        self._random = Random(seed)
        self._now_s = 0.0
        self._scores: list[tuple[float, int, Key, Scoring]] = []
        self._n_scores = 0
        self._open = _Open(-1, 0.0)
        if streaming is not None:
            streaming.engines_are(fleet.engines)
        self._attempts: dict[SampleId, int] = {}

    def run(self, steps: int) -> list[StepRecord]:
        """Simulate `steps` more steps; returns their records. Raises SimulationStopped."""
        first = len(self.records)
        for step in range(first, first + steps):
            self.records.append(self._step(step))
        return self.records[first:]

    def _step(self, number: int) -> StepRecord:
        self.workload.at_step(number)
        self.fleet.limit_tokens = self.workload.longest_tokens
        before, wanted = self.fleet.totals(), self.scheduler.prompts_wanted()
        self._open = _Open(number, self._now_s)
        if self._streaming is not None:
            n_responses = self._prompts_per_step * self._samples_per_prompt
            self._streaming.begin(n_responses, self.workload.longest_tokens)
        self._offer(wanted, starts_step=True)
        while self._open.cut is None:
            self._next()
        while self.fleet.next_s < math.inf:  # aborts take hold between engine steps
            self._next()
        record = self._close(_kind(wanted, self._prompts_per_step), before)
        self._now_s = record.ends_s
        self.fleet.bring_back()
        self._tell([WeightsPublished(self._now_s, number + 1), BatchTrained(self._now_s, number + 1)])
        self._plan_next(record)
        return record

    def _plan_next(self, record: StepRecord) -> None:
        if self._planner is None:
            return
        wanted = self._planner.round_ended(record.kind, record.preemptions, record.rollout_s)
        if wanted is not None:
            self.fleet.reshape(wanted.degree)
            if self._streaming is not None:
                self._streaming.engines_are(self.fleet.engines)
            self._now_s += self._switch_s
            self._planner.switched(self._switch_s)

    # --- what happens -----------------------------------------------------------------------------

    def _next(self) -> None:
        """The next thing that happens: an engine's boundary or a score."""
        wake_s, score_s = self.fleet.next_s, self._scores[0][0] if self._scores else math.inf
        if wake_s <= score_s:
            if wake_s == math.inf:
                raise SimulationStopped(f"step {self._open.number}: nothing can happen and no batch is cut")
            self._boundary(self.fleet.wake())
            return
        self._now_s, _, (sample, attempt), scoring = heappop(self._scores)
        task = self.workload.task(sample.visit.prompt_id)
        correct = not scoring.killed and self._random.random() < task.accuracy
        if correct:
            self.rewards.correct(task.domain, task.prompt_id, scoring)
        self._tell([Scored(self._now_s, sample, attempt, float(correct))])
        if self._streaming is not None and self._attempts.get(sample) == attempt and self._open.cut is None:
            n_tokens = self._open.lengths[sample]
            self._streaming.scored(self._now_s, sample, n_tokens, task.prompt_tokens)
            self._release(self._streaming)

    def _release(self, streaming: Streaming) -> None:
        action = streaming.decide(self._now_s, self.fleet.engines)
        if action is not None:
            streaming.released(self._now_s, self.fleet.release(self._now_s, action.engines))
            self._open.released_s = self._now_s

    def _boundary(self, boundary: Boundary) -> None:
        t_s, step = boundary.t_s, self._open
        self._now_s = t_s
        events: list[Event] = [Started(t_s, *request.key, step.number) for request in boundary.started]
        for request in boundary.ended:
            sample, attempt = request.key
            finish = "length" if request.length >= self.fleet.limit_tokens else "stop"
            events.append(Generated(t_s, sample, attempt, request.length, finish))
            step.wasted += step.lengths.get(sample, 0)  # of an earlier attempt
            step.lengths[sample] = request.length
            if self._streaming is not None:
                self._streaming.trigger.generated(request.length)
            self._hand_in(request.key, request.length)
        for request in boundary.removed:
            step.wasted += request.generated
            if self._streaming is not None:
                self._streaming.trigger.aborted(request.generated)
            events.append(Aborted(t_s, *request.key, request.generated))
        if self.fleet.busy_devices == 0:
            step.idle_s = t_s
        self._note(t_s)
        if events:
            self._tell(events)

    def _hand_in(self, key: Key, n_tokens: int) -> None:
        scoring = Scoring(self._now_s, 0.0, killed=False)
        if not self._rewards_after_rollout:
            scoring = self._score(self._now_s, key[0], n_tokens)
        self._n_scores += 1
        heappush(self._scores, (scoring.ready_s, self._n_scores, key, scoring))

    def _score(self, t_s: float, sample: SampleId, n_tokens: int) -> Scoring:
        task = self.workload.task(sample.visit.prompt_id)
        return self.rewards.score(t_s, task.domain, task.prompt_id, n_tokens)

    # --- events in, actions out -------------------------------------------------------------------

    def _tell(self, events: Sequence[Event]) -> None:
        self.n_events += len(events)
        self._carry_out(self.scheduler.handle(events))

    def _offer(self, count: int, starts_step: bool) -> None:
        taken = self.workload.take(count)
        visits, domains = tuple(v for v, _ in taken), tuple(d for _, d in taken)
        self._tell([PromptsOffered(self._now_s, self._open.number, visits, domains, starts_step)])

    def _carry_out(self, actions: Iterable[Action]) -> None:
        for action in actions:
            match action:
                case Launch():
                    self._launch(action)
                case Abort(samples):
                    for sample in samples:
                        attempt = self._attempts.get(sample)
                        if attempt is not None:
                            self.fleet.abort(self._now_s, (sample, attempt))
                case CutBatch():
                    self._open.cut, self._open.cut_s = action, self._now_s
                case RequestPrompts():
                    self._offer(action.count, starts_step=False)
                case Stop(reason):
                    raise SimulationStopped(reason)
                case _:
                    pass

    def _launch(self, action: Launch) -> None:
        lengths = self.workload.lengths(action.visit, action.attempt, max(action.sample_indices) + 1)
        prompt_tokens = self.workload.task(action.visit.prompt_id).prompt_tokens
        for index in action.sample_indices:
            sample = SampleId(action.visit, index)
            self._attempts[sample] = action.attempt
            self._open.launched += 1
            self._open.launched_tokens += lengths[index]
            self.fleet.submit(self._now_s, Request((sample, action.attempt), prompt_tokens, lengths[index]))

    # --- the end of a step ------------------------------------------------------------------------

    def _close(self, kind: str, before: Totals) -> StepRecord:
        step, after = self._open, self.fleet.totals()
        assert step.cut is not None
        samples = step.cut.samples
        kept = [step.lengths[sample] for sample in samples]
        trained = sum(kept)
        prompts = sum(self.workload.task(s.visit.prompt_id).prompt_tokens for s in samples)
        wasted = step.wasted + sum(step.lengths.values()) - trained
        ready_s = max(step.cut_s, step.idle_s)
        if self._rewards_after_rollout:
            ready_s = max(
                self._score(step.idle_s, sample, step.lengths[sample]).ready_s for sample in samples
            )
        streamed = self._streaming.tokens_done(ready_s) if self._streaming is not None else 0.0
        left = trained + prompts - streamed
        train_s = self.training.batch_s(left, self.fleet.devices) + self.training.fixed_s
        self._note(ready_s, training=self.fleet.devices)
        self._note(ready_s + train_s)
        self._attempts.clear()
        return StepRecord(
            step=step.number,
            kind=kind,
            degree=self.fleet.degree,
            starts_s=step.starts_s,
            rollout_s=step.idle_s - step.starts_s,
            reward_s=ready_s - step.idle_s,
            train_s=train_s,
            update_s=self.training.update_s,
            released_after_s=None if step.released_s is None else step.released_s - step.starts_s,
            generated=after.generated_tokens - before.generated_tokens,
            trained=trained,
            wasted=wasted,
            recomputed=after.recomputed_tokens - before.recomputed_tokens,
            preemptions=after.preemptions - before.preemptions,
            launched=step.launched,
            longest_trained=max(kept),
            kept_mean=trained / len(kept),
            launched_mean=step.launched_tokens / step.launched,
            busy_device_s=after.busy_device_s - before.busy_device_s,
            streamed_tokens=round(streamed),
        )

    def _note(self, t_s: float, training: int = 0) -> None:
        """A point of the trace, not more than one in `trace_resolution_s` unless devices change hands."""
        if self._resolution_s is None:
            return
        if self._streaming is not None and training == 0 and self.fleet.busy_devices:
            training = self._streaming.devices
        point = TracePoint(t_s, self.fleet.busy_devices, training, self.fleet.n_running)
        last = self.trace[-1] if self.trace else None
        if (
            last is None
            or t_s - last.t_s >= self._resolution_s
            or last.training_devices != training
            or (point.generating_devices == 0) != (last.generating_devices == 0)
        ):
            self.trace.append(point)


def _kind(prompts_wanted: int, prompts_per_step: int) -> str:
    """A step that begins with no prompts launches deferred ones: a long round; one with more than a batch is short."""
    if prompts_wanted == prompts_per_step:
        return "plain"
    return "long" if prompts_wanted == 0 else "short"
