"""What a loss sees of a batch: tensors over the tokens to train on. Masked places, junk or not, are left behind."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from roll_ray.algorithms.aggregation import aggregation_named, sample_counts
from roll_ray.algorithms.segments import Segments
from roll_ray.batch import Batch


@dataclass(frozen=True, slots=True)
class TokenBatch:
    """The tokens to train on, T of them, one sample after another: policy tokens of samples that are trained on.

    A sample is left out where `extra_B["trained"]` is False. `positions_T`: where the tokens stand in the
    batch. `lengths_B`: how many each sample has, on the host. `weights_T`: the aggregation's weight.
    `old_logprobs_T`: the trainer's at the start of the step, None when the current ones are those.
    `engine_logprobs_T`: what the engine reported at sampling. `counts_B`: what a sample adds to the denominator,
    for a correction that rejects. What the batch does not carry, or the loss did not ask for, is None.
    """

    positions_T: torch.Tensor
    lengths_B: npt.NDArray[np.int64]
    weights_T: torch.Tensor
    engine_logprobs_T: torch.Tensor
    advantages_T: torch.Tensor | None
    old_logprobs_T: torch.Tensor | None
    reference_logprobs_T: torch.Tensor | None
    rewards_T: torch.Tensor | None = None
    counts_B: torch.Tensor | None = None

    @staticmethod
    def of(
        batch: Batch,
        aggregation: str,
        device: torch.device | str = "cpu",
        *,
        rewards: bool = False,
        counts: bool = False,
        aggregation_length: int | None = None,
    ) -> TokenBatch:
        """Tensors of a batch. Its arrays may be read-only: they are copied.

        `rewards`: with `rewards_T`, and without samples whose reward is invalid. `counts`: with `counts_B`.
        """
        policy_tokens_B = batch.policy_tokens_B
        trained_B = np.asarray(batch.extra_B.get("trained", np.ones(len(batch))), np.bool_)
        if rewards:
            trained_B = trained_B & ~np.isnan(batch.rewards_B)
        mask_T = batch.policy_mask_T
        if not trained_B.all():
            mask_T = mask_T & np.repeat(trained_B, batch.lengths_B)
        positions_T = np.flatnonzero(mask_T)
        lengths_B = np.where(trained_B, policy_tokens_B, 0)

        def on_device(values: npt.NDArray[Any]) -> torch.Tensor:
            return torch.from_numpy(values.astype(np.float32, copy=False)).to(device)

        def per_token(values_T: npt.NDArray[Any]) -> torch.Tensor:
            return on_device(values_T[positions_T])

        def per_sample(values_B: npt.NDArray[Any]) -> torch.Tensor:
            return on_device(np.repeat(values_B.astype(np.float32), lengths_B))

        def optional(name: str) -> torch.Tensor | None:
            return per_token(batch.extra_T[name]) if name in batch.extra_T else None

        advantages_T = optional("advantages")
        if advantages_T is None and "advantages" in batch.extra_B:
            advantages_T = per_sample(batch.extra_B["advantages"])
        return TokenBatch(
            positions_T=torch.from_numpy(positions_T).to(device),
            lengths_B=lengths_B,
            weights_T=per_sample(_weights_B(batch, aggregation, policy_tokens_B)),
            engine_logprobs_T=per_token(batch.logprobs_T),
            advantages_T=advantages_T,
            old_logprobs_T=optional("old_logprobs"),
            reference_logprobs_T=optional("reference_logprobs"),
            rewards_T=per_sample(batch.rewards_B) if rewards else None,
            counts_B=on_device(sample_counts(aggregation, lengths_B, aggregation_length)) if counts else None,
        )

    @property
    def n_tokens(self) -> int:
        return len(self.positions_T)

    def segments(self) -> Segments:
        return Segments(torch.from_numpy(self.lengths_B).to(self.positions_T.device), self.n_tokens)

    def pieces(self, tokens: int) -> Iterator[TokenBatch]:
        """Views of whole samples, each of no more than `tokens` tokens or of one sample, in order."""
        ends = np.concatenate([[0], np.cumsum(self.lengths_B)])
        start = 0
        while start < len(self.lengths_B):
            stop = max(start + 1, int(np.searchsorted(ends, ends[start] + tokens, side="right")) - 1)
            if ends[stop] > ends[start]:
                yield self._part(slice(start, stop), slice(int(ends[start]), int(ends[stop])))
            start = stop

    def _part(self, samples: slice, span_T: slice) -> TokenBatch:
        cut: dict[str, Any] = {}
        for field in dataclasses.fields(self):
            values = getattr(self, field.name)
            cut[field.name] = (
                None if values is None else values[samples if field.name.endswith("_B") else span_T]
            )
        return TokenBatch(**cut)


def _weights_B(
    batch: Batch, aggregation: str, policy_tokens_B: npt.NDArray[np.int64]
) -> npt.NDArray[np.float64]:
    chosen = aggregation_named(aggregation)
    if not chosen.per_prompt:
        return chosen.weights_B(policy_tokens_B)
    if "prompt_tokens" not in batch.extra_B:
        raise ValueError(
            f"aggregation {aggregation!r} needs extra_B['prompt_tokens'], which this batch does not carry"
        )
    return chosen.weights_B(batch.extra_B["prompt_tokens"])


@dataclass(frozen=True, slots=True)
class PolicyOutput:
    """What a backend computes for a batch: log-probability [T] of each token at its sample's own temperature,
    the entropy [T] of the distribution it was drawn from, a value [T]. T: all tokens; any number at masked
    places."""

    logprobs_T: torch.Tensor
    entropy_T: torch.Tensor | None = None
    values_T: torch.Tensor | None = None
