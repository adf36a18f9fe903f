"""Time-outs follow the longest correct run of each test case, within their bounds."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from schedulers.reward_timeouts import RewardTimeouts

RUNS = st.lists(st.tuples(st.sampled_from("abc"), st.floats(0, 60)), max_size=20)


@given(RUNS, st.randoms())
@settings(max_examples=100, deadline=None)
def test_a_timeout_is_in_bounds_and_long_enough_for_every_correct_run_whatever_their_order(
    runs, random
) -> None:
    timeouts, shuffled = RewardTimeouts(), RewardTimeouts()
    for case, run_s in runs:
        timeouts.correct_run(case, run_s)
    for case, run_s in random.sample(runs, len(runs)):
        shuffled.correct_run(case, run_s)
    assert shuffled.state() == timeouts.state()
    for case in "abcd":
        longest_s = max((run_s for c, run_s in runs if c == case), default=None)
        expected = 30.0 if longest_s is None else min(max(2.0, 1.5 * longest_s), 30.0)
        assert timeouts.timeout_s(case) == expected


@given(RUNS, st.integers(0, 20))
@settings(max_examples=50, deadline=None)
def test_a_checkpoint_and_what_several_workers_learn_lose_nothing(runs, cut) -> None:
    whole, first, second = RewardTimeouts(), RewardTimeouts(), RewardTimeouts()
    for i, (case, run_s) in enumerate(runs):
        whole.correct_run(case, run_s)
        (first if i < cut else second).correct_run(case, run_s)
    resumed = RewardTimeouts()
    resumed.load(json.loads(json.dumps(first.state())))
    assert resumed.state() == first.state()
    resumed.learn(second.state())
    assert resumed.state() == whole.state()
    assert resumed.metrics() == whole.metrics()


def test_bounds_that_cross_are_refused() -> None:
    with pytest.raises(ValueError, match=r"t_min_s=40"):
        RewardTimeouts(t_min_s=40)
