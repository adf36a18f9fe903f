"""Synchronous keeps its invariant under any order of events, duplicates, losses, crashes and resumes."""

from __future__ import annotations

import json
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from schedulers.events_log import from_record
from schedulers.protocol import (
    Abort,
    Action,
    BatchTrained,
    CutBatch,
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
from schedulers.synchronous import Synchronous
from schedulers.visit_filter import VisitFilter
from tests.schedulers.world import World, offer


def play(seed: int, steps: int = 3) -> World:
    random = Random(seed)
    p, r, fault = random.randint(1, 4), random.randint(1, 4), random.choice([0.0, 0.1, 0.3, 0.6])
    keep = random.choice([None, VisitFilter(max_batches=3)]) if r > 1 else None
    world = World(lambda p, r, keep: Synchronous(p, r, keep=keep), seed, p, r, fault, keep)
    world.play(steps)
    return world


@given(st.integers(0, 2**32))
@settings(max_examples=300, deadline=None)
def test_batches_are_exact_and_every_visit_ends_once_under_any_order(seed: int) -> None:
    world = play(seed)
    assert all(n == 1 for n in world.ended.values())
    counters = world.scheduler.metrics()
    open_now = len(world.scheduler.state()["visits"])
    ended = sum(counters[f"visits_{how}"] for how in ("trained", "filtered", "invalid"))
    assert counters["visits_offered"] == ended + open_now
    if not world.stopped:
        assert len(world.trained) == counters["batches_trained"] * world.p * world.r
        assert counters["batches_trained"] == 3


@given(st.integers(0, 2**32))
@settings(max_examples=60, deadline=None)
def test_replaying_the_log_gives_the_same_actions_and_state(seed: int) -> None:
    world = play(seed)
    scheduler, actions = Synchronous(world.p, world.r, keep=world.keep), []
    for line in world.log:
        kind, data = json.loads(line)
        if kind == "event":
            actions += scheduler.handle([from_record(data)])
        else:
            actions += scheduler.restore(data)
    assert actions == world.actions_seen
    assert scheduler.state() == world.scheduler.state()


def scored(names: list[str], r: int, attempt: int = 0) -> list[Event]:
    return [Scored(0.0, SampleId(Visit(p, 0), i), attempt, 1.0) for p in names for i in range(r)]


def test_a_lost_sample_of_the_cut_is_launched_again_and_the_batch_cut_again() -> None:
    scheduler = Synchronous(2, 2)
    scheduler.handle([offer(0, ["b", "a"])])
    (cut,) = scheduler.handle(scored(["b", "a"], 2))
    assert isinstance(cut, CutBatch)
    assert cut.samples[0].visit.prompt_id == "a"
    lost = SampleId(Visit("a", 0), 1)
    assert scheduler.handle([Failed(0.0, lost, 0, "store lost")]) == [Launch(lost.visit, (1,), 1)]
    assert scheduler.handle([Scored(0.0, lost, 0, 1.0)]) == []
    assert scheduler.handle([Scored(0.0, lost, 1, 1.0)]) == [cut]
    assert scheduler.handle([BatchTrained(0.0, 1)]) == []
    assert scheduler.handle([Failed(0.0, lost, 1, "store lost")]) == []


def test_training_of_a_cut_that_a_loss_re_opened_closes_it_and_aborts_the_relaunch() -> None:
    scheduler = Synchronous(1, 2)
    scheduler.handle([offer(0, ["a"]), *scored(["a"], 2)])
    lost = SampleId(Visit("a", 0), 0)
    scheduler.handle([Failed(0.0, lost, 0, "store lost")])
    assert scheduler.handle([BatchTrained(0.0, 1)]) == [Abort((lost,))]
    assert scheduler.handle([Scored(0.0, lost, 1, 1.0)]) == []
    assert scheduler.metrics()["visits_trained"] == 1


def test_three_failures_end_the_visit_and_ask_for_another() -> None:
    scheduler = Synchronous(1, 2)
    scheduler.handle([offer(4, ["a"])])
    sample = SampleId(Visit("a", 0), 0)
    assert scheduler.handle([Scored(0.0, sample, 0, None, "no")]) == [Launch(sample.visit, (0,), 1)]
    assert scheduler.handle([Failed(0.0, sample, 1, "no")]) == [Launch(sample.visit, (0,), 2)]
    abort, request = scheduler.handle([Failed(0.0, sample, 2, "worker died")])
    assert abort == Abort((SampleId(Visit("a", 0), 1),))
    assert request == RequestPrompts(4, 1, "a (visit 0), response 0: worker died")
    assert scheduler.handle([offer(4, ["c"], starts_step=False)]) == [Launch(Visit("c", 0), (0, 1), 0)]


def test_more_invalid_visits_than_prompts_stop_the_run_with_the_last_reasons() -> None:
    scheduler = Synchronous(1, 1)
    scheduler.handle([offer(0, ["a"])])
    actions: list[Action] = []
    for name in ("a", "b"):
        sample = SampleId(Visit(name, 0), 0)
        for attempt in range(3):
            actions = scheduler.handle([Failed(0.0, sample, attempt, f"{name} breaks")])
        if name == "a":
            scheduler.handle([offer(0, ["b"], starts_step=False)])
    (stop,) = actions
    assert isinstance(stop, Stop)
    assert "a breaks" in stop.reason
    assert "b breaks" in stop.reason


@pytest.mark.parametrize(
    ("event", "why"),
    [
        (offer(1, ["x", "y"]), "step 0 is not trained yet"),
        (offer(0, ["x"], starts_step=False), "only 0 were asked for"),
        (offer(0, ["a"], starts_step=False), "a visit of this step is offered again"),
        (offer(2, ["x"], starts_step=False), "step 0 is in phase rollout"),
        (offer(0, ["x", "x"], starts_step=False), "a visit is offered twice"),
    ],
)
def test_an_offer_without_a_place_is_refused_and_changes_nothing(event: PromptsOffered, why: str) -> None:
    scheduler = Synchronous(2, 1)
    scheduler.handle([offer(0, ["a", "b"])])
    before = scheduler.state()
    with pytest.raises(ValueError, match=why):
        scheduler.handle([event])
    assert scheduler.state() == before


def test_equal_events_give_equal_actions_however_they_are_batched() -> None:
    events = [offer(0, ["a", "b"]), Failed(0.0, SampleId(Visit("a", 0), 0), 0, "x")]
    events += scored(["b"], 2) + scored(["a"], 2, attempt=1) + scored(["a"], 2)
    whole, single = Synchronous(2, 2), Synchronous(2, 2)
    assert whole.handle(events) == [a for e in events for a in single.handle([e])]
    assert whole.state() == single.state()


def rewarded(name: str, *rewards: float) -> list[Event]:
    return [Scored(0.0, SampleId(Visit(name, 0), i), 0, reward) for i, reward in enumerate(rewards)]


def test_dynamic_sampling_replaces_a_prompt_whose_rewards_are_equal() -> None:
    scheduler = Synchronous(1, 2, keep=VisitFilter())
    scheduler.handle([offer(0, ["a"])])
    abort, request = scheduler.handle(rewarded("a", 1.0, 1.0))
    assert abort == Abort((SampleId(Visit("a", 0), 0), SampleId(Visit("a", 0), 1)))
    assert request == RequestPrompts(0, 1, "a (visit 0) is filtered: all 2 rewards are 1")
    scheduler.handle([offer(0, ["b"], starts_step=False)])
    (cut,) = scheduler.handle(rewarded("b", 0.0, 1.0))
    assert isinstance(cut, CutBatch)
    assert {s.visit.prompt_id for s in cut.samples} == {"b"}


def test_a_restored_scheduler_asks_again_for_what_the_filter_wanted() -> None:
    scheduler = Synchronous(1, 2, keep=VisitFilter())
    scheduler.handle([offer(0, ["a"]), *rewarded("a", 0.0, 0.0)])
    again = Synchronous(1, 2, keep=VisitFilter())
    assert again.restore(scheduler.state()) == [
        RequestPrompts(0, 1, "a (visit 0) is filtered: all 2 rewards are 0")
    ]


def test_a_step_that_filters_without_end_is_given_up_with_its_reason() -> None:
    scheduler = Synchronous(1, 2, keep=VisitFilter(max_batches=2))
    scheduler.handle([offer(0, ["a"])])
    actions: list[Action] = []
    for name, following in (("a", "b"), ("b", "c"), ("c", "")):
        actions = scheduler.handle(rewarded(name, 1.0, 1.0))
        if following:
            scheduler.handle([offer(0, [following], starts_step=False)])
    stop = actions[-1]
    assert isinstance(stop, Stop)
    assert "filtered 3 visits, more than 2 times the 1 prompts" in stop.reason
    assert "c (visit 0) is filtered: all 2 rewards are 1" in stop.reason


@pytest.mark.parametrize(
    ("rewards", "refused"),
    [
        ([0.0, 0.0], "all 2 rewards are 0"),
        ([0.0, 1.0], ""),
        ([0.0, 0.2], "the mean reward 0.1 is not above 0.1"),
        ([0.9, 1.0], "the mean reward 0.95 is not below 0.95"),
        ([0.0, 0.21], ""),
    ],
)
def test_the_difficulty_band_is_open_at_both_ends(rewards: list[float], refused: str) -> None:
    assert VisitFilter(mean_above=0.1, mean_below=0.95).refuses(rewards) == refused
