"""Returns count the policy's tokens only, and each sample for itself."""

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from roll_ray.algorithms.advantages import Normalisation
from roll_ray.algorithms.returns import (
    Steps,
    gae,
    gigpo,
    returns_to_go,
    segment_returns,
    step_returns,
    token_rewards,
)
from roll_ray.algorithms.suffix_sums import PIECE_TOKENS, suffix_sums

NAN, INF = float("nan"), float("inf")


def flags(word):
    """p: a token of the policy, anything else is not."""
    return np.array([c == "p" for c in word], np.bool_)


def test_suffix_sums_by_hand():
    x = np.array([1.0, 2.0, 4.0, 8.0, 16.0])
    offsets = np.array([0, 3, 3, 5])
    assert suffix_sums(x, offsets, 1.0) == pytest.approx([7, 6, 4, 24, 16])
    assert suffix_sums(x, offsets, 0.5) == pytest.approx([3, 4, 4, 16, 16])
    assert suffix_sums(x, offsets, 0.0) == pytest.approx(x)
    assert suffix_sums(np.array([]), np.array([0]), 0.9).shape == (0,)
    assert suffix_sums(np.array([]), np.array([0, 0, 0]), 0.9).shape == (0,)


def slow_suffix_sums(x, offsets, decay):
    y = np.zeros(len(x))
    for start, stop in pairwise(offsets):
        total = 0.0
        for t in range(stop - 1, start - 1, -1):
            total = y[t] = x[t] + decay * total
    return y


LENGTHS = [0, 1, 2, 3, 63, 64, 65, 127, 128, 129, 300, 4095, 4096, 4097, 4200]


@settings(max_examples=30, deadline=None)
@given(
    st.lists(st.sampled_from(LENGTHS), max_size=4),
    st.sampled_from([1, 0.999, 0.9, 0.5, 0]),
    st.integers(0, 99),
)
def test_suffix_sums_agree_with_a_loop_at_all_lengths(lengths, decay, seed):
    offsets = np.cumsum([0, *lengths])
    x = np.random.default_rng(seed).standard_normal(offsets[-1])
    assert suffix_sums(x, offsets, decay) == pytest.approx(
        slow_suffix_sums(x, offsets, decay), rel=1e-9, abs=1e-9
    )


def test_suffix_sums_of_more_than_fits_one_piece():
    lengths = [PIECE_TOKENS - 5, 10, 2 * PIECE_TOKENS + 1, 0, 7]
    offsets = np.cumsum([0, *lengths])
    ends = np.repeat(offsets[1:], lengths)
    left = ends - np.arange(offsets[-1])
    assert (suffix_sums(np.ones(offsets[-1]), offsets, 1.0) == left).all()
    assert suffix_sums(np.ones(offsets[-1]), offsets, 0.5) == pytest.approx(2 - 0.5 ** (left - 1.0))


@pytest.mark.parametrize("junk", [NAN, INF, 1e300])
def test_samples_do_not_know_each_other(junk):
    lengths = [70, 3, 200, 64, 5]
    offsets = np.cumsum([0, *lengths])
    x = np.random.default_rng(0).standard_normal(offsets[-1])
    spoilt = x.copy()
    spoilt[offsets[2] : offsets[3]] = junk
    others = np.r_[: offsets[2], offsets[3] : offsets[-1]]
    with np.errstate(invalid="ignore"):
        found = suffix_sums(spoilt, offsets, 0.99)
    assert (found[others] == suffix_sums(x, offsets, 0.99)[others]).all()


def test_the_score_stands_at_the_last_policy_token():
    mask = flags("-pp---p-pp")
    offsets = np.array([0, 4, 6, 9, 10])
    scores = np.array([5, NAN, 3, -1])
    assert token_rewards(scores, mask, offsets).tolist() == [0, 0, 5, 0, 0, 0, 0, 0, 3, -1]
    kl = np.array([NAN, 1, 2, INF, NAN, NAN, 3, NAN, 4, 5])
    assert token_rewards(scores, mask, offsets, kl).tolist() == [0, 1, 7, 0, 0, 0, 3, 0, 7, 4]


