"""What every trainer backend does. One object per data-parallel rank; all ranks call the same methods in step."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, Protocol

import numpy as np
import numpy.typing as npt

from roll_ray.batch import Batch

if TYPE_CHECKING:  # plain data below must be importable without torch
    import torch

    from roll_ray.algorithms.losses import Loss
    from roll_ray.algorithms.metric_sums import MetricSum


@dataclass(frozen=True, slots=True)
class OptimizerSettings:
    """AdamW (betas 0.9 and 0.999, eps 1e-8) and its schedule. `total_steps`: optimizer steps of the whole run,
    where lr_schedule "linear" reaches 0."""

    learning_rate: float
    warmup_steps: int = 0
    lr_schedule: Literal["constant", "linear"] = "constant"
    total_steps: int = 1
    weight_decay: float = 0.0
    max_grad_norm: float = 1.0

    def rate_at(self, step: int) -> float:
        """Learning rate of optimizer step `step`, counted from 0: rises to the full rate over the warm-up."""
        if step < self.warmup_steps:
            return self.learning_rate * (step + 1) / self.warmup_steps
        if self.lr_schedule == "constant":
            return self.learning_rate
        left = max(0, self.total_steps - step)
        return self.learning_rate * left / max(1, self.total_steps - self.warmup_steps)


@dataclass(frozen=True, slots=True)
class StepMetrics:
    """`grad_norm`: of the divided gradient before clipping; NaN or infinite when that is why it was skipped.
    `skipped`: why nothing was updated, empty when it was."""

    grad_norm: float
    learning_rate: float
    skipped: str = ""


class TrainerBackend(Protocol):
    """Accumulates un-normalised sums, then divides once, in `step`.

    Ranks may hold different shares, also empty ones: the backend makes their collectives agree.
    """

    def accumulate(self, share: Batch, loss: Loss, *, final: bool = True) -> dict[str, MetricSum]:
        """Add the gradient of this rank's share to what is there; returns this rank's metrics.

        `final`: no more shares before the next `step`; its last micro-batch sums gradients over ranks.
        """

    def step(self, denominator: float) -> StepMetrics:
        """Divide the sum by `denominator` (equal on all ranks), clip by the global norm, update, clear.

        A denominator of 0 or a gradient that is not finite updates nothing and says so.
        """

    def logprobs(self, share: Batch) -> npt.NDArray[np.float32]:
        """Log-probabilities [T] of the share's policy tokens, 0 elsewhere; no gradient."""

    def sequence_logprobs(self, token_ids: list[int]) -> list[float]:
        """Log-probabilities of tokens 1..n-1 of one sequence at temperature 1, the same on every rank."""

    def named_tensors(self, on_cpu: bool = True) -> Iterator[tuple[str, torch.Tensor]]:
        """Every weight, whole, on the CPU or on the rank's device, under its checkpoint name, in the dtype that
        engines hold.

        All ranks must enter and exhaust it. A tied head is not repeated. A tensor is valid until the next `step`.
        """

    def save(self, folder: str) -> None:
        """Weights, optimizer, counters and random state into a folder that all ranks reach."""

    def load(self, folder: str) -> None:
        """Go on from `save`, bit-equal on as many ranks; another number of ranks re-shards."""
