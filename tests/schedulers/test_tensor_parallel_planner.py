"""The planner doubles on a real rise of preemptions, halves after quiet rounds, and switches only when it pays."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from schedulers.protocol import SetTensorParallel
from schedulers.tensor_parallel_planner import QUIET_ROUNDS, TensorParallelPlanner, rose

ROUNDS = st.lists(
    st.tuples(
        st.sampled_from(["short", "long"]), st.sampled_from([0, 0, 0, 5, 60, 500, 900]), st.floats(1, 100)
    ),
    max_size=40,
)


@given(ROUNDS, st.floats(0, 200), st.sampled_from([1, 4, 6, 8]))
@settings(max_examples=150, deadline=None)
def test_the_degree_changes_by_two_within_a_node_and_only_for_a_reason(rounds, cost_s, node) -> None:
    planner = TensorParallelPlanner(node, switch_cost_s=cost_s)
    quiet = 0
    for kind, preemptions, seconds in rounds:
        before = planner.degree
        quiet = quiet + 1 if preemptions == 0 else 0
        action = planner.round_ended(kind, preemptions, seconds)
        assert 1 <= planner.degree <= node
        if action is None:
            assert planner.degree == before
            continue
        assert action == SetTensorParallel(planner.degree)
        assert planner.degree in (2 * before, before // 2)
        assert preemptions >= 10 if planner.degree > before else quiet >= QUIET_ROUNDS
        quiet = 0


@given(ROUNDS, st.integers(0, 40))
@settings(max_examples=60, deadline=None)
def test_a_planner_from_a_checkpoint_decides_as_the_one_never_stopped(rounds, cut) -> None:
    planner = TensorParallelPlanner(8, switch_cost_s=20)
    for i, (kind, preemptions, seconds) in enumerate(rounds):
        if i == cut:
            state = json.loads(json.dumps(planner.state()))
            planner = TensorParallelPlanner(8)
            planner.load(state)
            assert planner.state() == state
        planner.round_ended(kind, preemptions, seconds)
    never = TensorParallelPlanner(8, switch_cost_s=20)
    for kind, preemptions, seconds in rounds:
        never.round_ended(kind, preemptions, seconds)
    assert json.dumps(planner.state()) == json.dumps(never.state())


@pytest.mark.parametrize(
    ("before", "now", "up"),
    [
        (0, 9, False),  # a handful
        (0, 10, True),
        (1000, 1049, False),  # within 5 %
        (1000, 1090, False),  # within the noise: 3 sqrt(1000) is 94.9
        (1000, 1095, True),
        (10_000, 10_400, False),
        (10_000, 10_501, True),
    ],
)
def test_a_rise_is_more_than_a_share_the_noise_and_a_handful(before: int, now: int, up: bool) -> None:
    assert rose(before, now) == up


def test_rounds_are_compared_with_those_of_their_kind() -> None:
    planner = TensorParallelPlanner(8)
    for _ in range(3):
        for kind, preemptions in (("short", 5199), ("long", 2900)):  # the paper's Fig 6
            assert planner.round_ended(kind, preemptions, 1000.0) is None
    assert planner.round_ended("long", 5199, 1200.0) == SetTensorParallel(2)


def test_lengths_that_grow_raise_the_degree_again_and_quiet_rounds_lower_it() -> None:
    planner = TensorParallelPlanner(4)
    degrees = []
    for preemptions in (0, 40, 5, 30, 60, 90, 0, 0, 0, 0):
        planner.round_ended("short", preemptions, 100.0)
        degrees.append(planner.degree)
    assert degrees == [1, 2, 2, 4, 4, 4, 4, 4, 4, 2], "4 is the whole node"


def test_a_switch_that_does_not_pay_is_not_made_until_it_does() -> None:
    planner = TensorParallelPlanner(8, switch_cost_s=100.0, horizon_rounds=4)
    planner.round_ended("short", 0, 50.0)
    assert planner.round_ended("short", 100, 90.0) is None, "4 x 25 % x 90 s is less than 100 s"
    assert planner.round_ended("short", 101, 110.0) == SetTensorParallel(2), "the rise is not forgotten"


def test_a_switch_that_did_harm_is_not_repeated_within_the_horizon() -> None:
    planner = TensorParallelPlanner(8, degree=2, horizon_rounds=6)
    for _ in range(QUIET_ROUNDS):
        action = planner.round_ended("short", 0, 100.0)
    assert action == SetTensorParallel(1)
    assert planner.round_ended("short", 50, 150.0) == SetTensorParallel(2)
    for _ in range(QUIET_ROUNDS):
        assert planner.round_ended("short", 0, 100.0) is None
    assert planner.expected_gain(1) == -0.5
    for _ in range(3):
        action = planner.round_ended("short", 0, 100.0)
    assert action == SetTensorParallel(1), "it is tried again when the memory has faded"


def test_the_cost_is_the_one_last_measured() -> None:
    planner = TensorParallelPlanner(8, switch_cost_s=1.0)
    planner.switched(1000.0)
    planner.round_ended("short", 0, 100.0)
    assert planner.round_ended("short", 100, 100.0) is None


def test_a_degree_that_no_node_has_is_refused() -> None:
    with pytest.raises(ValueError, match="degree=3"):
        TensorParallelPlanner(8, degree=3)


def test_the_degree_does_not_fall_below_that_at_which_the_model_fits() -> None:
    planner = TensorParallelPlanner(8, degree=2, lowest_degree=2)
    assert [planner.round_ended("short", 0, 100.0) for _ in range(3 * QUIET_ROUNDS)] == [
        None
    ] * 3 * QUIET_ROUNDS
    with pytest.raises(ValueError, match="from 2 to the 8 devices"):
        TensorParallelPlanner(8, degree=1, lowest_degree=2)
