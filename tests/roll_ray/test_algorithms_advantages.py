"""Advantages are statistics of valid rewards, wherever the samples stand."""

import subprocess
import sys
from dataclasses import replace
from statistics import mean, stdev

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from roll_ray.algorithms.advantages import (
    ESTIMATORS,
    AdvantageSettings,
    Groups,
    Normalisation,
    Outcomes,
    estimate,
    estimator,
)
from roll_ray.errors import SettingsError
from schedulers.protocol import Visit

NAN = float("nan")
INF = float("inf")


def of(name, rewards, groups, policy_tokens=None, greedy=None, **options):
    tokens = [3] * len(rewards) if policy_tokens is None else policy_tokens
    outcomes = Outcomes(
        np.asarray(rewards, np.float32),
        groups,
        np.asarray(tokens),
        None if greedy is None else np.asarray(greedy, np.float32),
    )
    return estimate(name, outcomes, AdvantageSettings(**options))


def advantages(name, rewards, groups, policy_tokens=None, greedy=None, **options):
    return of(name, rewards, groups, policy_tokens, greedy, **options).advantages_B


def test_grpo_by_hand():
    # mean 0.5, unbiased std sqrt(1/3): (1 - 0.5) / 0.57735 = 0.866025
    assert advantages("grpo", [1, 0, 1, 0], "aaaa") == pytest.approx(
        [0.866024, -0.866024, 0.866024, -0.866024], abs=1e-6
    )
    # mean 2, std 2: eps 1 makes it (r - 2) / 3
    wide = Normalisation("group", "group", eps=1.0)
    assert advantages("grpo", [0, 2, 4], "aaa", normalisation=wide) == pytest.approx([-2 / 3, 0, 2 / 3])


def test_grpo_groups_are_data_and_may_be_mixed():
    groups = [Visit("b", 0), Visit("a", 0), Visit("b", 1), Visit("b", 0), Visit("b", 1), Visit("a", 0)]
    result = of("grpo", [1, 5, 0, 0, 8, 5], groups)
    half = 0.5 / (0.5**0.5 + 1e-6)
    other = 4 / (32**0.5 + 1e-6)
    assert result.advantages_B == pytest.approx([half, 0, -other, -half, other, 0], rel=1e-6)
    assert (result.n_groups, result.n_no_signal_groups) == (3, 1)


REWARDS = [1, 0, 3, 4, 2, 6]
GROUPS = "aabbbb"
"""Group a: mean 0.5. Group b: mean 3.75, sum 15. Batch: mean 16 / 6, squares 66 - 256 / 6 = 70 / 3, S^2 = 14 / 3."""
BATCH_STD = (14 / 3) ** 0.5 + 1e-6


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("reinforce", REWARDS),
        ("dr_grpo", [0.5, -0.5, -0.75, 0.25, -1.75, 2.25]),
        ("rloo", [1, -1, 3 - 12 / 3, 4 - 11 / 3, 2 - 13 / 3, 6 - 9 / 3]),
        ("lite_ppo", [x / BATCH_STD for x in (0.5, -0.5, -0.75, 0.25, -1.75, 2.25)]),
        ("reinforce_plus_plus", REWARDS),
        ("reinforce_plus_plus_baseline", [0.5, -0.5, -0.75, 0.25, -1.75, 2.25]),
        ("maxrl", [1, -1, -0.2, 1 / 15, -7 / 15, 0.6]),
        ("gae", REWARDS),
        ("step_returns", REWARDS),
        ("segment_returns", REWARDS),
    ],
)
def test_estimators_by_hand(name, expected):
    assert advantages(name, REWARDS, GROUPS) == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize(
    ("mean_of", "std_of", "expected"),
    [
        ("none", "none", REWARDS),
        ("batch", "none", [x - 8 / 3 for x in REWARDS]),
        ("none", "batch", [x / BATCH_STD for x in REWARDS]),
        ("batch", "batch", [(x - 8 / 3) / BATCH_STD for x in REWARDS]),
        ("leave_one_out", "batch", [x / BATCH_STD for x in (1, -1, -1, 1 / 3, -7 / 3, 3)]),
        ("group", "group", [0.707106, -0.707106, -0.439155, 0.146385, -1.024695, 1.317465]),
    ],
)
def test_one_normalisation_spans_the_family(mean_of, std_of, expected):
    chosen = Normalisation(mean_of, std_of)
    for name in ("grpo", "rloo", "reinforce", "lite_ppo"):
        assert advantages(name, REWARDS, GROUPS, normalisation=chosen) == pytest.approx(expected, abs=2e-6)


