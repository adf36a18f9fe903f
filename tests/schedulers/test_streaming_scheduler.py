"""Parts are disjoint, whole, and in the batch, under any order of events, duplicates, losses, crashes and resumes."""

from __future__ import annotations

import json
from random import Random

from hypothesis import given, settings
from hypothesis import strategies as st

from schedulers.events_log import from_record
from schedulers.protocol import (
    Abort,
    Action,
    CutBatch,
    CutPart,
    Failed,
    Generated,
    Launch,
    ReleaseEngines,
    SampleId,
    Scored,
    Started,
    Visit,
)
from schedulers.stream_trigger import EngineSeat, StreamTrigger
from schedulers.streaming_scheduler import StreamingScheduler
from schedulers.synchronous import Synchronous
from schedulers.tail_batching import TailBatching
from schedulers.visit_filter import VisitFilter
from tests.schedulers.world import World, offer


def streaming(rollout: Synchronous | TailBatching, kv_tokens: int = 10_000) -> StreamingScheduler:
    engines = [EngineSeat(f"e{i}", (i,), kv_tokens) for i in range(2)]
    return StreamingScheduler(
        rollout, StreamTrigger(engines, [[0], [1]], max_new_tokens=100), prompt_tokens=10
    )


class StreamingWorld(World):
    """Also checks the parts of each step."""

    parts: set[SampleId]
    saw_parts = 0

    def begin(self, step: int) -> None:
        self.parts, self.released = set(), False
        super().begin(step)

    def open_in_scheduler(self) -> set[Visit]:
        return set(self.scheduler.rollout._step.visits.by_id)

    def crash(self) -> None:
        self.told_before, self.parts, self.released = self.parts, set(), False
        super().crash()
        assert self.parts == self.told_before, "the parts are not said again"

    def take(self, actions: list[Action]) -> None:
        self.gives_up = any(type(a).__name__ == "Stop" for a in actions)
        for action in actions:
            match action:
                case ReleaseEngines(engines):
                    assert engines == ("e1",)
                    assert not self.released, "released twice"
                    self.released = True
                case CutPart(samples):
                    self.check_part(samples)
                case CutBatch(_, samples):
                    assert self.parts < set(samples)
        super().take(actions)

    def check_part(self, samples: tuple[SampleId, ...]) -> None:
        assert self.released
        assert self.cut is None
        assert samples
        assert list(samples) == sorted(samples)
        assert not self.parts & set(samples), "trained twice"
        assert all(self.good.get(s) == self.attempts[s] for s in samples)
        assert all(self.launched_in[s] == self.step for s in samples)
        per_visit = [sum(s.visit == v for s in samples) for v in {s.visit for s in samples}]
        assert set(per_visit) == {self.r}, "not whole"
        self.parts |= set(samples)
        self.saw_parts += 1

    def launch(self, visit: Visit, indices: tuple[int, ...], attempt: int) -> None:
        assert not self.parts & {SampleId(visit, i) for i in indices}
        super().launch(visit, indices, attempt)

    def stop_samples(self, samples: set[SampleId]) -> None:
        ended = {s for s in samples if self.ended[s.visit]}  # by `end`: the batch is trained
        assert self.gives_up or not self.parts & (samples - ended)
        super().stop_samples(samples)

    def lose(self) -> None:
        in_parts = sorted(self.parts & self.good.keys())
        if in_parts and self.random.random() < 0.5:
            sample, before = self.random.choice(in_parts), len(self.actions_seen)
            self.tell(Failed(0.0, sample, self.good[sample], "store lost"))
            assert len(self.actions_seen) == before, "a loss after training changes nothing"
        elif self.good.keys() - self.parts:
            super().lose()

    def losable(self) -> list[SampleId]:
        return sorted(self.good.keys() - self.parts)


def rollout_of(
    random: Random, p: int, r: int, keep: VisitFilter | None, eta: float
) -> Synchronous | TailBatching:
    return Synchronous(p, r, keep=keep) if eta == 0 else TailBatching(p, r, eta, eta, keep=keep)


