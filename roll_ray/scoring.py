"""From rewards to mini-batches that can be trained on: advantages per sample or token, divisors per mini-batch."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from roll_ray.actors import Pool
from roll_ray.algorithms.whitening import EPS, NOT_WHITENED, Moments
from roll_ray.parts import MiniBatch, Part, Share
from roll_ray.receipts import Cut, Receipt
from roll_ray.worker_protocols import TrainerWorker
from schedulers.protocol import SampleId


@dataclass(frozen=True, slots=True)
class Estimate:
    """Advantages of a cut, shape [B] in the order of its receipts, what the estimator counted, and what it could
    not do, in words. `turn_advantages_B`: of an estimator by turn, for each sample those of its turns."""

    advantages_B: npt.NDArray[np.float32]
    metrics: Mapping[str, float] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    turn_advantages_B: Sequence[npt.NDArray[np.float32]] = ()


Estimator = Callable[[Cut], Estimate]
"""Group and batch statistics are computed where the scalars are: in the driver, over the whole cut."""


@dataclass(frozen=True, slots=True)
class Weights:
    """What a mini-batch adds to the loss's denominator, and what the loss must know of each of its samples
    ([B] each, in the order of the receipts)."""

    denominator: float
    extra_B: Mapping[str, npt.NDArray[np.generic]] = field(default_factory=dict)


Weighing = Callable[[Sequence[Receipt]], Weights]


@dataclass(frozen=True, slots=True)
class Finish:
    """How advantages that the trainer ranks computed per token end: whitened over the batch, clipped."""

    whiten: bool = False
    clip: float | None = None


@dataclass(slots=True)
class Scorer:
    """Adds to a part what training needs: advantages, divisors, and proximal log-probabilities if several
    optimizer steps follow one another on one batch (the ratio's reference is then the weights of now).

    `tokenwise`: the ranks turn each sample's advantage into one per token before the first optimizer step.
    `say` is told once of each thing that could not be done."""

    estimator: Estimator
    weigh: Weighing
    trainers: Pool[TrainerWorker]
    keeps_proximal: bool
    tokenwise: Finish | None = None
    metrics: dict[str, float] = field(default_factory=dict)
    say: Callable[[str], None] = print
    _said: set[str] = field(default_factory=set)

    async def __call__(self, part: Part) -> list[MiniBatch]:
        estimate = self.estimator(part.cut)
        self.metrics.update(estimate.metrics)
        self._say_once(estimate.notes)
        place = {receipt.sample: i for i, receipt in enumerate(part.cut.receipts)}
        scored = [self._scored(mini_batch, estimate, place) for mini_batch in part.mini_batches]
        if self.keeps_proximal and len(scored) > 1:
            for mini_batch in scored:
                handles = [share.handles for share in mini_batch.shares]
                await self.trainers.scatter(TrainerWorker.remember_proximal, handles)
        if self.tokenwise is not None:
            await self._token_advantages(scored, self.tokenwise)
        for i, mini_batch in enumerate(scored):
            closes = part.last or i < len(scored) - 1
            scored[i] = replace(mini_batch, closes_step=closes)
        return scored

    def _say_once(self, notes: Sequence[str]) -> None:
        for note in notes:
            if note not in self._said:
                self._said.add(note)
                self.say(note)

    def _scored(self, mini_batch: MiniBatch, estimate: Estimate, place: Mapping[SampleId, int]) -> MiniBatch:
        weights = self.weigh(mini_batch.receipts)
        shares, begin = [], 0
        for share in mini_batch.shares:
            span = slice(begin, begin := begin + len(share.receipts))
            extra_B = {name: values_B[span] for name, values_B in weights.extra_B.items()}
            own_B = _of_samples(estimate, share.receipts, [place[r.sample] for r in share.receipts])
            shares.append(replace(share, extra_B={**share.extra_B, **extra_B, **own_B}))
        return replace(mini_batch, shares=tuple(shares), denominator=weights.denominator)

    async def _token_advantages(self, mini_batches: Sequence[MiniBatch], finish: Finish) -> None:
        moments = Moments()
        for mini_batch in mini_batches:
            calls = [_call(share) for share in mini_batch.shares]
            for ranks in await self.trainers.scatter(TrainerWorker.token_advantages, calls):
                moments = moments.merged(ranks)
        whitened = moments if finish.whiten else None
        self._say_once([NOT_WHITENED] if finish.whiten and not moments.enough else [])
        await self.trainers.broadcast(TrainerWorker.finish_advantages, whitened, finish.clip)
        self.metrics.pop("advantage_abs_max", None)  # of the samples' shares, which are no advantages yet
        self.metrics |= _before_the_clip(moments, finish.whiten)


def _of_samples(
    estimate: Estimate, receipts: Sequence[Receipt], places: Sequence[int]
) -> dict[str, npt.NDArray[Any]]:
    """What the estimate says of some samples, which stand at these places of it."""
    values = {"advantages": np.asarray(estimate.advantages_B[list(places)], np.float32)}
    if not estimate.turn_advantages_B:
        return values
    tokens = [np.asarray([turn.n_policy_tokens for turn in r.each_turn], np.int64) for r in receipts]
    turns = [estimate.turn_advantages_B[i] for i in places]
    return {**values, "turn_advantages": _ragged(turns), "turn_tokens": _ragged(tokens)}


def _ragged(arrays: Sequence[npt.NDArray[Any]]) -> npt.NDArray[np.object_]:
    """One array of arrays of any lengths, which can be cut by sample as others are."""
    out_B = np.empty(len(arrays), np.object_)
    for i, array in enumerate(arrays):
        out_B[i] = array
    return out_B


def _before_the_clip(moments: Moments, whitens: bool) -> dict[str, float]:
    """Mean and standard deviation of the token advantages, whitened or not."""
    if whitens and moments.enough:
        return {
            "advantage_mean": 0.0,
            "advantage_std": math.sqrt(moments.variance / (moments.variance + EPS)),
        }
    return {"advantage_mean": moments.mean, "advantage_std": math.sqrt(moments.variance)}


def _call(share: Share) -> tuple[object, ...]:
    return (dict(share.extra_B), *share.handles)