def test_opo_weighs_rewards_with_response_lengths():
    # a: (2 * 1 + 6 * 0) / 8 = 0.25; b: (1 * 1 + 3 * 5) / 4 = 4
    assert advantages("opo", [1, 0, 1, 5], "aabb", [2, 6, 1, 3]) == pytest.approx([0.75, -0.25, -3, 1])


def test_remax_compares_with_the_greedy_response():
    result = of("remax", [1, 0, 2, 3], "aabb", greedy=[0.5, 0.5, NAN, 3])
    assert result.advantages_B == pytest.approx([0.5, -0.5, 0, 0])
    assert result.n_invalid == 1
    with pytest.raises(ValueError, match="needs greedy_rewards_B"):
        of("remax", [1, 0], "aa")


@pytest.mark.parametrize("rewards", [[0, 0, 0], [-1, -3, -2], [-1, 1, 0]])
def test_maxrl_without_a_mean_above_zero_is_zero(rewards):
    assert (advantages("maxrl", rewards, "aaa") == 0).all()


def test_invalid_and_empty_samples_are_in_no_statistic():
    # the group is [1, 0]: mean 0.5, std 0.7071; a NaN reward and an answer of no tokens stand outside
    result = of("grpo", [1, NAN, 0, 9], "aaaa", [3, 3, 3, 0])
    assert result.advantages_B == pytest.approx([0.707106, 0, -0.707106, 0], abs=1e-6)
    assert (result.n_invalid, result.n_empty, result.n_no_signal_groups) == (1, 1, 0)


@pytest.mark.parametrize("name", sorted(set(ESTIMATORS) - {"remax"}))
def test_junk_in_unusable_samples_changes_nothing(name):
    rewards, tokens = [1.0, 0.0, 2.0], [4, 2, 3]
    alone = advantages(name, rewards, "aba", tokens)
    for junk in (NAN, INF, -INF):
        assert (advantages(name, [*rewards, junk], "abaa", [*tokens, 5])[:3] == alone).all()
    for junk in (NAN, INF, 1e30):
        assert (advantages(name, [*rewards, junk], "abaa", [*tokens, 0])[:3] == alone).all()


@pytest.mark.parametrize("name", ["grpo", "dr_grpo", "rloo", "lite_ppo", "opo", "maxrl", "gigpo"])
@pytest.mark.parametrize("rewards", [[0.3], [0.1, 0.1, 0.1], [NAN, 2.0], [NAN, NAN], [0.7, 0.7, NAN]])
def test_without_a_difference_there_is_no_signal_and_exactly_zero(name, rewards):
    result = of(name, rewards, ["g"] * len(rewards))
    assert (result.advantages_B == 0).all()
    assert result.n_no_signal_groups == 1


@pytest.mark.parametrize("std_of", ["none", "group", "batch"])
@pytest.mark.parametrize("mean_of", ["none", "group", "batch", "leave_one_out"])
def test_near_equal_rewards_are_finite_and_near_zero(mean_of, std_of):
    near = [1, np.nextafter(np.float32(1), np.float32(2)), 1, 1]
    result = advantages("grpo", near, "aabb", normalisation=Normalisation(mean_of, std_of))
    assert np.isfinite(result).all()
    if mean_of != "none":
        assert np.abs(result).max() < 0.2  # eps is larger than the standard deviation
        assert (result[2:] == 0).all() or mean_of == "batch"


def test_nothing_to_divide_by_is_zero():
    for std_of in ("group", "batch"):
        assert (advantages("reinforce", [2, 2], "aa", normalisation=Normalisation("none", std_of)) == 0).all()
    assert (advantages("reinforce", [5, 1], "ab", normalisation=Normalisation("batch", "group")) == 0).all()


