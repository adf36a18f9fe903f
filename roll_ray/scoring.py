"""From rewards to mini-batches that can be trained on: advantages per sample, divisors per mini-batch."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt

from roll_ray.actors import Pool
from roll_ray.parts import MiniBatch, Part, Share
from roll_ray.receipts import Cut, Receipt
from roll_ray.worker_protocols import TrainerWorker
from schedulers.protocol import SampleId


@dataclass(frozen=True, slots=True)
class Estimate:
    """Advantages of a cut, shape [B] in the order of its receipts, and what the estimator counted."""

    advantages_B: npt.NDArray[np.float32]
    metrics: Mapping[str, float] = field(default_factory=dict)


Estimator = Callable[[Cut], Estimate]
"""Group and batch statistics are computed where the scalars are: in the driver, over the whole cut."""

Divisor = Callable[[Sequence[Receipt]], float]
"""What a set of samples adds to the loss's denominator."""


@dataclass(slots=True)
class Scorer:
    """Adds to a part what training needs: advantages, divisors, and proximal log-probabilities if several
    optimizer steps follow one another on one batch (the ratio's reference is then the weights of now)."""

    estimator: Estimator
    divisor: Divisor
    trainers: Pool[TrainerWorker]
    keeps_proximal: bool
    metrics: dict[str, float] = field(default_factory=dict)

    async def __call__(self, part: Part) -> list[MiniBatch]:
        estimate = self.estimator(part.cut)
        self.metrics.update(estimate.metrics)
        pairs = zip(part.cut.receipts, estimate.advantages_B, strict=True)
        advantages = {receipt.sample: float(value) for receipt, value in pairs}
        scored = [self._scored(mini_batch, advantages) for mini_batch in part.mini_batches]
        if self.keeps_proximal and len(scored) > 1:
            for mini_batch in scored:
                handles = [share.handles for share in mini_batch.shares]
                await self.trainers.scatter(TrainerWorker.remember_proximal, handles)
        for i, mini_batch in enumerate(scored):
            closes = part.last or i < len(scored) - 1
            scored[i] = replace(mini_batch, closes_step=closes)
        return scored

    def _scored(self, mini_batch: MiniBatch, advantages: Mapping[SampleId, float]) -> MiniBatch:
        shares = tuple(self._with_advantages(share, advantages) for share in mini_batch.shares)
        return replace(mini_batch, shares=shares, denominator=self.divisor(mini_batch.receipts))

    def _with_advantages(self, share: Share, advantages: Mapping[SampleId, float]) -> Share:
        values = np.asarray([advantages[r.sample] for r in share.receipts], np.float32)
        return replace(share, extra_B={**share.extra_B, "advantages": values})
