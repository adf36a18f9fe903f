"""Whitening sees all valid numbers of the batch, however they are spread over ranks."""

from functools import reduce

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from roll_ray.algorithms.adaptive_kl import AdaptiveKl
from roll_ray.algorithms.whitening import Moments, whiten

NAN, INF = float("nan"), float("inf")


def test_whitening_by_hand():
    # mean 3, unbiased variance (4 + 0 + 4) / 2 = 4
    x = np.array([1.0, 3.0, 5.0])
    assert Moments.of(x) == Moments(3, 3, 8)
    assert whiten(x, Moments.of(x)) == pytest.approx([-1, 0, 1])
    # mean 0.25, variance (3 x 0.0625 + 0.5625) / 3 = 0.25
    x = np.array([0, 0, 0, 1], np.float32)
    assert whiten(x, Moments.of(x)) == pytest.approx([-0.5, -0.5, -0.5, 1.5])
    assert whiten(x, Moments.of(x)).dtype == np.float32
    # beside a variance of 1e-8 stands the same again
    assert whiten(np.array([0.0, 2e-4]), Moments(2, 1e-4, 1e-8)) == pytest.approx([-(0.5**0.5), 0.5**0.5])


def test_a_weight_is_a_number_of_times():
    once = Moments.of(np.array([1.0, 4.0]), np.array([3, 2]))
    spelled_out = Moments.of(np.array([1.0, 1.0, 1.0, 4.0, 4.0]))
    assert (once.count, once.mean, once.m2) == pytest.approx((5, 2.2, 3 * 1.44 + 2 * 3.24))
    assert (once.count, once.mean, once.m2) == pytest.approx(
        (spelled_out.count, spelled_out.mean, spelled_out.m2)
    )


@pytest.mark.parametrize("junk", [NAN, INF, -INF, 1e30])
def test_junk_at_masked_places_changes_nothing(junk):
    x = np.array([1, junk, 5, junk, 3], np.float32)
    mask = np.array([True, False, True, False, True])
    assert Moments.of(x, mask) == Moments(3, 3, 8)
    assert whiten(x, Moments.of(x, mask))[mask] == pytest.approx([-1, 1, 0])


@pytest.mark.parametrize("numbers", [[], [7.0], [NAN]])
def test_fewer_than_two_are_left_unchanged_and_said(numbers):
    x = np.array(numbers)
    moments = Moments.of(x, np.isfinite(x))
    assert not moments.enough
    assert moments.variance == 0
    assert whiten(x, moments) is x


def test_equal_numbers_become_zero():
    x = np.full(7, 0.1)
    assert Moments.of(x).enough
    assert whiten(x, Moments.of(x)) == pytest.approx(np.zeros(7), abs=1e-10)


def test_huge_numbers_stay_finite():
    x = np.array([1e30, -1e30, 0], np.float32)
    assert whiten(x, Moments.of(x)) == pytest.approx([1, -1, 0])


@settings(deadline=None)
@given(
    st.lists(st.lists(st.floats(-100, 100, width=32), max_size=12), max_size=6),
    st.randoms(use_true_random=False),
)
def test_any_split_over_ranks_gives_the_moments_of_the_whole(ranks, random):
    whole = np.array([x for rank in ranks for x in rank])
    random.shuffle(ranks)
    merged = reduce(Moments.merged, [Moments.of(np.array(rank)) for rank in ranks], Moments())
    assert merged.count == len(whole)
    if len(whole):
        assert (merged.mean, merged.m2) == pytest.approx(
            (whole.mean(), ((whole - whole.mean()) ** 2).sum()), rel=1e-9, abs=1e-9
        )
    if len(whole) > 1:
        assert merged.variance == pytest.approx(whole.var(ddof=1), rel=1e-9, abs=1e-9)
        assert whiten(whole, merged) == pytest.approx(whiten(whole, Moments.of(whole)), abs=1e-6)


def test_the_kl_coefficient_follows_its_target():
    kl = AdaptiveKl(0.1, target=2.0, horizon=100)
    assert kl.update(2.2, 50) == pytest.approx(0.1 * 1.05)  # error 0.1, half a horizon
    assert kl.update(9.0, 50) == pytest.approx(0.105 * 1.1)  # error held at 0.2
    assert kl.update(0.0, 100) == pytest.approx(0.1155 * 0.8)
    assert kl.update(2.0, 100) == pytest.approx(0.0924)
    assert kl.update(NAN, 100) == kl.update(INF, 100) == pytest.approx(0.0924)
    assert kl.update(0.0, 10_000) == 0


def test_the_kl_coefficient_survives_a_checkpoint():
    before = AdaptiveKl(0.1, target=2.0, horizon=100)
    before.update(3.0, 30)
    after = AdaptiveKl(0.1, target=2.0, horizon=100)
    after.load(before.state())
    assert after == before
    assert after.update(1.0, 10) == before.update(1.0, 10)


@pytest.mark.parametrize(("target", "horizon"), [(0.0, 10), (-1.0, 10), (1.0, 0)])
def test_a_kl_target_is_above_zero(target, horizon):
    with pytest.raises(ValueError, match="must be above 0"):
        AdaptiveKl(0.1, target, horizon)
