"""A KL coefficient that follows a target (Ziegler et al., 1909.08593)."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

ERROR_LIMIT = 0.2


@dataclass(slots=True)
class AdaptiveKl:
    """beta *= 1 + error x n / horizon, with error = clip(kl / target - 1, -0.2, 0.2).

    `coefficient`: beta, where it stands. `target`: of the mean KL, in nats, > 0. `horizon`: samples over which a
    lasting error of 0.2 changes beta by about a fifth. beta stays above 0 for every n up to five horizons.
    """

    coefficient: float
    target: float
    horizon: int

    def __post_init__(self) -> None:
        if self.target <= 0 or self.horizon <= 0:
            raise ValueError(f"target {self.target} and horizon {self.horizon} of the KL must be above 0")

    def update(self, kl: float, n_samples: int) -> float:
        """The coefficient after a step of `n_samples` samples with the mean KL `kl`; a KL that is not finite
        leaves it as it is."""
        if math.isfinite(kl):
            error = min(max(kl / self.target - 1, -ERROR_LIMIT), ERROR_LIMIT)
            self.coefficient *= max(0.0, 1 + error * n_samples / self.horizon)
        return self.coefficient

    def state(self) -> dict[str, float]:
        """What a checkpoint keeps."""
        return {"coefficient": self.coefficient}

    def load(self, state: Mapping[str, float]) -> None:
        self.coefficient = float(state["coefficient"])