def play(seed: int, steps: int = 3) -> tuple[StreamingWorld, float]:
    random = Random(seed)
    p, r, fault = random.randint(1, 6), random.randint(1, 3), random.choice([0.0, 0.1, 0.3, 0.6])
    keep = random.choice([None, VisitFilter(max_batches=3)]) if r > 1 else None
    eta, kv_tokens = random.choice([0, 1.0, 1.25, 2.0]), random.choice([300, 10_000])
    world = StreamingWorld(
        lambda p, r, keep: streaming(rollout_of(random, p, r, keep, eta), kv_tokens),  # type: ignore[arg-type,return-value]
        seed,
        p,
        r,
        fault,
        keep,
        n_domains=random.randint(1, 2),
    )
    world.play(steps)
    return world, eta


@given(st.integers(0, 2**32))
@settings(max_examples=300, deadline=None)
def test_parts_and_rest_are_exactly_the_batch_under_any_order(seed: int) -> None:
    world, _ = play(seed)
    assert all(n == 1 for n in world.ended.values())
    if not world.stopped:
        assert len(world.trained) == 3 * world.p * world.r


@given(st.integers(0, 2**32))
@settings(max_examples=60, deadline=None)
def test_replaying_the_log_gives_the_same_actions_and_state(seed: int) -> None:
    world, _ = play(seed)
    scheduler, actions = world.make(world.p, world.r, world.keep), list[Action]()
    for line in world.log:
        kind, data = json.loads(line)
        actions += scheduler.handle([from_record(data)]) if kind == "event" else scheduler.restore(data)
    assert actions == world.actions_seen


def test_random_worlds_do_cut_parts() -> None:
    assert sum(play(seed)[0].saw_parts > 0 for seed in range(50)) > 10


def scored(name: str, r: int, t_s: float = 1.0) -> list[Started | Generated | Scored]:
    ids = [SampleId(Visit(name, 0), i) for i in range(r)]
    return [
        e
        for s in ids
        for e in (Started(0.0, s, 0, 0), Generated(t_s, s, 0, 5, "stop"), Scored(t_s, s, 0, 1.0))
    ]


def test_engines_are_released_at_a_fifth_and_each_complete_prompt_is_a_part_but_the_last() -> None:
    scheduler = streaming(Synchronous(4, 2))
    scheduler.handle([offer(0, ["a", "b", "c", "d"])])
    a, b, c, d = ([SampleId(Visit(name, 0), i) for i in range(2)] for name in "abcd")
    assert scheduler.handle(scored("b", 2)) == [ReleaseEngines(("e1",)), CutPart(tuple(b))]
    assert scheduler.handle(scored("a", 2)) == [CutPart(tuple(a))]
    assert scheduler.handle(scored("d", 2)) == [CutPart(tuple(d))]
    assert scheduler.handle(scored("c", 2)) == [CutBatch(0, (*a, *b, *c, *d))]


def test_a_loss_of_what_is_in_a_part_is_ignored_and_of_what_is_not_launched_again() -> None:
    scheduler = streaming(Synchronous(4, 1))
    scheduler.handle([offer(0, ["a", "b", "c", "d"]), *scored("a", 1)])
    assert scheduler.handle([Failed(2.0, SampleId(Visit("a", 0), 0), 0, "store lost")]) == []
    lost = SampleId(Visit("b", 0), 0)
    assert scheduler.handle([Failed(2.0, lost, 0, "died")]) == [Launch(lost.visit, (0,), 1)]


def test_no_engine_is_released_where_what_remains_does_not_fit_the_others() -> None:
    scheduler = streaming(Synchronous(4, 2), kv_tokens=20)
    scheduler.handle([offer(0, ["a", "b", "c", "d"])])
    assert [*scheduler.handle(scored("a", 2)), *scheduler.handle(scored("b", 2))] == []


def test_tail_batching_streams_only_what_the_batch_will_hold() -> None:
    scheduler = streaming(TailBatching(2, 1, 2, 1))
    scheduler.handle([offer(0, ["a", "b", "c", "d"])])
    part = scheduler.handle(scored("c", 1))
    assert part == [ReleaseEngines(("e1",)), CutPart((SampleId(Visit("c", 0), 0),))]
    actions = scheduler.handle(scored("a", 1))
    assert not any(isinstance(a, CutPart) for a in actions)
    assert isinstance(actions[-1], CutBatch)
    assert {s for a in actions if isinstance(a, Abort) for s in a.samples}.isdisjoint(part[1].samples)
