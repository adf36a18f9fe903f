"""A world that carries a step scheduler's actions out at random, with faults, crashes, losses and late results, and
checks after each action what every such scheduler promises."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from random import Random
from typing import Any

from schedulers.events_log import to_record
from schedulers.protocol import (
    Abort,
    Aborted,
    Action,
    BatchTrained,
    CutBatch,
    Defer,
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
from schedulers.step_scheduler import StepScheduler
from schedulers.visit_filter import VisitFilter

Make = Callable[[int, int, VisitFilter | None], StepScheduler]


def offer(
    step: int, prompts: list[str], starts_step: bool = True, number: int = 0, domains: tuple[str, ...] = ()
) -> PromptsOffered:
    visits = tuple(Visit(p, number) for p in prompts)
    return PromptsOffered(0.0, step, visits, domains or ("d",) * len(visits), starts_step)


class World:
    """`make` builds the scheduler for P, R and a filter."""

    def __init__(
        self,
        make: Make,
        seed: int,
        p: int,
        r: int,
        fault: float,
        keep: VisitFilter | None = None,
        n_domains: int = 1,
    ) -> None:
        self.random, self.p, self.r, self.fault, self.keep = Random(seed), p, r, fault, keep
        self.make, self.n_domains = make, n_domains
        self.scheduler = make(p, r, keep)
        self.log: list[Any] = []  # events and state-changing calls, as JSON text
        self.actions_seen: list[Action] = []
        self.step = -1
        self.running: list[tuple[SampleId, int]] = []
        self.generated: set[tuple[SampleId, int]] = set()
        self.closed_results: list[Event] = []  # results to deliver again, late
        self.attempts: dict[SampleId, int] = {}
        self.launched_in: dict[SampleId, int] = {}  # the step of the last launch
        self.good: dict[SampleId, int] = {}  # validly scored: attempt
        self.rewards: dict[SampleId, float] = {}
        self.ended: Counter[Visit] = Counter()
        self.open: set[Visit] = set()
        self.deferred: set[Visit] = set()
        self.domain_of: dict[Visit, str] = {}
        self.wanted = 0
        self.cut: CutBatch | None = None
        self.stopped = False
        self.visits_made = 0
        self.trained: set[SampleId] = set()

    # -- what happens --

    def tell(self, *events: Event) -> None:
        self.log += [json.dumps(["event", to_record(e)]) for e in events]
        self.take(self.scheduler.handle(events))

    def crash(self) -> None:
        """A new object takes over the state, after a trip through JSON."""
        state = json.loads(json.dumps(self.scheduler.state()))
        self.log.append(json.dumps(["restore", state]))
        self.closed_results += [Scored(0.0, s, a, 1.0) for s, a in self.running]
        self.running, self.wanted, self.cut = [], 0, None
        self.generated.clear()
        self.scheduler = self.make(self.p, self.r, self.keep)
        self.take(self.scheduler.restore(state))

    def draw(self, n: int, starts_step: bool) -> PromptsOffered:
        visits = [Visit(f"p{self.visits_made + i}", 0) for i in range(n)]
        self.visits_made += n
        self.domain_of |= {v: f"d{self.random.randrange(self.n_domains)}" for v in visits}
        domains = tuple(self.domain_of[v] for v in visits)
        return PromptsOffered(0.0, self.step, tuple(visits), domains, starts_step)

    def begin(self, step: int) -> None:
        self.step = step
        event = self.draw(self.scheduler.prompts_wanted(), starts_step=True)
        self.open |= set(event.visits)
        self.tell(event)

    def replace(self) -> None:
        count = self.random.randint(1, self.wanted)
        self.wanted -= count
        event = self.draw(count, starts_step=False)
        self.open |= set(event.visits)
        self.tell(event)

    def result(self) -> None:
        """Something happens to an attempt that runs: it ends, or it is generated and waits for its reward."""
        at = self.random.randrange(len(self.running))
        sample, attempt = self.running[at]
        n = self.random.randint(0, 9)
        generated = Generated(0.0, sample, attempt, n, "stop")
        if (sample, attempt) not in self.generated and self.random.random() < 0.4:
            self.generated.add((sample, attempt))
            self.tell(Started(0.0, sample, attempt, 0), generated)
            return
        del self.running[at]
        event = (
            self.bad(sample, attempt, n) if self.random.random() < self.fault else self.fine(sample, attempt)
        )
        self.closed_results.append(event)
        both = (sample, attempt) not in self.generated and self.random.random() < 0.8
        self.tell(*([generated] if both else []), event)

    def bad(self, sample: SampleId, attempt: int, n: int) -> Event:
        return self.random.choice(
            [
                Failed(0.0, sample, attempt, "died"),
                Scored(0.0, sample, attempt, None, "verifier"),
                Scored(0.0, sample, attempt, float("nan")),
                Aborted(0.0, sample, attempt, n),
            ]
        )

    def fine(self, sample: SampleId, attempt: int) -> Event:
        reward = float(self.random.random() < 0.5) if self.keep else self.random.random()
        self.good[sample], self.rewards[sample] = attempt, reward
        return Scored(0.0, sample, attempt, reward)

    def late_duplicate(self) -> None:
        """A result that is no longer waited for changes nothing and gives no action."""
        event = self.random.choice(self.closed_results)
        current = self.attempts.get(event.sample) == event.attempt and event.sample.visit in self.open
        if current and not isinstance(event, Scored):
            return  # a failure of the highest attempt is news, not a duplicate
        if current and event.sample not in self.good:
            return
        before = len(self.actions_seen)
        self.tell(event)
        assert len(self.actions_seen) == before

    def lose(self) -> None:
        """A store dies: a scored sample's tokens are gone."""
        sample = self.random.choice(self.losable())
        attempt = self.good.pop(sample)
        self.cut = None
        self.tell(Failed(0.0, sample, attempt, "store lost"))

    def losable(self) -> list[SampleId]:
        return sorted(self.good)

    # -- what the scheduler said --

    def take(self, actions: list[Action]) -> None:
        for action in actions:
            self.actions_seen.append(action)
            match action:
                case Launch(visit, indices, attempt):
                    self.launch(visit, indices, attempt)
                case Abort(samples):
                    assert len({s.visit for s in samples}) == 1
                    self.stop_samples(set(samples))
                case Defer(visit, reason):
                    assert reason
                    assert visit in self.open
                    assert not any(s.visit == visit for s, _ in self.running), "deferred and running"
                    self.open.discard(visit)
                    self.deferred.add(visit)
                case RequestPrompts(_, count, reason):
                    assert reason
                    self.wanted += count
                case CutBatch():
                    self.check(action)
                    self.cut = action
                case Stop(reason):
                    assert reason
                    self.stopped = True
        self.forget_ended()

    def launch(self, visit: Visit, indices: tuple[int, ...], attempt: int) -> None:
        if visit in self.deferred:
            self.deferred.discard(visit)
            self.open.add(visit)
        assert visit in self.open, "launch of a closed visit"
        for i in indices:
            sample = SampleId(visit, i)
            assert attempt > self.attempts.get(sample, -1), "attempts must rise"
            assert sample not in self.good, "launch of a scored sample"
            self.attempts[sample], self.launched_in[sample] = attempt, self.step
            self.running.append((sample, attempt))

    def stop_samples(self, samples: set[SampleId]) -> None:
        stopped = [(s, a) for s, a in self.running if s in samples]
        self.closed_results += [Scored(0.0, s, a, 1.0) for s, a in stopped]
        self.running = [pair for pair in self.running if pair not in stopped]
        for sample in samples:
            self.good.pop(sample, None)

    def check(self, cut: CutBatch) -> None:
        assert self.cut is None, "cut twice"
        samples = cut.samples
        assert len(samples) == self.p * self.r == len(set(samples))
        assert set(Counter(s.visit for s in samples).values()) == {self.r}
        assert list(samples) == sorted(samples)
        assert all(self.good.get(s) == self.attempts[s] for s in samples)
        assert all(self.launched_in[s] == self.step == cut.step for s in samples), "tokens of older weights"
        assert not {s.visit for s in samples} & {s.visit for s in self.trained}, "trained twice"
        for visit in {s.visit for s in samples} if self.keep else ():
            rewards = {self.rewards[s] for s in samples if s.visit == visit}
            assert len(rewards) > 1, "a visit that the filter refuses"

    def end(self, visit: Visit) -> None:
        self.open.discard(visit)
        self.ended[visit] += 1
        self.stop_samples(
            {s for s in self.good if s.visit == visit} | {s for s, _ in self.running if s.visit == visit}
        )

    def forget_ended(self) -> None:
        """A visit that is neither open in the scheduler nor deferred has ended."""
        for visit in self.open - self.open_in_scheduler():
            self.end(visit)

    def open_in_scheduler(self) -> set[Visit]:
        return set(self.scheduler._step.visits.by_id)

    def train(self) -> None:
        assert self.cut is not None
        self.trained |= set(self.cut.samples)
        self.cut = None
        self.tell(BatchTrained(0.0, len(self.log)))

    def play(self, steps: int) -> None:
        """`steps` steps, or until the scheduler stops."""
        for step in range(self.step + 1, self.step + 1 + steps):
            self.begin(step)
            while self.cut is None or self.wanted or self.random.random() < 0.3:
                if self.stopped:
                    return
                self.something_happens()
            self.train()

    def something_happens(self) -> None:
        dice = self.random.random()
        if dice < 0.04:
            self.crash()
        elif dice < 0.07 and self.good:
            self.lose()
        elif dice < 0.15 and self.closed_results:
            self.late_duplicate()
        elif self.wanted and dice < 0.5:
            self.replace()
        elif self.running:
            self.result()
        else:
            assert self.wanted or self.cut or self.stopped, "waits for nothing"
