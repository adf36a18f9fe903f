"""Half of the engines are freed at a milestone, whole groups only, when what remains fits on the others."""

from __future__ import annotations

import json
from random import Random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from schedulers.length_history import LengthHistory
from schedulers.protocol import ReleaseEngines
from schedulers.stream_trigger import EngineSeat, Remaining, StreamTrigger, half_of

SEEN = st.lists(st.tuples(st.integers(1, 60), st.booleans()), max_size=30)


@given(st.lists(st.integers(1, 60), min_size=1, max_size=30), st.integers(0, 70))
@settings(max_examples=80, deadline=None)
def test_without_stopped_responses_survival_is_the_share_of_longer_ones(lengths, tokens) -> None:
    history = LengthHistory()
    for length in lengths:
        history.add(length)
    longer = sum(length > tokens for length in lengths) / len(lengths)
    assert history.survival(np.asarray([float(tokens)]))[0] == pytest.approx(longer, abs=1e-12)


@given(SEEN)
@settings(max_examples=80, deadline=None)
def test_survival_falls_from_one_and_stopped_responses_only_raise_it(seen) -> None:
    history, without = LengthHistory(), LengthHistory()
    for length, ended in seen:
        history.add(length, ended)
        without.add(length)
    tokens = np.arange(0, 70, dtype=np.float64)
    survival = history.survival(tokens)
    assert survival[0] == 1
    assert (np.diff(survival) <= 1e-12).all()
    assert (survival >= without.survival(tokens) - 1e-12).all()


def test_a_stopped_response_counts_until_it_was_stopped() -> None:
    history = LengthHistory()
    for length, ended in ((1, True), (2, False), (3, True)):
        history.add(length, ended)
    np.testing.assert_allclose(history.survival(np.asarray([0.5, 1, 2, 3])), [1, 2 / 3, 2 / 3, 0])


REQUESTS = st.lists(st.builds(Remaining, st.integers(1, 40), st.integers(0, 59)), min_size=1, max_size=12)


@given(SEEN, REQUESTS)
@settings(max_examples=40, deadline=None)
def test_the_projection_is_the_expected_peak_and_never_less(seen, remaining) -> None:
    limit = 60
    trigger = trigger_of(4, limit=limit)
    for length, ended in seen:
        trigger.history.add(length, ended)

    def survival(tokens: int) -> float:
        return float(trigger.history.survival(np.asarray([float(tokens)]))[0])

    def held(request: Remaining, t: int) -> float:
        at, now = request.written + t, survival(request.written)
        share = survival(at) / now if now > 0 else 1.0
        return (request.prompt_tokens + at) * share if at < limit else 0.0

    peak = max(sum(held(request, t) for request in remaining) for t in range(limit))
    projected = trigger.projected_peak_tokens(remaining)
    slack = 2 * len(remaining)  # a span's width and the part of a token between whole ones
    assert peak - 1e-9 <= projected <= peak + slack + 1e-9


def trigger_of(n_engines: int, kv_tokens: int = 1000, limit: int = 100) -> StreamTrigger:
    """Engines of one device, each with a training replica of its own."""
    engines = [EngineSeat(f"rollout-{i}", (i,), kv_tokens) for i in range(n_engines)]
    return StreamTrigger(engines, [[i] for i in range(n_engines)], limit)


@given(st.integers(0, 2**32))
@settings(max_examples=150, deadline=None)
def test_no_group_is_ever_split_and_half_is_half(seed) -> None:
    random = Random(seed)
    degree, n = random.choice([1, 2, 4]), random.randint(1, 8)
    engines = [EngineSeat(f"e{i}", tuple(range(i * degree, (i + 1) * degree)), 10) for i in range(n)]
    devices = list(range(n * degree + random.choice([0, 2])))
    replica = random.choice([1, 2, 4, 8, len(devices)])
    replicas = [devices[i : i + replica] for i in range(0, len(devices), replica)]
    half = half_of(random.sample(engines, n), replicas)
    if not half:
        return
    assert len(half) == n // 2
    freed = {d for engine in engines if engine.name in half for d in engine.devices}
    kept = {d for engine in engines if engine.name not in half for d in engine.devices}
    assert all(not (freed & set(r) and kept & set(r)) for r in replicas), "a training replica is split"
    assert any(set(r) <= freed for r in replicas)


@pytest.mark.parametrize(
    ("degree", "replica", "n", "half"),
    [
        (1, 1, 4, ("e2", "e3")),
        (2, 4, 4, ("e2", "e3")),
        (2, 8, 4, ()),  # one replica over all of them
        (1, 2, 6, ()),  # three pairs have no half
        (1, 1, 1, ()),
    ],
)
def test_the_half_with_the_highest_devices_is_freed_where_there_is_one(degree, replica, n, half) -> None:
    engines = [EngineSeat(f"e{i}", tuple(range(i * degree, (i + 1) * degree)), 10) for i in range(n)]
    replicas = [list(range(i, i + replica)) for i in range(0, n * degree, replica)]
    assert half_of(engines, replicas) == half


@given(st.integers(0, 2**32))
@settings(max_examples=100, deadline=None)
def test_a_step_frees_at_most_once_at_a_milestone_and_only_what_fits(seed) -> None:
    random = Random(seed)
    trigger = trigger_of(4, kv_tokens=random.choice([50, 400, 5000]))
    for _ in range(2):
        n = random.randint(1, 60)
        trigger.begin(n)
        releases, attempts, complete = 0, 0, 0
        while complete < n:
            complete += random.randint(1, 4)
            trigger.generated(random.randint(1, 100))
            trigger.completed(min(complete, n))
            if random.random() < 0.1:
                state = json.loads(json.dumps(trigger.state()))
                trigger = trigger_of(4, kv_tokens=trigger._kv_tokens_left // 2)
                trigger.load(state)
            if not trigger.due():
                continue
            attempts += 1
            assert 0.2 * n <= complete <= 0.5 * n
            remaining = [Remaining(10, random.randint(0, 99)) for _ in range(n - complete)]
            action = trigger.decide(remaining)
            fits = trigger.projected_peak_tokens(remaining) <= trigger._kv_tokens_left
            assert (action is not None) == fits
            if action is not None:
                releases += 1
                assert action == ReleaseEngines(("rollout-2", "rollout-3"))
            assert trigger.decide(remaining) is None, "one attempt for each milestone"
        assert releases <= 1
        assert attempts <= 7


def test_what_was_never_that_long_is_taken_to_run_to_the_limit() -> None:
    trigger = trigger_of(2, limit=100)
    for _ in range(50):
        trigger.generated(10)
    assert trigger.projected_peak_tokens([Remaining(5, 20)]) == pytest.approx(105, abs=1)
    assert trigger.projected_peak_tokens([Remaining(5, 0)]) == pytest.approx(15, abs=1)
    assert trigger.projected_peak_tokens([]) == 0