def test_returns_to_go_by_hand():
    mask = flags("-pp-p--p-p")
    offsets = np.array([0, 5, 7, 10])
    scores = np.array([8, NAN, 2])
    assert returns_to_go(scores, mask, offsets, 1.0).tolist() == [0, 8, 8, 0, 8, 0, 0, 2, 0, 2]
    # the environment's token is no step of time
    assert returns_to_go(scores, mask, offsets, 0.5).tolist() == [0, 2, 4, 0, 8, 0, 0, 1, 0, 2]
    kl = np.array([NAN, -1, -1, NAN, -1, NAN, NAN, 1, NAN, 0], np.float32)
    assert returns_to_go(scores, mask, offsets, 1.0, kl).tolist() == [0, 5, 6, 0, 7, 0, 0, 3, 0, 2]
    assert returns_to_go(scores, mask, offsets, 0.5, kl).tolist() == [0, 0.25, 2.5, 0, 7, 0, 0, 2, 0, 2]


def test_gae_by_hand():
    # one sample of three policy tokens: delta = 1 + 0.5 x 2 - 1, 0 + 0.5 x 4 - 2, 8 - 4
    mask, offsets = flags("ppp"), np.array([0, 3])
    rewards, values = np.array([1, 0, 8.0]), np.array([1, 2, 4.0])
    advantages, returns = gae(rewards, values, mask, offsets, gamma=0.5, lam=0.5)
    assert advantages.tolist() == [1 + 0.25 * 1, 0 + 0.25 * 4, 4]
    assert returns.tolist() == [2.25, 3, 8]
    # lambda 1 and gamma 1: the return minus the value
    advantages, returns = gae(rewards, values, mask, offsets, gamma=1.0, lam=1.0)
    assert advantages.tolist() == [8, 6, 4]
    assert returns.tolist() == [9, 8, 8]
    # lambda 0: the temporal difference
    assert gae(rewards, values, mask, offsets, gamma=1.0, lam=0.0)[0].tolist() == [2, 2, 4]


@pytest.mark.parametrize("junk", [NAN, INF, 1e30])
def test_gae_skips_what_the_policy_did_not_write(junk):
    mask, offsets = flags("-p--pp----"), np.array([0, 7, 10])
    rewards, values = np.full(10, junk), np.full(10, junk)
    rewards[mask], values[mask] = [1, 0, 8], [1, 2, 4]
    advantages, returns = gae(rewards, values, mask, offsets, gamma=0.5, lam=0.5)
    assert advantages.tolist() == [0, 1.25, 0, 0, 1, 4, 0, 0, 0, 0]
    assert returns.tolist() == [0, 2.25, 0, 0, 3, 8, 0, 0, 0, 0]


def slow_gae(rewards, values, mask, offsets, gamma, lam):
    advantages = np.zeros(len(mask))
    for start, stop in pairwise(offsets):
        advantage = following = 0.0
        for t in range(stop - 1, start - 1, -1):
            if mask[t]:
                advantage = rewards[t] + gamma * following - values[t] + gamma * lam * advantage
                advantages[t], following = advantage, values[t]
    return advantages, np.where(mask, advantages + values, 0.0)


batches = st.tuples(
    st.lists(st.sampled_from([0, 1, 2, 5, 64, 70, 300]), max_size=6),
    st.sampled_from([0.0, 0.5, 0.9, 1.0]),
    st.integers(0, 999),
)


def made(batch):
    lengths, share, seed = batch
    random = np.random.default_rng(seed)
    offsets = np.cumsum([0, *lengths])
    mask = random.random(offsets[-1]) < share
    x, y = random.standard_normal((2, offsets[-1])).astype(np.float32)
    return lengths, offsets, mask, x, y, random


