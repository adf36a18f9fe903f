"""Estimators of the KL divergence of the policy from a reference, per token."""

from __future__ import annotations

import torch


def k3(logprobs_T: torch.Tensor, reference_logprobs_T: torch.Tensor) -> torch.Tensor:
    """exp(-d) - 1 + d with d = log p - log p_ref: unbiased, never negative, not clamped (Schulman 2020).

    Where the policy makes a token far less likely than the reference does it grows exponentially: watch
    its reported maximum.
    """
    d_T = logprobs_T - reference_logprobs_T
    return torch.expm1(-d_T) + d_T
