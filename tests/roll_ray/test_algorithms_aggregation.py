"""Aggregations: values by hand, and one denominator of the whole step however samples are spread."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from roll_ray.algorithms.aggregation import AGGREGATIONS, denominator, prompt_tokens, sample_counts
from roll_ray.errors import SettingsError
from tests.roll_ray.loss_cases import batch_of, evaluate

GROUPS = ["a", "b", "a"]
# advantages 1, 5, 2 at 3, 1 and 2 tokens, ratio 1: the loss of a token is minus its advantage
SUMS, TOKENS = [3, 5, 4], [3, 1, 2]


@pytest.mark.parametrize(
    ("aggregation", "mean"),
    [
        ("token_mean", -12 / 6),
        ("seq_mean_token_mean", -(1 + 5 + 2) / 3),
        ("seq_mean_token_sum", -12 / 3),
        ("seq_mean_token_sum_norm", -12 / (3 * 10)),
        ("prompt_mean", -((3 + 4) / 5 + 5) / 2),
    ],
)
@pytest.mark.parametrize("with_an_empty_response", [False, True])
def test_by_hand(aggregation, mean, with_an_empty_response):
    rows, advantages, groups = [[-1.0] * 3, [-2.0], [-1.0] * 2], [1.0, 5.0, 2.0], list(GROUPS)
    if with_an_empty_response:
        rows, advantages, groups = [*rows, []], [*advantages, 7.0], [*groups, "c"]
    batch = batch_of(*rows, advantages=advantages)
    batch.extra_B["prompt_tokens"] = prompt_tokens(batch.policy_tokens_B, groups)
    value, _, _ = evaluate(batch, np.concatenate(rows), aggregation=aggregation, aggregation_length=10)
    divisor = denominator(aggregation, batch.policy_tokens_B, groups_B=groups, length=10)
    assert value / divisor == pytest.approx(mean)


@pytest.mark.parametrize(
    ("aggregation", "mean"),
    [
        ("token_mean", -8 / 4),
        ("seq_mean_token_mean", -(1 + 5) / 2),
        ("seq_mean_token_sum", -(3 + 5) / 2),
        ("seq_mean_token_sum_norm", -8 / (2 * 10)),
        ("prompt_mean", -(3 / 3 + 5) / 2),
    ],
)
@pytest.mark.parametrize("junk", [2.0, np.nan, np.inf])
def test_a_sample_that_is_not_trained_on_leaves_sum_and_denominator(aggregation, mean, junk):
    """Overlong filtering: the third response was cut."""
    trained_B = np.asarray([True, True, False])
    batch = batch_of([-1.0] * 3, [-2.0], [junk] * 2, advantages=[1.0, 5.0, junk])
    batch.extra_B["trained"] = trained_B
    batch.extra_B["prompt_tokens"] = prompt_tokens(batch.policy_tokens_B, GROUPS, trained_B)
    value, grad_T, metrics = evaluate(
        batch, [-1.0] * 3 + [-2.0] + [junk] * 2, aggregation=aggregation, aggregation_length=10
    )
    divisor = denominator(aggregation, batch.policy_tokens_B, groups_B=GROUPS, trained_B=trained_B, length=10)
    assert value / divisor == pytest.approx(mean)
    assert grad_T[4:].tolist() == [0, 0]
    assert metrics["policy_tokens"].value == 4


@pytest.mark.parametrize("aggregation", sorted(AGGREGATIONS))
@pytest.mark.parametrize("trained", [True, False])
def test_a_batch_without_a_valid_token_has_loss_0_and_denominator_0(aggregation, trained):
    """No samples, answers of no tokens, or none that is trained on."""
    for rows in ([], [[]], [[], []], [[-1.0]]):
        if rows == [[-1.0]] and trained:
            continue
        batch = batch_of(*rows, advantages=[1.0] * len(rows))
        trained_B = np.full(len(rows), trained)
        batch.extra_B["trained"] = trained_B
        groups = ["p"] * len(rows)
        batch.extra_B["prompt_tokens"] = prompt_tokens(batch.policy_tokens_B, groups, trained_B)
        value, grad_T, metrics = evaluate(
            batch, np.concatenate([[], *rows]), aggregation=aggregation, aggregation_length=10
        )
        assert value == 0
        assert (grad_T == 0).all()
        assert metrics["policy_tokens"].value == 0
        assert (
            denominator(aggregation, batch.policy_tokens_B, groups_B=groups, trained_B=trained_B, length=10)
            == 0
        )


@given(st.lists(st.tuples(st.integers(0, 5), st.booleans(), st.sampled_from("abc"))), st.randoms())
def test_the_denominator_is_what_samples_add_and_does_not_know_their_order(rows, random):
    def of(rows):
        tokens_B, trained_B, groups = (
            np.asarray([r[0] for r in rows], np.int64),
            np.asarray([r[1] for r in rows], np.bool_),
            [r[2] for r in rows],
        )
        return [
            denominator(name, tokens_B, groups_B=groups, trained_B=trained_B, length=7)
            for name in sorted(AGGREGATIONS)
        ]

    expected = of(rows)
    for name, value in zip(sorted(AGGREGATIONS), expected, strict=True):
        if name != "prompt_mean":
            kept = np.asarray([n for n, trained, _ in rows if trained], np.int64)
            assert value == sample_counts(name, kept, 7).sum()
        else:
            assert value == len({group for n, trained, group in rows if trained and n})
    shuffled = list(rows)
    random.shuffle(shuffled)
    assert of(shuffled) == expected


def test_the_tokens_of_a_prompt_are_those_of_its_trained_samples():
    tokens_B, groups = np.asarray([3, 1, 2, 4]), ["a", "b", "a", "a"]
    assert prompt_tokens(tokens_B, groups).tolist() == [9, 1, 9, 9]
    assert prompt_tokens(tokens_B, groups, np.asarray([True, False, True, False])).tolist() == [5, 0, 5, 5]


def test_what_is_missing_is_named():
    batch = batch_of([-1.0], advantages=[1.0])
    with pytest.raises(ValueError, match=r"extra_B\['prompt_tokens'\]"):
        evaluate(batch, [-1.0], aggregation="prompt_mean")
    with pytest.raises(ValueError, match="group of each"):
        denominator("prompt_mean", np.asarray([1, 2]))
    with pytest.raises(SettingsError, match="fixed length"):
        evaluate(batch, [-1.0], aggregation="seq_mean_token_sum_norm")
    with pytest.raises(SettingsError, match="'token_mean'"):
        evaluate(batch, [-1.0], aggregation="mean")
