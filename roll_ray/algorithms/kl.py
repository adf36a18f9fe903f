"""Estimators of the KL divergence of the policy from a reference, per token, of samples of the policy.

Everywhere d = log p - log p_ref (Schulman 2020, "Approximating KL divergence"). Shapes [T] in, [T] out.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch


def k1(logprobs_T: torch.Tensor, reference_logprobs_T: torch.Tensor) -> torch.Tensor:
    """d: unbiased, of either sign. Its gradient is that of log p and has mean 0: as a term of the loss it does
    not pull towards the reference; it is meant for the token reward."""
    return logprobs_T - reference_logprobs_T


def k2(logprobs_T: torch.Tensor, reference_logprobs_T: torch.Tensor) -> torch.Tensor:
    """d^2 / 2: biased, never negative; the mean of its gradient is the gradient of the KL."""
    d_T = logprobs_T - reference_logprobs_T
    return 0.5 * d_T * d_T


def k3(logprobs_T: torch.Tensor, reference_logprobs_T: torch.Tensor) -> torch.Tensor:
    """exp(-d) - 1 + d: unbiased, never negative, not clamped.

    Where the policy makes a token far less likely than the reference does it grows exponentially: watch
    its reported maximum.
    """
    d_T = logprobs_T - reference_logprobs_T
    return (-d_T).expm1() + d_T


def absolute(logprobs_T: torch.Tensor, reference_logprobs_T: torch.Tensor) -> torch.Tensor:
    """|d|; gradient 0 where d = 0."""
    return (logprobs_T - reference_logprobs_T).abs()


def straight_through(logprobs_T: torch.Tensor, reference_logprobs_T: torch.Tensor) -> torch.Tensor:
    """The value of k3 (unbiased) with the gradient of k2 (unbiased for the gradient of the KL)."""
    gradient_T = k2(logprobs_T, reference_logprobs_T)
    value_T = k3(logprobs_T.detach(), reference_logprobs_T)
    return gradient_T + (value_T - gradient_T.detach())


KL_ESTIMATORS: dict[str, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = {
    "k1": k1,
    "k2": k2,
    "k3": k3,
    "abs": absolute,
    "straight_through": straight_through,
}
