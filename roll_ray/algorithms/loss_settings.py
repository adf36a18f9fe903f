"""The settings of a loss as plain data, so that a driver can write them down without loading torch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

KlEstimator = Literal["k1", "k2", "k3", "abs", "straight_through"]
CorrectionName = Literal[
    "none", "truncated_is", "icepop", "geometric_band", "product_band", "outlier_token", "rejection"
]


@dataclass(frozen=True, slots=True)
class LossSettings:
    """Which loss with which constants; a constant of a loss that is not chosen is not looked at.

    `clip_low`, `clip_high`: ppo, gspo, cispo and decoupled_ppo clip their ratio to [1 - low, 1 + high].
    `dual_clip`: the bound c of ppo and decoupled_ppo where the advantage is negative; None: no bound.
    `aggregation_length`: the fixed length of seq_mean_token_sum_norm, in tokens.
    `entropy_coefficient`: weight of the entropy, subtracted from the loss of a token; 0: none.
    `kl_coefficient`, `kl_estimator`: the KL term of the loss; 0 leaves it and the reference out.
    `proximal`: where the ratio's old log-probabilities come from, the trainer at the start of the step or
    the engine that sampled.
    `cispo_anchor`: cispo's ratio is to the proximal policy or to the one that sampled.
    `correction_low`, `correction_high`: None takes the correction's own default (see `corrections`).
    """

    name: str = "ppo"
    clip_low: float = 0.2
    clip_high: float = 0.2
    dual_clip: float | None = None
    aggregation: str = "token_mean"
    aggregation_length: int | None = None
    entropy_coefficient: float = 0.0
    kl_coefficient: float = 0.0
    kl_estimator: KlEstimator = "k3"
    proximal: Literal["trainer", "engine"] = "trainer"
    cispo_anchor: Literal["proximal", "behaviour"] = "proximal"
    topr_positive_weight: float = 1.0
    topr_negative_weight: float = 1.0
    kimi_tau: float = 0.1
    sapo_tau_positive: float = 1.0
    sapo_tau_negative: float = 1.05
    gmpo_clip: float = 0.4
    tis_low: float = 0.0
    tis_high: float = 1.0
    decoupled_cap: float = 5.0
    correction: CorrectionName = "none"
    correction_level: Literal["token", "sequence"] = "token"
    correction_low: float | None = None
    correction_high: float | None = None
