"""A recorded batch comes back bit-equal, on any number of ranks."""

import asyncio

import numpy as np
import pytest

from roll_ray.actors import LocalActor, Pool
from roll_ray.batch import Batch
from roll_ray.errors import RollRayError
from roll_ray.parts import MiniBatch, Part, Share, share_out
from roll_ray.receipts import Cut, Receipt
from roll_ray.recording import Recorder, ReplayRollouts, load_batch, save_batch
from tests.roll_ray.test_batch import make_sample


def test_a_batch_survives_its_file_to_the_last_bit(tmp_path):
    batch = Batch.of([make_sample("a", 0), make_sample("b", 1, n_policy=0, reward=None)])
    save_batch(tmp_path / "batch.npz", batch)
    back = load_batch(tmp_path / "batch.npz")
    for name in ("offsets", "tokens_T", "roles_T", "logprobs_T", "versions_T", "rewards_B"):
        np.testing.assert_array_equal(getattr(back, name), getattr(batch, name))
    assert (back.ids, back.sampling, back.reasons) == (batch.ids, batch.sampling, batch.reasons)


class RankThatRecords:
    def record(self, path, *sources):
        save_batch(path_of(path), Batch.concatenate(sources))


def path_of(text):
    from pathlib import Path

    return Path(text)


class OnePart:
    def __init__(self, part):
        self.part = part

    async def parts(self, step):
        yield self.part


def receipt_of(sample, store="store-0"):
    return Receipt(
        sample.id,
        0,
        store,
        len(sample.tokens_T),
        sample.n_policy_tokens,
        False,
        1.0,
        "",
        "default",
        7,
        7,
        0.0,
        0.0,
    )


@pytest.mark.parametrize("replay_ranks", [1, 2, 3])
def test_a_recorded_step_replays_the_same_samples_on_any_number_of_ranks(tmp_path, replay_ranks):
    samples = {s.id: s for s in (make_sample(p, i, n_policy=i + 1) for p in "abc" for i in range(4))}
    receipts = tuple(receipt_of(samples[i]) for i in sorted(samples))
    shares = tuple(
        Share(tuple(rank), (Batch.of([samples[r.sample] for r in rank]),)) for rank in share_out(receipts, 2)
    )
    part = Part(Cut(1, receipts), (MiniBatch(shares),))
    ranks = Pool("actor-train", [LocalActor(RankThatRecords(), f"actor-train-{r}") for r in range(2)])

    async def round_trip():
        async for _ in Recorder(OnePart(part), ranks, tmp_path).parts(1):
            pass
        return [p async for p in ReplayRollouts(tmp_path, 1, replay_ranks).parts(1)]

    (replayed,) = asyncio.run(round_trip())
    assert [r.sample for r in replayed.cut.receipts] == sorted(samples)
    assert len(replayed.mini_batches[0].shares) == replay_ranks
    for share in replayed.mini_batches[0].shares:
        loaded = [b.sample(i) for b in (h.load() for h in share.handles) for i in range(len(b))]
        assert [s.id for s in loaded] == [r.sample for r in share.receipts]
        for sample in loaded:
            np.testing.assert_array_equal(sample.tokens_T, samples[sample.id].tokens_T)


def test_a_step_that_was_not_recorded_is_named_with_those_that_were(tmp_path):
    async def first_part():
        return [p async for p in ReplayRollouts(tmp_path, 1, 1).parts(3)]

    with pytest.raises(RollRayError, match="no recorded batch for step 3"):
        asyncio.run(first_part())
