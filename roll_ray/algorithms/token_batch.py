"""What a loss sees of a batch: tensors over all its tokens, junk at masked places already removed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from roll_ray.algorithms.aggregation import AGGREGATIONS
from roll_ray.batch import Batch


@dataclass(frozen=True, slots=True)
class TokenBatch:
    """Shape [T] each, over the tokens of all samples one after another; `mask_T` is True on policy tokens.

    Everything but the mask is 0 where the mask is False. `weights_T` is the aggregation's weight.
    `old_logprobs_T`: the trainer's at the start of the step, None when the current ones are those.
    `engine_logprobs_T`: what the engine reported at sampling. `advantages_T`, `reference_logprobs_T`: None
    when the batch does not carry them.
    """

    mask_T: torch.Tensor
    weights_T: torch.Tensor
    engine_logprobs_T: torch.Tensor
    advantages_T: torch.Tensor | None
    old_logprobs_T: torch.Tensor | None
    reference_logprobs_T: torch.Tensor | None

    @staticmethod
    def of(batch: Batch, aggregation: str, device: torch.device | str = "cpu") -> TokenBatch:
        """Tensors of a batch. Its arrays may be read-only: they are copied."""
        mask_T = batch.policy_mask_T
        lengths_B, policy_tokens_B = batch.lengths_B, batch.policy_tokens_B

        def tensor(values_T: npt.NDArray[Any]) -> torch.Tensor:
            return torch.tensor(np.where(mask_T, values_T, 0).astype(np.float32), device=device)

        def per_sample(values_B: npt.NDArray[Any]) -> torch.Tensor:
            return tensor(np.repeat(values_B, lengths_B))

        def optional(name: str) -> torch.Tensor | None:
            return tensor(batch.extra_T[name]) if name in batch.extra_T else None

        advantages_B = batch.extra_B.get("advantages")
        return TokenBatch(
            mask_T=torch.tensor(mask_T, device=device),
            weights_T=per_sample(AGGREGATIONS[aggregation].weights_B(policy_tokens_B)),
            engine_logprobs_T=tensor(batch.logprobs_T),
            advantages_T=None if advantages_B is None else per_sample(advantages_B),
            old_logprobs_T=optional("old_logprobs"),
            reference_logprobs_T=optional("reference_logprobs"),
        )


@dataclass(frozen=True, slots=True)
class PolicyOutput:
    """What a backend computes for a batch: log-probability [T] of each token at its sample's own temperature,
    the entropy [T] of the distribution it was drawn from, a value [T]. Any number at masked places."""

    logprobs_T: torch.Tensor
    entropy_T: torch.Tensor | None = None
    values_T: torch.Tensor | None = None

    def masked(self, mask_T: torch.Tensor) -> PolicyOutput:
        """The same with 0 at masked places, in value and in gradient (NaN times 0 would be NaN)."""

        def clean(x_T: torch.Tensor | None) -> torch.Tensor | None:
            return None if x_T is None else torch.where(mask_T, x_T, torch.zeros_like(x_T))

        logprobs_T = clean(self.logprobs_T)
        assert logprobs_T is not None
        return PolicyOutput(logprobs_T, clean(self.entropy_T), clean(self.values_T))
