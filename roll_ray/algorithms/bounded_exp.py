"""exp for importance ratios, which float32 cannot hold beyond e^88."""

from __future__ import annotations

from typing import Any

import torch

LOG_RATIO_MAX = 80.0
"""In nats."""


class BoundedExp(torch.autograd.Function):
    """min(exp(x), e^80). The gradient beyond is that at the bound, so that a ratio still finds its way back."""

    @staticmethod
    def forward(ctx: Any, x_T: torch.Tensor) -> torch.Tensor:
        exp_T = x_T.clamp(max=LOG_RATIO_MAX).exp_()
        ctx.save_for_backward(exp_T)
        return exp_T

    @staticmethod
    def backward(ctx: Any, *gradients_T: torch.Tensor) -> torch.Tensor:
        return gradients_T[0] * ctx.saved_tensors[0]
