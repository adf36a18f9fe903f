"""The KL coefficient of a trainer: fixed, or adapted after each optimizer step to the KL that all ranks saw."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import numpy as np

from roll_ray.algorithms.adaptive_kl import AdaptiveKl
from roll_ray.algorithms.metric_sums import MetricSum

FILE = "adaptive_kl.json"


class KlCoefficient:
    """`value` is what multiplies the KL now. Equal on all ranks."""

    def __init__(self, fixed: float, adaptive: AdaptiveKl | None) -> None:
        self._fixed = fixed
        self._adaptive = None if adaptive is None else dataclasses.replace(adaptive)
        self._seen = np.zeros(3)  # of this optimizer step: KL summed over tokens, tokens, samples

    @property
    def value(self) -> float:
        return self._fixed if self._adaptive is None else self._adaptive.coefficient

    def count(self, kl: MetricSum, n_samples: int) -> None:
        """The KL of some tokens of this rank."""
        self._seen += np.asarray([kl.total, kl.count, n_samples])

    def step(self) -> dict[str, float]:
        """End an optimizer step (collective): its metrics, `kl_coefficient` as it was used and the mean KL."""
        from workers.backends.process_group import total

        kl_sum, n_tokens, n_samples = (total(float(x)) for x in self._seen)
        self._seen = np.zeros(3)
        metrics = {"kl_coefficient": self.value}
        if n_tokens:
            metrics["kl"] = kl_sum / n_tokens
            if self._adaptive is not None:
                self._adaptive.update(metrics["kl"], int(n_samples))
        return metrics

    def save(self, folder: str) -> None:
        """For one rank to call."""
        if self._adaptive is not None:
            (Path(folder) / FILE).write_text(json.dumps(self._adaptive.state()))

    def load(self, folder: str) -> None:
        if self._adaptive is not None:
            self._adaptive.load(json.loads((Path(folder) / FILE).read_text()))
        self._seen = np.zeros(3)
