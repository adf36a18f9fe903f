"""Sums over the tokens of a sample, for samples that lie one after another."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch


@dataclass(frozen=True, slots=True)
class Segments:
    """Samples of `lengths_B` tokens each (int64 [B], 0 is fine), `n_tokens` (T) in all."""

    lengths_B: torch.Tensor
    n_tokens: int

    def sums_B(self, x_T: torch.Tensor) -> torch.Tensor:
        """The sum of each sample, [B]. No gradient. It does not depend on the samples beside it, not in a bit."""
        # float64: one after another, 8,192 float32 numbers of a kind are summed to four digits only
        sums_B = torch.segment_reduce(x_T.detach().double(), "sum", lengths=self.lengths_B, unsafe=True)
        return sums_B.to(x_T.dtype)

    def spread(self, x_B: torch.Tensor) -> torch.Tensor:
        """The number of each sample at all its tokens, [T]. No gradient."""
        return torch.repeat_interleave(x_B.detach(), self.lengths_B, output_size=self.n_tokens)

    def sum_T(self, x_T: torch.Tensor) -> torch.Tensor:
        """At each token the sum over its sample, [T], with gradient."""
        return _SampleSum.apply(x_T, self)

    def mean_T(self, x_T: torch.Tensor) -> torch.Tensor:
        """At each token the mean over its sample, [T], with gradient."""
        return self.sum_T(x_T) / self.spread(self.lengths_B.to(x_T.dtype))


class _SampleSum(torch.autograd.Function):
    """Sum over a sample, spread to its tokens: a symmetric matrix, so that backward is forward."""

    @staticmethod
    def forward(ctx: Any, x_T: torch.Tensor, segments: Segments) -> torch.Tensor:
        ctx.segments = segments
        return segments.spread(segments.sums_B(x_T))

    @staticmethod
    def backward(ctx: Any, *gradients_T: torch.Tensor) -> tuple[torch.Tensor, None]:
        return ctx.segments.spread(ctx.segments.sums_B(gradients_T[0])), None