@pytest.mark.parametrize("name", sorted(ESTIMATORS))
def test_of_nothing(name):
    result = of(name, [], [], greedy=[])
    assert result.advantages_B.shape == (0,)
    assert result.n_groups == result.n_no_signal_groups == 0
    assert (of(name, [NAN, NAN], "ab", greedy=[1, 1]).advantages_B == 0).all()


def test_rewards_are_clipped_before_they_are_compared():
    clipped = of("dr_grpo", [5, -9, 1, INF], "aabb", reward_clip=(-1, 2))
    assert clipped.advantages_B == pytest.approx([1.5, -1.5, -0.5, 0.5])
    assert clipped.n_invalid == 0
    equal = of("grpo", [5, 9, 1, 0], "aabb", reward_clip=(-1, 1))
    assert equal.n_no_signal_groups == 1
    assert (equal.advantages_B[:2] == 0).all()
    assert advantages("remax", [5, 1], "aa", greedy=[9, 9], reward_clip=(-1, 2)) == pytest.approx([0, -1])


def test_one_of_each_per_sample_is_needed():
    with pytest.raises(ValueError, match="2 rewards, 1 group ids, 2 token counts"):
        of("grpo", [1, 2], "a")
    with pytest.raises(ValueError, match="2 rewards, 1 greedy rewards"):
        of("remax", [1, 2], "aa", greedy=[1])


def test_an_unknown_name_is_an_error_that_names_the_others():
    with pytest.raises(SettingsError, match="unknown advantage estimator 'grop'") as caught:
        of("grop", [1, 2], "aa")
    assert "rloo" in str(caught.value)


rows_of_samples = st.lists(
    st.tuples(
        st.sampled_from("abcd"),
        st.one_of(st.just(NAN), st.sampled_from([0.0, 1.0, 0.1]), st.floats(-5, 5, width=32)),
        st.integers(0, 4),
        st.one_of(st.just(NAN), st.floats(-5, 5, width=32)),
    ),
    max_size=24,
)
normalisations = st.one_of(
    st.none(),
    st.builds(
        Normalisation,
        st.sampled_from(["none", "group", "batch", "leave_one_out"]),
        st.sampled_from(["none", "group", "batch"]),
    ),
)


def of_rows(name, rows, normalisation=None):
    groups, rewards, tokens, greedy = zip(*rows, strict=True) if rows else ((), (), (), ())
    return of(name, rewards, groups, tokens, greedy, normalisation=normalisation)


@settings(deadline=None)
@given(
    st.sampled_from(sorted(ESTIMATORS)), rows_of_samples, normalisations, st.randoms(use_true_random=False)
)
def test_permuting_samples_permutes_advantages_bit_for_bit(name, rows, normalisation, random):
    order = list(range(len(rows)))
    random.shuffle(order)
    straight = of_rows(name, rows, normalisation)
    shuffled = of_rows(name, [rows[i] for i in order], normalisation)
    assert (shuffled.advantages_B == straight.advantages_B[order]).all()
    assert np.isfinite(straight.advantages_B).all()
    assert replace(shuffled, advantages_B=0) == replace(straight, advantages_B=0)


def test_group_statistics_do_not_depend_on_the_order_in_float64_either():
    random = np.random.default_rng(0)
    x_B, weights_B = random.standard_normal(400) * 1e3, random.integers(1, 9, 400)
    codes_B = random.integers(0, 4, 400)
    order = random.permutation(400)
    straight, shuffled = Groups.of(codes_B.tolist()), Groups.of(codes_B[order].tolist())
    assert (shuffled.sum_B(x_B[order]) == straight.sum_B(x_B)[order]).all()
    assert (shuffled.std_B(x_B[order]) == straight.std_B(x_B)[order]).all()
    weighted_B = straight.mean_B(x_B, weights_B)
    assert (shuffled.mean_B(x_B[order], weights_B[order]) == weighted_B[order]).all()
    assert straight.mean_B(x_B)[codes_B == 2] == pytest.approx(x_B[codes_B == 2].mean())
    assert straight.std_B(x_B)[codes_B == 2] == pytest.approx(x_B[codes_B == 2].std(ddof=1))


