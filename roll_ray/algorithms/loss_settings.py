"""The settings of a loss as plain data, so that a driver can write them down without loading torch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True)
class LossSettings:
    """Which loss with which constants. `proximal`: where the ratio's old log-probabilities come from, the
    trainer at the start of the step or the engine that sampled."""

    name: str = "ppo"
    clip_low: float = 0.2
    clip_high: float = 0.2
    dual_clip: float | None = None
    aggregation: str = "token_mean"
    kl_coefficient: float = 0.0
    proximal: Literal["trainer", "engine"] = "trainer"