@given(
    batches, st.sampled_from([1, 0.99, 0.5]), st.sampled_from([1, 0.95, 0]), st.sampled_from([NAN, INF, 1e30])
)
def test_gae_agrees_with_a_loop_whatever_is_masked(batch, gamma, lam, junk):
    _, offsets, mask, rewards, values, _ = made(batch)
    expected = slow_gae(rewards, values, mask, offsets, gamma, lam)
    rewards[~mask], values[~mask] = junk, junk
    found = gae(rewards, values, mask, offsets, gamma, lam)
    for ours, theirs in zip(found, expected, strict=True):
        assert ours == pytest.approx(theirs, rel=1e-5, abs=1e-5)
        assert (ours[~mask] == 0).all()


@settings(deadline=None)
@given(batches, st.sampled_from([1, 0.9]), st.booleans())
def test_returns_agree_with_a_loop_whatever_is_masked(batch, gamma, with_rewards):
    lengths, offsets, mask, rewards, _, random = made(batch)
    scores = random.standard_normal(len(lengths))
    written = token_rewards(scores, mask, offsets, rewards if with_rewards else None)
    expected = np.zeros(len(mask))
    for start, stop in pairwise(offsets):
        total = 0.0
        for t in range(stop - 1, start - 1, -1):
            if mask[t]:
                total = expected[t] = written[t] + gamma * total
    rewards[~mask] = NAN
    found = returns_to_go(scores, mask, offsets, gamma, rewards if with_rewards else None)
    assert found == pytest.approx(expected, rel=1e-5, abs=1e-5)


@settings(deadline=None)
@given(batches, st.randoms(use_true_random=False))
def test_permuting_samples_permutes_token_advantages(batch, random):
    lengths, offsets, mask, rewards, values, _ = made(batch)
    order = list(range(len(lengths)))
    random.shuffle(order)
    take = np.concatenate([np.arange(offsets[i], offsets[i + 1]) for i in order] or [np.empty(0)]).astype(int)
    straight = gae(rewards, values, mask, offsets, 0.99, 0.95)
    shuffled_offsets = np.cumsum([0, *(lengths[i] for i in order)])
    shuffled = gae(rewards[take], values[take], mask[take], shuffled_offsets, 0.99, 0.95)
    for a, b in zip(straight, shuffled, strict=True):
        assert (a[take] == b).all()


def test_segment_returns_by_hand():
    mask = flags("-pp--p-ppp--pp-")
    offsets = np.array([0, 9, 10, 12, 15])
    scores = np.array([8, 3, NAN, 1])
    # three segments: 2, 4, 8
    expected = [0, 2, 2, 0, 0, 4, 0, 8, 8, 3, 0, 0, 1, 1, 0]
    assert segment_returns(scores, mask, offsets, 0.5).tolist() == expected
    # neighbours of two samples are two segments
    both = segment_returns(np.array([8, 3]), flags("pppp"), np.array([0, 2, 4]), 0.5)
    assert both.tolist() == [8, 8, 3, 3]
    # token rewards of a segment are summed: 2, 1, 9 from the last one on
    kl = np.array([NAN, 1, 1, INF, NAN, 1, NAN, 0, 1, 0, NAN, NAN, 0, 0, NAN])
    found = segment_returns(scores, mask, offsets, 0.5, kl)
    assert found.tolist() == [0, 4.75, 4.75, 0, 0, 5.5, 0, 9, 9, 3, 0, 0, 1, 1, 0]


@pytest.mark.parametrize("word", ["", "---", "-"])
def test_segment_returns_without_a_policy_token(word):
    offsets = np.array([0, len(word)])
    assert segment_returns(np.array([5.0]), flags(word), offsets, 0.5).tolist() == [0] * len(word)
    assert segment_returns(np.array([]), flags(""), np.array([0]), 0.5).shape == (0,)


def test_one_segment_a_sample_is_the_score():
    mask, offsets = flags("--ppp-p"), np.array([0, 5, 7])
    found = segment_returns(np.array([3.0, 4.0]), mask, offsets, 0.1)
    assert found.tolist() == [0, 0, 3, 3, 3, 0, 4]


MASK = flags("-pp-p-p-pp-p--")
OFFSETS = np.array([0, 5, 12, 14])
STEPS = Steps(
    rewards_S=np.array([1, 2, 0, 4, 8, 7.0]),
    bounds=np.array([0, 3, 5, 7, 10, 12, 14]),
    states_S=("s", "t", "s", "t", "s", "u"),
)