@settings(deadline=None)
@given(st.sampled_from(["grpo", "dr_grpo", "rloo", "maxrl", "opo"]), rows_of_samples)
def test_groups_do_not_know_each_other(name, rows):
    together = of_rows(name, rows).advantages_B
    for group in "abcd":
        alone = of_rows(name, [row for row in rows if row[0] == group]).advantages_B
        assert (together[[row[0] == group for row in rows]] == alone).all()


@settings(deadline=None)
@given(st.sampled_from(["grpo", "dr_grpo", "rloo", "lite_ppo"]), rows_of_samples)
def test_advantages_of_a_group_sum_to_zero(name, rows):
    advantages_B = of_rows(name, rows).advantages_B
    for group in "abcd":
        assert advantages_B[[row[0] == group for row in rows]].sum() == pytest.approx(0, abs=1e-4)


@settings(deadline=None)
@given(rows_of_samples)
def test_the_family_agrees_with_a_loop_over_samples(rows):
    usable = [row for row in rows if row[1] == row[1] and row[2] > 0]
    batch = [row[1] for row in usable]
    found = {name: of_rows(name, usable).advantages_B for name in ("grpo", "rloo", "lite_ppo")}
    for i, (group, reward, _, _) in enumerate(usable):
        siblings = [row[1] for row in usable if row[0] == group]
        others = [row[1] for j, row in enumerate(usable) if row[0] == group and j != i]
        rloo = reward - mean(others) if others else 0.0
        different = len(set(siblings)) > 1
        grpo = (reward - mean(siblings)) / (stdev(siblings) + 1e-6) if different else 0.0
        lite = (reward - mean(siblings)) / (stdev(batch) + 1e-6) if len(set(batch)) > 1 else 0.0
        assert [found[name][i] for name in ("grpo", "rloo", "lite_ppo")] == pytest.approx(
            [grpo, rloo, lite], rel=1e-4, abs=1e-5
        )


def test_an_estimator_is_one_function_and_one_registration():
    @estimator("test_only", whiten=True)
    def best_of_group(outcomes, settings):
        assert outcomes.rewards_B.tolist() == [1, 3]  # usable samples only
        assert settings.normalisation is None
        return outcomes.rewards_B - outcomes.groups.mean_B(outcomes.rewards_B)

    assert ESTIMATORS["test_only"].whiten
    try:
        assert advantages("test_only", [1, NAN, 3, 7], "aaaa", [1, 1, 1, 0]) == pytest.approx([-1, 0, 1, 0])
        with pytest.raises(ValueError, match="registered twice"):
            estimator("test_only")(best_of_group)
    finally:
        assert ESTIMATORS.pop("test_only").function is best_of_group


@pytest.mark.parametrize("answer", [[1.0], [NAN, 1.0], [[1.0], [2.0]]])
def test_an_estimator_that_answers_nonsense_is_told(answer):
    estimator("test_only")(lambda outcomes, settings: np.asarray(answer))
    try:
        with pytest.raises(ValueError, match=r"'test_only' gave .* one finite number per sample is needed"):
            of("test_only", [1, 2], "aa")
    finally:
        ESTIMATORS.pop("test_only")


def test_each_estimator_says_what_it_needs_and_does():
    needs = {name: set(e.needs) for name, e in ESTIMATORS.items() if e.needs}
    assert needs == {
        "remax": {"greedy_rewards"},
        "gae": {"values"},
        "step_returns": {"steps"},
        "gigpo": {"states", "steps"},
    }
    tokenwise = {name for name, e in ESTIMATORS.items() if e.tokenwise}
    assert tokenwise == {"gae", "step_returns", "segment_returns", "gigpo"}
    whitened = {name for name, e in ESTIMATORS.items() if e.whiten}
    assert whitened == {"gae", "reinforce_plus_plus", "reinforce_plus_plus_baseline"}
    assert ESTIMATORS["lite_ppo"].normalisation == Normalisation("group", "batch")
    assert ESTIMATORS["opo"].normalisation is None
    assert all(e.function.__doc__ for e in ESTIMATORS.values())


def test_names_of_estimators_are_known_without_torch():
    program = (
        "import sys; from roll_ray.algorithms.advantages import ESTIMATORS; assert 'grpo' in ESTIMATORS; "
        "assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", program], check=True)
