"""The sample store gives back exactly what was put, names what it lacks, and forgets what is dropped."""

from __future__ import annotations

import pickle

import numpy as np
import pytest

from roll_ray.sample import Reward, Role, Sample, SamplingDistribution, Times, TrajectoryBuilder
from schedulers.protocol import SampleId, Visit
from workers.sample_store import SamplesLostError, SampleStore


def make(index: int, attempt: int = 0, finish: str = "stop", n: int = 3) -> Sample:
    builder = TrajectoryBuilder()
    builder.append_given([1, 2], Role.PROMPT)
    builder.append_policy([10 + i for i in range(n)], [-0.5] * n, [4 + (i > 1) for i in range(n)])
    return Sample(
        id=SampleId(Visit("p", 0), index),
        attempt=attempt,
        reward=Reward(float(index), "right"),
        finish_reason=finish,
        sampling=SamplingDistribution(),
        domain="maths",
        times=Times(10.0, 12.0, 12.5),
        **builder.arrays(),
    )


def test_a_fetched_batch_holds_the_samples_in_the_order_asked() -> None:
    store = SampleStore("store-0")
    samples = [make(i, finish="length" if i == 1 else "stop") for i in range(3)]
    store.put_many(samples)
    batch = store.fetch([(samples[2].id, 0), (samples[1].id, 0)])
    assert batch.ids == (samples[2].id, samples[1].id)
    np.testing.assert_array_equal(batch.tokens_T, np.concatenate([samples[2].tokens_T, samples[1].tokens_T]))
    assert batch.truncated_B.tolist() == [False, True]
    assert batch.rewards_B.tolist() == [2.0, 1.0]


def test_receipts_are_numbers_about_the_sample() -> None:
    (receipt,) = SampleStore("store-0").put_many([make(1, attempt=2, finish="length")])
    assert (receipt.sample.index, receipt.attempt, receipt.store) == (1, 2, "store-0")
    assert (receipt.n_tokens, receipt.n_policy_tokens, receipt.truncated) == (5, 3, True)
    assert (receipt.version_min, receipt.version_max) == (4, 5)
    assert (receipt.generation_s, receipt.reward_s) == (2.0, 0.5)
    assert (receipt.reward, receipt.reason, receipt.domain) == (1.0, "right", "maths")


def test_a_response_without_tokens_has_a_receipt_too() -> None:
    (receipt,) = SampleStore("s").put_many([make(0, n=0)])
    assert (receipt.n_policy_tokens, receipt.version_min) == (0, -1)


def test_missing_samples_are_named_with_their_attempt_also_over_a_process_border() -> None:
    store = SampleStore("store-0")
    store.put_many([make(0)])
    with pytest.raises(SamplesLostError, match=r"store-0 does not hold p/0/0@1, p/0/5@0") as caught:
        store.fetch([(make(0).id, 0), (make(0).id, 1), (make(5).id, 0)])
    again = pickle.loads(pickle.dumps(caught.value))
    assert again.keys == caught.value.keys == ((make(0).id, 1), (make(5).id, 0))
    assert isinstance(again, LookupError)


def test_memory_is_given_back_and_its_maximum_kept() -> None:
    store = SampleStore("store-0")
    for _ in range(2):
        store.put_many([make(0), make(1)])
    held = store.metrics()["bytes"]
    assert held == 2 * 5 * (4 + 1 + 4 + 4)
    assert len(store.inventory()) == 2
    for _ in range(2):
        store.drop([(make(0).id, 0), (make(1).id, 0)])
    assert store.metrics() == {"samples": 0.0, "bytes": 0.0, "bytes_max": held}
