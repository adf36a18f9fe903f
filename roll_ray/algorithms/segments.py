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
        return _SampleSum.apply(x_T, self, None)

    def mean_T(self, x_T: torch.Tensor) -> torch.Tensor:
        """At each token the mean over its sample, [T], with gradient."""
        return _SampleSum.apply(x_T, self, self.lengths_B.to(x_T.dtype))


class _SampleSum(torch.autograd.Function):
    """Sum over a sample, divided by its divisor, spread to its tokens: a symmetric matrix, so that backward is
    forward."""

    @staticmethod
    def forward(
        ctx: Any, x_T: torch.Tensor, segments: Segments, divisors_B: torch.Tensor | None
    ) -> torch.Tensor:
        ctx.segments, ctx.divisors_B = segments, divisors_B
        return _summed(x_T, segments, divisors_B)

    @staticmethod
    def backward(ctx: Any, *gradients_T: torch.Tensor) -> tuple[torch.Tensor, None, None]:
        return _summed(gradients_T[0], ctx.segments, ctx.divisors_B), None, None


def _summed(x_T: torch.Tensor, segments: Segments, divisors_B: torch.Tensor | None) -> torch.Tensor:
    sums_B = segments.sums_B(x_T)
    return segments.spread(sums_B if divisors_B is None else sums_B / divisors_B)
