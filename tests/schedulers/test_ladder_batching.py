"""LadderBatching keeps its invariant under any order of events, duplicates, losses, crashes and resumes."""

from __future__ import annotations

import json
from collections import Counter
from random import Random

from hypothesis import given, settings
from hypothesis import strategies as st

from schedulers.events_log import from_record
from schedulers.ladder_batching import LadderBatching
from schedulers.protocol import Visit
from schedulers.visit_filter import VisitFilter
from tests.schedulers.world import World


def play(seed: int, steps: int) -> World:
    random = Random(seed)
    p, r, fault = random.randint(1, 4), random.randint(1, 3), random.choice([0.0, 0.1, 0.4])
    keep = random.choice([None, VisitFilter(max_batches=3)]) if r > 1 else None
    eta_p, eta_r = random.choice([1.0, 1.25, 1.5, 2.5]), random.choice([1.0, 1.5])
    world = World(
        lambda p, r, keep: LadderBatching(p, r, eta_p, eta_r, keep=keep),
        seed,
        p,
        r,
        fault,
        keep,
        n_domains=random.randint(1, 3),
    )
    world.play(steps)
    return world


@given(st.integers(0, 2**32))
@settings(max_examples=80, deadline=None)
def test_batches_are_exact_and_every_visit_ends_once_or_is_queued_under_any_order(seed: int) -> None:
    world = play(seed, steps=6)
    assert all(n == 1 for n in world.ended.values())
    counters, state = world.scheduler.metrics(), world.scheduler.state()
    queued = {Visit(prompt, n) for prompt, n, _, _ in state["queue"] + state["once"]}
    assert queued == world.deferred
    assert counters["visits_queued"] == len(queued)
    ended = sum(counters[f"visits_{how}"] for how in ("trained", "filtered", "invalid"))
    assert counters["visits_offered"] == ended + len(state["visits"]) + len(queued)
    if not world.stopped:
        assert len(world.trained) == 6 * world.p * world.r


@given(st.integers(0, 2**32))
@settings(max_examples=30, deadline=None)
def test_replaying_the_log_gives_the_same_actions_and_state(seed: int) -> None:
    world = play(seed, steps=4)
    scheduler, actions = world.make(world.p, world.r, world.keep), []
    for line in world.log:
        kind, data = json.loads(line)
        actions += scheduler.handle([from_record(data)]) if kind == "event" else scheduler.restore(data)
    assert actions == world.actions_seen
    assert scheduler.state() == world.scheduler.state()


def test_a_period_is_short_middle_and_long_rounds_in_the_ratio_of_what_each_defers() -> None:
    world = World(lambda p, r, keep: LadderBatching(p, r, 1.5, 1), 0, p=4, r=1, fault=0.0)
    world.play(9 * 4)
    counters: Counter[str] = Counter(world.scheduler.metrics())
    assert (counters["short_rounds"], counters["middle_rounds"], counters["long_rounds"]) == (24, 8, 4)
    assert counters["visits_queued"] == 0
