"""Batches are flat and lose nothing, whatever is selected, concatenated, cut or balanced."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from roll_ray.batch import Batch, balance_by_tokens, micro_batches
from roll_ray.sample import Reward, Role, Sample, SamplingDistribution, TrajectoryBuilder
from schedulers.protocol import SampleId, Visit


def make_sample(
    prompt: str, index: int, n_prompt: int = 2, n_policy: int = 3, reward: float | None = 1.0
) -> Sample:
    builder = TrajectoryBuilder()
    builder.append_given(list(range(n_prompt)), Role.PROMPT)
    builder.append_policy(list(range(n_policy)), [-0.5] * n_policy, [7] * n_policy)
    verdict = Reward.invalid("judge failed") if reward is None else Reward(reward, "as given")
    return Sample(
        id=SampleId(Visit(prompt, 0), index),
        attempt=0,
        reward=verdict,
        finish_reason="stop",
        sampling=SamplingDistribution(0.6),
        **builder.arrays(),
    )


def test_an_engine_that_reports_a_log_probability_too_few_is_refused():
    with pytest.raises(ValueError, match="2 tokens, 1 log-probabilities"):
        TrajectoryBuilder().append_policy([1, 2], [-0.1], [0, 0])


def test_samples_come_back_from_a_batch_as_they_went_in():
    samples = [make_sample("a", 0), make_sample("b", 1, n_policy=0, reward=None), make_sample("c", 2, 5, 1)]
    batch = Batch.of(samples)
    assert batch.policy_tokens_B.tolist() == [3, 0, 1]
    for i, sample in enumerate(samples):
        back = batch.sample(i)
        assert (back.id, back.reward, back.sampling) == (sample.id, sample.reward, sample.sampling)
        np.testing.assert_array_equal(back.tokens_T, sample.tokens_T)
        np.testing.assert_array_equal(back.logprobs_T, sample.logprobs_T)


def test_an_answer_of_no_tokens_keeps_its_reward_and_has_no_policy_token():
    batch = Batch.of([make_sample("a", 0, n_policy=0)])
    assert batch.rewards_B.tolist() == [1.0]
    assert not batch.policy_mask_T.any()


def test_select_takes_the_extra_fields_along():
    batch = Batch.of([make_sample("a", i, n_policy=i + 1) for i in range(3)])
    batch.extra_T["old"] = np.arange(len(batch.tokens_T), dtype=np.float32)
    batch.extra_B["advantages"] = np.asarray([0.0, 1.0, 2.0], np.float32)
    chosen = batch.select([2, 0])
    assert chosen.extra_B["advantages"].tolist() == [2.0, 0.0]
    np.testing.assert_array_equal(
        chosen.extra_T["old"],
        np.concatenate(
            [batch.extra_T["old"][batch.token_span(2)], batch.extra_T["old"][batch.token_span(0)]]
        ),
    )


def test_concatenation_refuses_different_fields_and_names_them():
    with_field = Batch.of([make_sample("a", 0)])
    with_field.extra_B["advantages"] = np.zeros(1, np.float32)
    with pytest.raises(ValueError, match="advantages"):
        Batch.concatenate([with_field, Batch.of([make_sample("b", 0)])])


@given(st.lists(st.integers(1, 50), max_size=60), st.integers(1, 80))
def test_micro_batches_hold_every_sample_once_within_the_limit(lengths, limit):
    cut = micro_batches(np.asarray(lengths, np.int64), limit)
    assert sorted(i for m in cut for i in m) == list(range(len(lengths)))
    assert all(len(m) == 1 or sum(lengths[i] for i in m) <= limit for m in cut)


@given(st.lists(st.integers(1, 50), max_size=60), st.integers(1, 5))
def test_ranks_get_every_sample_once_and_differ_by_at_most_one_sample_of_tokens(lengths, ranks):
    shares = balance_by_tokens(lengths, ranks)
    assert sorted(i for share in shares for i in share) == list(range(len(lengths)))
    loads = [sum(lengths[i] for i in share) for share in shares]
    assert max(loads) - min(loads) <= max(lengths, default=0)
