"""Losses of preference pairs. Library functions: no pipeline of this version makes pairs.

delta of a response = sum over its policy tokens of log p - log p_ref. Shapes [P], a pair each; the mean over
pairs is the caller's.
"""

from __future__ import annotations

import torch


def response_deltas(
    logprobs_T: torch.Tensor,
    reference_logprobs_T: torch.Tensor,
    mask_T: torch.Tensor,
    samples_T: torch.Tensor,
    n_samples: int,
) -> torch.Tensor:
    """delta of each response, [B], with gradient. `samples_T` (int64 [T]): the response of each token; anything
    may stand where `mask_T` is False."""
    zero = logprobs_T.new_zeros(())
    # both sides, before the difference: NaN times the 0 of a mask would be NaN in the gradient
    own_T = torch.where(mask_T, logprobs_T, zero)
    reference_T = torch.where(mask_T, reference_logprobs_T, zero)
    return logprobs_T.new_zeros(n_samples).index_add(0, samples_T, own_T - reference_T)


def dpo(
    chosen_P: torch.Tensor, rejected_P: torch.Tensor, beta: float = 0.1, label_smoothing: float = 0.0
) -> torch.Tensor:
    """-log sigmoid(beta h) with h = delta_chosen - delta_rejected (DPO 2305.18290, equation 7).

    `label_smoothing` e, the chance that a label is flipped: -(1 - e) log sigmoid(beta h) - e log sigmoid(-beta h)
    (conservative DPO), 0 <= e < 1/2.
    """
    x_P = beta * (chosen_P - rejected_P)
    softplus = torch.nn.functional.softplus
    return (1 - label_smoothing) * softplus(-x_P) + label_smoothing * softplus(x_P)


def ipo(chosen_P: torch.Tensor, rejected_P: torch.Tensor, beta: float = 0.1) -> torch.Tensor:
    """(h - 1 / (2 beta))^2 with h = delta_chosen - delta_rejected (IPO 2310.12036, equation 17)."""
    return (chosen_P - rejected_P - 1 / (2 * beta)).square()
