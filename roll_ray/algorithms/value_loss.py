"""The loss of a critic. A library function: no pipeline of this version trains one."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch


def clipped_value_loss(
    values_T: torch.Tensor, old_values_T: torch.Tensor, returns_T: torch.Tensor, clip: float = 0.2
) -> torch.Tensor:
    """1/2 max((V - R)^2, (clip(V, V_old - e, V_old + e) - R)^2) per token, e = `clip` (PPO's reference code).

    Shapes [T], over the tokens to train on. No gradient where the clipped value is the worse one.
    """
    clipped_T = values_T.maximum(old_values_T - clip).minimum(old_values_T + clip)
    error_T, clipped_error_T = values_T - returns_T, clipped_T - returns_T
    return 0.5 * (error_T * error_T).maximum(clipped_error_T * clipped_error_T)


def value_clip_fraction(
    values_T: torch.Tensor, old_values_T: torch.Tensor, returns_T: torch.Tensor, clip: float = 0.2
) -> float:
    """Share of tokens whose value is outside the clip and whose gradient the clip took; 0 without tokens."""
    if not values_T.numel():
        return 0.0
    clipped_T = values_T.maximum(old_values_T - clip).minimum(old_values_T + clip)
    held_T = (clipped_T - returns_T).abs() > (values_T - returns_T).abs()
    return float(held_T.float().mean())
