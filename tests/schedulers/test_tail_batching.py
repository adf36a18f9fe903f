"""TailBatching keeps its invariant under any order of events, duplicates, losses, crashes and resumes."""

from __future__ import annotations

import json
from collections import Counter
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from schedulers.events_log import from_record
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
    RequestPrompts,
    SampleId,
    Scored,
    Visit,
)
from schedulers.synchronous import Synchronous
from schedulers.tail_batching import TailBatching, over_launched, shared_out
from schedulers.visit_filter import VisitFilter
from tests.schedulers import test_synchronous
from tests.schedulers.world import World, offer

ETAS = [1.0, 1.1, 1.25, 1.5, 2.5]


def play(seed: int, steps: int = 4) -> World:
    random = Random(seed)
    p, r, fault = random.randint(1, 4), random.randint(1, 3), random.choice([0.0, 0.1, 0.3, 0.6])
    keep = random.choice([None, VisitFilter(max_batches=3)]) if r > 1 else None
    eta_p, eta_r = random.choice(ETAS), random.choice(ETAS)
    world = World(
        lambda p, r, keep: TailBatching(p, r, eta_p, eta_r, keep=keep),
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
@settings(max_examples=200, deadline=None)
def test_batches_are_exact_and_every_visit_ends_once_or_is_queued_under_any_order(seed: int) -> None:
    world = play(seed)
    assert all(n == 1 for n in world.ended.values())
    assert not set(world.ended) & world.deferred
    counters, state = world.scheduler.metrics(), world.scheduler.state()
    assert {Visit(p, n) for p, n, _, _ in state["queue"]} == world.deferred
    ended = sum(counters[f"visits_{how}"] for how in ("trained", "filtered", "invalid"))
    assert (
        counters["visits_offered"] == ended + len(state["visits"]) + len(world.deferred) == world.visits_made
    )
    if not world.stopped:
        assert len(world.trained) == counters["batches_trained"] * world.p * world.r
        assert counters["batches_trained"] == 4


@given(st.integers(0, 2**32))
@settings(max_examples=60, deadline=None)
def test_replaying_the_log_gives_the_same_actions_and_state(seed: int) -> None:
    world = play(seed, steps=3)
    scheduler, actions = world.make(world.p, world.r, world.keep), []
    for line in world.log:
        kind, data = json.loads(line)
        if kind == "event":
            actions += scheduler.handle([from_record(data)])
        else:
            actions += scheduler.restore(data)
    assert actions == world.actions_seen
    assert scheduler.state() == world.scheduler.state()


@given(st.integers(0, 2**32))
@settings(max_examples=100, deadline=None)
def test_without_over_launch_equal_events_give_the_actions_of_synchronous(seed: int) -> None:
    """The world's story with Synchronous, crashes included, is told to TailBatching with eta 1."""
    world = test_synchronous.play(seed)
    scheduler, actions = TailBatching(world.p, world.r, 1, 1, keep=world.keep), list[Action]()
    for line in world.log:
        kind, data = json.loads(line)
        if kind == "event":
            event = from_record(data)
            assert scheduler.prompts_wanted() == world.p
            actions += scheduler.handle([event])
        else:
            actions += scheduler.restore(json.loads(json.dumps(scheduler.state())))
    assert actions == world.actions_seen
    assert scheduler.metrics().items() >= world.scheduler.metrics().items()


@given(st.integers(0, 2**32))
@settings(max_examples=40, deadline=None)
def test_the_queue_is_bounded_and_long_rounds_come_as_often_as_visits_are_deferred(seed: int) -> None:
    random = Random(seed)
    p, eta, n_domains = random.randint(1, 8), random.choice([1.1, 1.25, 1.5, 2.0, 3.0]), random.randint(1, 3)
    n = over_launched(p, eta)
    world = World(lambda p, r, keep: TailBatching(p, r, eta, 2), seed, p, 1, 0.2, n_domains=n_domains)
    rounds: Counter[str] = Counter()
    for step in range(16):
        kind = "short" if world.scheduler.prompts_wanted() else "long"
        before = len(world.deferred)
        world.play(1)
        if world.stopped:
            return
        assert step == world.step
        rounds[kind] += 1
        assert len(world.deferred) - before == (n - p if kind == "short" else -p)
        assert len(world.deferred) < n
    assert abs(rounds["short"] * (n - p) - rounds["long"] * p) < n


@given(st.integers(0, 2**32))
@settings(max_examples=40, deadline=None)
def test_each_domain_has_its_share_of_every_short_batch_and_of_the_queue(seed: int) -> None:
    """However much sooner one domain's responses end, it is trained as often as it is drawn."""
    random = Random(seed)
    scheduler = TailBatching(4, 1, 1.5, 1)
    drawn, trained = Counter[str](), Counter[str]()
    owed = 0.0
    for step in range(30):
        n = scheduler.prompts_wanted()
        domains = tuple(random.choice("ab") for _ in range(n))
        drawn.update(domains)
        names = [f"{d}{step}-{i}" for i, d in enumerate(domains)]
        actions = scheduler.handle([offer(step, names, domains=domains)])
        attempts = {a.visit: a.attempt for a in actions if isinstance(a, Launch)}
        for visit in sorted(attempts):  # those of domain "a" are always the first to end
            actions += scheduler.handle([Scored(0.0, SampleId(visit, 0), attempts[visit], 1.0)])
        (cut,) = [a for a in actions if isinstance(a, CutBatch)]
        batch = Counter(s.visit.prompt_id[0] for s in cut.samples)
        trained.update(batch)
        if n:
            owed += domains.count("a") * 4 / n - batch["a"]
            assert abs(owed) < 1.5
        scheduler.handle([BatchTrained(0.0, step + 1)])
    assert drawn == trained + Counter(domain for _, _, domain, _ in scheduler.state()["queue"])


def ended(visit: Visit, indices: list[int], attempt: int = 0, rewards: tuple[float, ...] = ()) -> list[Event]:
    scores = rewards or (0.0, 1.0) * len(indices)
    return [Scored(0.0, SampleId(visit, i), attempt, scores[k]) for k, i in enumerate(indices)]


def test_a_short_round_defers_what_is_unfinished_and_a_long_round_launches_it_as_the_next_attempt() -> None:
    scheduler = TailBatching(1, 2, 2, 1)
    a, b = Visit("a", 0), Visit("b", 0)
    assert scheduler.prompts_wanted() == 2
    launches = scheduler.handle([offer(0, ["a", "b"])])
    assert launches == [Launch(a, (0, 1), 0), Launch(b, (0, 1), 0)]
    scheduler.handle(ended(b, [1]))
    abort, defer, cut = scheduler.handle(ended(a, [0, 1]))
    assert abort == Abort((SampleId(b, 0), SampleId(b, 1)))
    assert defer == Defer(b, "the batch of step 0 is full without it")
    assert isinstance(cut, CutBatch)
    assert {s.visit for s in cut.samples} == {a}
    assert scheduler.handle([Aborted(0.0, SampleId(b, 0), 0, 7), *ended(b, [0])]) == []
    assert scheduler.metrics()["tokens_aborted"] == 7
    scheduler.handle([BatchTrained(0.0, 1)])
    assert scheduler.prompts_wanted() == 0
    assert scheduler.handle([offer(1, [])]) == [Launch(b, (0, 1), 1)]
    assert scheduler.handle(ended(b, [0, 1], attempt=0)) == [], "its first attempts are fenced"
    (cut,) = scheduler.handle(ended(b, [0, 1], attempt=1))
    assert isinstance(cut, CutBatch)
    scheduler.handle([BatchTrained(0.0, 2)])
    assert scheduler.prompts_wanted() == 2
    assert scheduler.metrics()["short_rounds"] == scheduler.metrics()["long_rounds"] == 1


def test_siblings_are_aborted_before_the_rewards_and_a_response_that_scores_invalid_is_launched_again() -> (
    None
):
    scheduler = TailBatching(1, 2, 1, 2)
    a = Visit("a", 0)
    assert scheduler.handle([offer(0, ["a"])]) == [Launch(a, (0, 1, 2, 3), 0)]
    assert scheduler.handle([Scored(0.0, SampleId(a, 0), 0, None, "no verdict")]) == [], "three are left"
    generated = [Generated(0.0, SampleId(a, i), 0, 5, "stop") for i in (2, 3)]
    assert scheduler.handle(generated) == [Abort((SampleId(a, 1),))]
    assert scheduler.handle([Aborted(0.0, SampleId(a, 1), 0, 9)]) == []
    assert scheduler.handle([Scored(0.0, SampleId(a, 3), 0, None, "no verdict")]) == [Launch(a, (3,), 1)]
    (cut,) = scheduler.handle([*ended(a, [2]), *ended(a, [3], attempt=1)])
    assert cut == CutBatch(0, (SampleId(a, 2), SampleId(a, 3)))


def test_zero_variance_prompts_are_replaced_and_never_deferred() -> None:
    scheduler = TailBatching(1, 2, 2, 1, keep=VisitFilter())
    a, b = Visit("a", 0), Visit("b", 0)
    scheduler.handle([offer(0, ["a", "b"])])
    abort, request = scheduler.handle(ended(a, [0, 1], rewards=(1.0, 1.0)))
    assert abort == Abort((SampleId(a, 0), SampleId(a, 1)))
    assert request == RequestPrompts(0, 1, "a (visit 0) is filtered: all 2 rewards are 1")
    *_, cut = scheduler.handle(ended(b, [0, 1]))
    assert isinstance(cut, CutBatch), "the other prompt of the round is enough"
    late = scheduler.handle([offer(0, ["c"], starts_step=False)])
    assert late == [Defer(Visit("c", 0), "the batch of step 0 is full without it")], "drawn, so not lost"
    scheduler.handle([BatchTrained(0.0, 1)])
    assert scheduler.handle([offer(1, [])]) == [Launch(Visit("c", 0), (0, 1), 0)]


def test_a_visit_of_a_long_round_that_ends_invalid_is_replaced_by_a_new_prompt_without_over_launch() -> None:
    scheduler = TailBatching(1, 1, 2, 3, max_attempts=1)
    a, b, c = (Visit(name, 0) for name in "abc")
    scheduler.handle([offer(0, ["a", "b"]), *ended(a, [0]), BatchTrained(0.0, 1)])
    assert scheduler.handle([offer(1, [])]) == [Launch(b, (0,), 1)]
    (request,) = scheduler.handle([Failed(0.0, SampleId(b, 0), 1, "worker died")])
    assert isinstance(request, RequestPrompts)
    assert scheduler.handle([offer(1, ["c"], starts_step=False)]) == [Launch(c, (0,), 0)]


def test_a_loss_after_the_cut_is_made_good_by_the_same_visit() -> None:
    scheduler = TailBatching(1, 1, 2, 1)
    a, b = Visit("a", 0), Visit("b", 0)
    scheduler.handle([offer(0, ["a", "b"])])
    *_, cut = scheduler.handle(ended(a, [0]))
    assert scheduler.handle([Failed(0.0, SampleId(a, 0), 0, "store lost")]) == [Launch(a, (0,), 1)]
    assert scheduler.handle(ended(b, [0])) == [], "deferred"
    assert scheduler.handle(ended(a, [0], attempt=1)) == [cut]


def test_the_kept_responses_are_told_from_all_that_were_launched() -> None:
    scheduler = TailBatching(1, 1, 1, 2)
    a = Visit("a", 0)
    short, long = SampleId(a, 0), SampleId(a, 1)
    scheduler.handle([offer(0, ["a"]), Generated(0.0, short, 0, 10, "stop"), Scored(0.0, short, 0, 1.0)])
    scheduler.handle([Aborted(0.0, long, 0, 30), BatchTrained(0.0, 1)])
    metrics = scheduler.metrics()
    assert (metrics["kept_tokens_mean"], metrics["launched_tokens_mean"]) == (10, 20)
    assert metrics["wasted_tokens"] == 30


@pytest.mark.parametrize(
    ("count", "eta", "launched"), [(128, 1.25, 160), (10, 1.1, 11), (3, 1.5, 5), (7, 1, 7)]
)
def test_over_launch_is_the_ceiling_of_eta_as_it_is_written(count: int, eta: float, launched: int) -> None:
    assert over_launched(count, eta) == launched


def test_eta_below_one_is_refused() -> None:
    with pytest.raises(ValueError, match=r"eta=0\.9"):
        TailBatching(4, 4, 0.9, 1)


@given(st.dictionaries(st.sampled_from("abcd"), st.integers(1, 20), min_size=1), st.integers(1, 10))
@settings(max_examples=100, deadline=None)
def test_places_are_shared_out_by_largest_remainders(waiting: dict[str, int], places: int) -> None:
    total = sum(waiting.values())
    places = min(places, total)
    quotas = shared_out(places, {d: n * places for d, n in waiting.items()}, total, waiting)
    assert sum(quotas.values()) == places
    for domain, n in waiting.items():
        assert quotas[domain] <= n
        assert abs(quotas[domain] - n * places / total) < 1


def test_synchronous_and_tail_batching_both_say_how_many_prompts_a_step_begins_with() -> None:
    assert Synchronous(8, 2).prompts_wanted() == 8
    assert TailBatching(8, 2, 1.25, 1.25).prompts_wanted() == 10
    with pytest.raises(ValueError, match="this step begins with 10"):
        TailBatching(8, 2, 1.25, 1.25).handle([offer(0, ["a"])])