def test_step_returns_by_hand():
    # steps of sample 0: 1 + 0.5 x 2, 2; of sample 1: 0 + 0.5 x (4 + 0.5 x 8), 4 + 0.5 x 8, 8
    found = step_returns(STEPS, MASK, OFFSETS, 0.5)
    assert found.tolist() == [0, 2, 2, 0, 2, 0, 4, 0, 8, 8, 0, 8, 0, 0]
    assert step_returns(STEPS, MASK, OFFSETS, 1.0).tolist() == [0, 3, 3, 0, 2, 0, 12, 0, 12, 12, 0, 8, 0, 0]


def test_gigpo_by_hand():
    # step returns at gamma 0.5: s 2, t 2 | s 4, t 8, s 8 | u 7 (of a sample in which the policy wrote nothing)
    # s: 2, 4, 8: mean 14 / 3; t: 2, 8: mean 5
    episode = np.array([10.0, -10.0, 0.0])
    found = gigpo(episode, "aab", STEPS, MASK, OFFSETS, 0.5, 3.0, Normalisation("group", "none"))
    s = [10 + 3 * (2 - 14 / 3), -10 + 3 * (4 - 14 / 3), -10 + 3 * (8 - 14 / 3)]
    t = [10 + 3 * -3, -10 + 3 * 3]
    expected = [0, s[0], s[0], 0, t[0], 0, s[1], 0, t[1], t[1], 0, s[2], 0, 0]
    assert found == pytest.approx(expected, rel=1e-6)
    # with the standard deviation: t is 2, 8: std 18^0.5
    scaled = gigpo(episode, "aab", STEPS, MASK, OFFSETS, 0.5, 1.0, Normalisation("group", "group"))
    assert scaled[[4, 8]] == pytest.approx([10 - 3 / 18**0.5, -10 + 3 / 18**0.5], rel=1e-5)


def test_gigpo_compares_visits_of_a_state_within_a_group_only():
    # each trajectory in a group of its own: s is visited twice by the second only
    found = gigpo(np.zeros(3), "abc", STEPS, MASK, OFFSETS, 0.5, 1.0, Normalisation("group", "none"))
    assert found.tolist() == [0, 0, 0, 0, 0, 0, -2, 0, 0, 0, 0, 2, 0, 0]


def test_gigpo_leaves_invalid_trajectories_out_of_its_statistics():
    rewards = STEPS.rewards_S.copy()
    rewards[1] = NAN
    steps = Steps(rewards, STEPS.bounds, STEPS.states_S)
    found = gigpo(
        np.array([10.0, -10, 0]), "aab", steps, MASK, OFFSETS, 0.5, 1.0, Normalisation("group", "none")
    )
    assert found.tolist() == [0, 0, 0, 0, 0, 0, -12, 0, -10, -10, 0, -8, 0, 0]


def test_steps_of_no_sample():
    none = Steps(np.array([]), np.array([0]))
    assert gigpo(np.array([]), (), none, flags(""), np.array([0]), 0.5, 1.0, Normalisation()).shape == (0,)
    assert step_returns(none, flags(""), np.array([0, 0]), 0.5).shape == (0,)


@pytest.mark.parametrize(
    ("bounds", "n_rewards", "message"),
    [
        ([0, 2, 4], 1, "1 step rewards and 3 bounds"),
        ([0, 2, 2, 4], 3, "a token in each step"),
        ([0, 1, 4], 2, "begins or ends inside a step"),
        ([0, 2, 5], 2, "begins or ends inside a step"),
        ([0, 2], 1, "begins or ends inside a step"),
    ],
)
def test_steps_and_samples_must_agree(bounds, n_rewards, message):
    steps = Steps(np.zeros(n_rewards), np.array(bounds))
    with pytest.raises(ValueError, match=message):
        step_returns(steps, flags("pppp"), np.array([0, 2, 4]), 0.5)
