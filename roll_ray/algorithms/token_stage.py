"""Advantages that differ within a response: from the sample's share to its tokens. Runs on the trainer ranks.

The driver gives each sample one number (its reward, less a baseline). Here it becomes the reward of the last
policy token, the KL to the reference joins as a cost of every policy token, and returns are summed from
behind. Or it gives a number for each turn, which every token of the turn gets. Whitening needs the whole
batch: ranks report `Moments`, the driver merges them, and `finish` uses them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from roll_ray.algorithms.estimator_registry import Array
from roll_ray.algorithms.loss_settings import KlEstimator
from roll_ray.algorithms.returns import returns_to_go, segment_returns
from roll_ray.algorithms.turn_advantages import spread_over_tokens
from roll_ray.algorithms.whitening import Moments, whiten


@dataclass(frozen=True, slots=True)
class TokenStage:
    """`gamma` discounts over policy tokens, or with `by_segment` over unbroken runs of them. With `by_turn` the driver
    has made the advantages. `kl_coefficient`, `kl_estimator`: the KL in the token reward; 0: none."""

    gamma: float = 1.0
    by_segment: bool = False
    kl_coefficient: float = 0.0
    kl_estimator: KlEstimator = "k1"
    by_turn: bool = False

    def advantages(
        self,
        extra_B: Mapping[str, Array],
        mask_T: Array,
        offsets: Array,
        kl_T: Array | None,
        coefficient: float,
    ) -> Array:
        """Advantages [T], 0 at masked tokens. `kl_T`: of each policy token; it costs `coefficient` times as much.

        `extra_B`: `advantages`, and with `by_turn` also `turn_advantages` and `turn_tokens`, arrays of arrays."""
        if self.by_turn:
            return spread_over_tokens(extra_B["turn_advantages"], extra_B["turn_tokens"], mask_T)
        costs_T = None if kl_T is None else -coefficient * kl_T
        returns = segment_returns if self.by_segment else returns_to_go
        return returns(extra_B["advantages"], mask_T, offsets, self.gamma, costs_T)


def finished(advantages_T: Array, moments: Moments | None, clip: float | None) -> Array:
    """Whitened with the moments of the whole batch unless None, then clipped to [-clip, clip] unless None."""
    if moments is not None:
        advantages_T = whiten(advantages_T, moments)
    return advantages_T if clip is None else np.clip(advantages_T, -clip, clip)
