"""Long and repetitive responses are punished by as much as the formulas say."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from roll_ray.algorithms.shaping import repeated_ngram_share, soft_overlong


def test_the_overlong_punishment_falls_linearly_in_the_cache():
    lengths = [0, 1, 12, 13, 14, 15, 16, 17, 99]
    expected = [0, 0, 0, -0.25, -0.5, -0.75, -1, -1, -1]
    assert soft_overlong(np.array(lengths), limit_tokens=16, cache_tokens=4) == pytest.approx(expected)
    # DAPO's own numbers: 16,384 expected, 4,096 of cache
    assert soft_overlong(np.array([16384, 18432, 20480]), 20480, 4096) == pytest.approx([0, -0.5, -1])
    assert soft_overlong(np.array([0, 2, 4]), 4, 4) == pytest.approx([0, -0.5, -1])
    assert soft_overlong(np.array([], np.int64), 4, 4).shape == (0,)


@pytest.mark.parametrize("cache", [0, -1, 17])
def test_a_cache_lies_within_the_limit(cache):
    with pytest.raises(ValueError, match="not within 1 and the limit of 16"):
        soft_overlong(np.array([1]), 16, cache)


@pytest.mark.parametrize(
    ("tokens", "n", "share"),
    [
        ([1, 2, 3, 4], 2, 0),
        ([1, 2, 1, 2, 1, 2], 2, 3 / 5),  # 12 21 12 21 12
        ([7] * 10, 4, 6 / 7),
        ([7] * 4, 4, 0),
        ([1, 2, 3], 4, 0),
        ([], 1, 0),
        ([5, 5, 6, 5], 1, 2 / 4),
        ([1, 2, 3, 9, 1, 2, 3], 3, 1 / 5),
        ([2**31 - 1, 0, 2**31 - 1, 0], 2, 1 / 3),
    ],
)
def test_the_share_of_repeated_ngrams_by_hand(tokens, n, share):
    assert repeated_ngram_share(np.array(tokens, np.int32), n) == pytest.approx(share)


def test_an_ngram_has_a_token():
    with pytest.raises(ValueError, match="one token at least, not 0"):
        repeated_ngram_share(np.array([1, 2]), 0)


@settings(deadline=None)
@given(st.lists(st.sampled_from([0, 1, 2, 150_000]), max_size=60), st.integers(1, 6))
def test_the_share_agrees_with_a_set_of_tuples(tokens, n):
    ngrams = [tuple(tokens[i : i + n]) for i in range(len(tokens) - n + 1)]
    expected = 1 - len(set(ngrams)) / len(ngrams) if ngrams else 0.0
    assert repeated_ngram_share(np.array(tokens, np.int32), n) == pytest.approx(expected)
