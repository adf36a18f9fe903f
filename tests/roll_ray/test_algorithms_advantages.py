"""Advantages are group statistics of valid rewards, wherever the samples stand."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from roll_ray.algorithms.advantages import ESTIMATORS, estimator, grpo
from roll_ray.algorithms.aggregation import AGGREGATIONS, denominator
from roll_ray.algorithms.metric_sums import MetricSum, merge_sums
from schedulers.protocol import Visit

NAN = float("nan")


def of(rewards, groups, policy_tokens=None, **options):
    tokens = [3] * len(rewards) if policy_tokens is None else policy_tokens
    return grpo(np.asarray(rewards, np.float32), groups, np.asarray(tokens), **options)


def test_grpo_by_hand():
    # mean 0.5, unbiased std sqrt(1/3): (1 - 0.5) / 0.57735 = 0.866025
    assert of([1, 0, 1, 0], "aaaa").advantages_B == pytest.approx(
        [0.866024, -0.866024, 0.866024, -0.866024], abs=1e-6
    )
    # mean 2, std 2: eps 1 makes it (r - 2) / 3
    assert of([0, 2, 4], "aaa", eps=1.0).advantages_B == pytest.approx([-2 / 3, 0, 2 / 3])


def test_grpo_groups_are_data_and_may_be_mixed():
    groups = [Visit("b", 0), Visit("a", 0), Visit("b", 1), Visit("b", 0), Visit("b", 1), Visit("a", 0)]
    result = of([1, 5, 0, 0, 8, 5], groups)
    half = 0.5 / (0.5**0.5 + 1e-6)
    other = 4 / (32**0.5 + 1e-6)
    assert result.advantages_B == pytest.approx([half, 0, -other, -half, other, 0], rel=1e-6)
    assert (result.n_groups, result.n_no_signal_groups) == (3, 1)


def test_grpo_leaves_invalid_and_empty_samples_out_of_the_statistics():
    # the group is [1, 0]: mean 0.5, std 0.7071; a NaN reward and an answer of no tokens (case 5) stand outside
    result = of([1, NAN, 0, 9], "aaaa", [3, 3, 3, 0])
    assert result.advantages_B == pytest.approx([0.707106, 0, -0.707106, 0], abs=1e-6)
    assert (result.n_invalid, result.n_empty, result.n_no_signal_groups) == (1, 1, 0)


@pytest.mark.parametrize("rewards", [[0.3], [0.1, 0.1, 0.1], [NAN, 2.0], [NAN, NAN], [0.7, 0.7, NAN]])
def test_grpo_without_a_difference_is_no_signal_and_exactly_zero(rewards):
    result = of(rewards, ["g"] * len(rewards))
    assert (result.advantages_B == 0).all()
    assert result.n_no_signal_groups == 1


def test_grpo_of_nothing():
    assert of([], []).advantages_B.shape == (0,)


def test_grpo_needs_one_of_each_per_sample():
    with pytest.raises(ValueError, match="2 rewards, 1 group ids, 2 token counts"):
        of([1, 2], "a")


samples = st.lists(
    st.tuples(
        st.sampled_from("abcd"),
        st.one_of(st.just(NAN), st.floats(-5, 5, width=32)),
        st.integers(0, 4),
    ),
    max_size=24,
)


@given(samples, st.randoms(use_true_random=False))
def test_grpo_permuting_samples_permutes_advantages_bit_for_bit(rows, random):
    """Case 9."""
    order = list(range(len(rows)))
    random.shuffle(order)
    groups, rewards, tokens = zip(*rows, strict=True) if rows else ((), (), ())
    straight = of(list(rewards), list(groups), list(tokens))
    shuffled = of([rewards[i] for i in order], [groups[i] for i in order], [tokens[i] for i in order])
    assert (shuffled.advantages_B == straight.advantages_B[order]).all()
    assert np.isfinite(straight.advantages_B).all()
    assert shuffled.n_no_signal_groups == straight.n_no_signal_groups


@given(samples)
def test_grpo_advantages_of_a_group_sum_to_zero(rows):
    groups, rewards, tokens = zip(*rows, strict=True) if rows else ((), (), ())
    advantages_B = of(list(rewards), list(groups), list(tokens)).advantages_B
    for group in set(groups):
        assert sum(a for a, g in zip(advantages_B, groups, strict=True) if g == group) == pytest.approx(
            0, abs=1e-4
        )


def test_an_estimator_is_one_function_and_one_registration():
    @estimator("test_only")
    def constant(rewards_B, groups_B, policy_tokens_B, eps=1e-6):
        return of([0.0] * len(rewards_B), groups_B, policy_tokens_B)

    assert ESTIMATORS.pop("test_only") is constant
    with pytest.raises(ValueError, match="registered twice"):
        estimator("grpo")(grpo)


@pytest.mark.parametrize(
    ("name", "weights", "divisor"),
    [
        ("token_mean", [1, 1, 1], 6),
        ("seq_mean_token_mean", [1 / 2, 1, 1 / 4], 2),
        ("seq_mean_token_sum", [1, 1, 1], 2),
    ],
)
def test_aggregation_is_a_weight_per_token_and_one_denominator(name, weights, divisor):
    policy_tokens_B = np.array([2, 0, 4])
    assert AGGREGATIONS[name].weights_B(policy_tokens_B) == pytest.approx(weights)
    assert denominator(name, policy_tokens_B) == divisor
    assert denominator(name, np.array([], np.int64)) == denominator(name, np.array([0, 0])) == 0


def test_metric_sums_merge_to_what_the_whole_gives():
    parts = [
        {"m": MetricSum("mean", 6, 3), "s": MetricSum("sum", 2, 1), "x": MetricSum("max", -4, 2)},
        {"m": MetricSum("mean", 2, 1), "s": MetricSum("sum", 5, 1), "x": MetricSum("max", 0, 0)},
        {},
    ]
    merged = merge_sums(parts)
    assert {k: m.value for k, m in merged.items()} == {"m": 2.0, "s": 7.0, "x": -4.0}
    assert MetricSum("mean", 0, 0).value is None
    assert MetricSum("max", 0, 0).value is None
    worst = [MetricSum("max", 1, 1), MetricSum("max", NAN, 1)]
    assert np.isnan(worst[0].merged(worst[1]).total)
    assert np.isnan(worst[1].merged(worst[0]).total)
    with pytest.raises(ValueError, match="cannot be merged"):
        MetricSum("sum", 1, 1).merged(MetricSum("mean", 1, 1))
