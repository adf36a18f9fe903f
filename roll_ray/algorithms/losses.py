"""Losses. Each is written once, as `loss(batch, output) -> LossOutput`, and never sees logits.

A policy loss is one function that gives a loss per token, registered with `@policy_loss(name)`; masking,
aggregation, the KL term and the metrics are added around it by `build_loss`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import torch

from roll_ray.algorithms.kl import k3
from roll_ray.algorithms.loss_settings import LossSettings
from roll_ray.algorithms.metric_sums import MetricSum
from roll_ray.algorithms.token_batch import PolicyOutput, TokenBatch
from roll_ray.batch import Batch
from roll_ray.errors import SettingsError


@dataclass(frozen=True, slots=True)
class LossOutput:
    """`loss`: the weighted sum over tokens, not yet divided by anything (scalar, carries the gradient)."""

    loss: torch.Tensor
    metrics: dict[str, MetricSum]


@dataclass(frozen=True, slots=True)
class Terms:
    """Per-token inputs of a policy loss, clean at masked places: current and old log-probabilities [T],
    advantages [T] (zeros for a loss that needs none), the mask [T]."""

    logprobs_T: torch.Tensor
    old_logprobs_T: torch.Tensor
    advantages_T: torch.Tensor
    mask_T: torch.Tensor


@dataclass(frozen=True, slots=True)
class TokenLoss:
    """Loss per token [T] and the metrics that only this loss has."""

    loss_T: torch.Tensor
    metrics: dict[str, MetricSum] = field(default_factory=dict)


TokenLossFunction = Callable[[Terms, LossSettings], TokenLoss]


@dataclass(frozen=True, slots=True)
class Registered:
    function: TokenLossFunction
    needs_advantages: bool


LOSSES: dict[str, Registered] = {}


def policy_loss(
    name: str, *, needs_advantages: bool = True
) -> Callable[[TokenLossFunction], TokenLossFunction]:
    """Register a per-token loss under the name that settings use."""

    def register(function: TokenLossFunction) -> TokenLossFunction:
        if name in LOSSES:
            raise ValueError(f"loss {name!r} is registered twice")
        LOSSES[name] = Registered(function, needs_advantages)
        return function

    return register


@policy_loss("ppo")
def ppo(terms: Terms, settings: LossSettings) -> TokenLoss:
    """-min(rho A, clip(rho, 1 - low, 1 + high) A) (PPO 1707.06347, equation 7; clip-higher: DAPO 2503.14476).

    With `dual_clip` = c, the minimum is bounded below by c A where A < 0 (1912.09729, equation 5).
    """
    A_T = terms.advantages_T
    ratio_T = torch.exp(terms.logprobs_T - terms.old_logprobs_T)
    clipped_T = torch.clamp(ratio_T, 1 - settings.clip_low, 1 + settings.clip_high)
    loss_T = torch.maximum(-ratio_T * A_T, -clipped_T * A_T)
    active_T = ((A_T > 0) & (ratio_T > 1 + settings.clip_high)) | (
        (A_T < 0) & (ratio_T < 1 - settings.clip_low)
    )
    metrics = {
        "clip_fraction": mean_metric(active_T, terms.mask_T),
        "ratio_clipped_mean": mean_metric(clipped_T, terms.mask_T),
        "ratio_clipped_max": max_metric(clipped_T, terms.mask_T),
    }
    if settings.dual_clip is not None:
        bound_T = -settings.dual_clip * A_T
        metrics["dual_clip_fraction"] = mean_metric((A_T < 0) & (loss_T > bound_T), terms.mask_T)
        loss_T = torch.where(A_T < 0, torch.minimum(loss_T, bound_T), loss_T)
    return TokenLoss(loss_T, metrics)


@policy_loss("sft", needs_advantages=False)
def sft(terms: Terms, settings: LossSettings) -> TokenLoss:
    """Cross-entropy of the policy tokens: -log p. No advantage, no ratio."""
    return TokenLoss(-terms.logprobs_T)


@dataclass(frozen=True, slots=True)
class Loss:
    """The whole loss: per-token loss, plus kl_coefficient x k3, masked, weighted and summed."""

    settings: LossSettings
    registered: Registered

    def tensors(self, batch: Batch, device: torch.device | str = "cpu") -> TokenBatch:
        """The batch as this loss wants it, with its aggregation's weights."""
        return TokenBatch.of(batch, self.settings.aggregation, device)

    def __call__(self, batch: TokenBatch, output: PolicyOutput) -> LossOutput:
        settings = self.settings
        output = output.masked(batch.mask_T)
        current_T = output.logprobs_T.detach()
        trainer_T = current_T if batch.old_logprobs_T is None else batch.old_logprobs_T
        old_T = batch.engine_logprobs_T if settings.proximal == "engine" else trainer_T
        terms = Terms(output.logprobs_T, old_T, self._advantages(batch), batch.mask_T)
        per_token = self.registered.function(terms, settings)
        metrics = dict(per_token.metrics)
        loss_T = per_token.loss_T
        if settings.kl_coefficient > 0:
            kl_T = k3(output.logprobs_T, _reference(batch))
            loss_T = loss_T + settings.kl_coefficient * kl_T
            metrics |= {"kl_k3": mean_metric(kl_T, batch.mask_T), "kl_k3_max": max_metric(kl_T, batch.mask_T)}
        clean_T = torch.where(batch.mask_T, loss_T, torch.zeros_like(loss_T))
        total = (clean_T * batch.weights_T).sum()
        metrics |= _common_metrics(total, current_T, old_T, trainer_T, batch, output)
        return LossOutput(total, metrics)

    def _advantages(self, batch: TokenBatch) -> torch.Tensor:
        if batch.advantages_T is not None:
            return batch.advantages_T
        if self.registered.needs_advantages:
            raise ValueError(
                f"loss {self.settings.name!r} needs extra_B['advantages'], which this batch does not carry"
            )
        return torch.zeros_like(batch.weights_T)


def build_loss(settings: LossSettings) -> Loss:
    """The loss that settings name."""
    if settings.name not in LOSSES:
        raise SettingsError(f"unknown loss {settings.name!r}", next_step=f"use one of {sorted(LOSSES)}")
    return Loss(settings, LOSSES[settings.name])


def _reference(batch: TokenBatch) -> torch.Tensor:
    if batch.reference_logprobs_T is None:
        raise ValueError(
            "kl_coefficient > 0 needs extra_T['reference_logprobs'], which this batch does not carry"
        )
    return batch.reference_logprobs_T


def _common_metrics(
    total: torch.Tensor,
    current_T: torch.Tensor,
    old_T: torch.Tensor,
    trainer_T: torch.Tensor,
    batch: TokenBatch,
    output: PolicyOutput,
) -> dict[str, MetricSum]:
    ratio_T = torch.exp(current_T - old_T)
    difference_T = (trainer_T - batch.engine_logprobs_T).abs()
    metrics = {
        "loss_sum": MetricSum("sum", float(total.detach()), 1),
        "policy_tokens": MetricSum("sum", float(batch.mask_T.sum()), 1),
        "ratio_mean": mean_metric(ratio_T, batch.mask_T),
        "ratio_max": max_metric(ratio_T, batch.mask_T),
        "logprob_mean": mean_metric(current_T, batch.mask_T),
        "logprob_difference_mean": mean_metric(difference_T, batch.mask_T),
        "logprob_difference_max": max_metric(difference_T, batch.mask_T),
    }
    if output.entropy_T is not None:
        metrics["entropy"] = mean_metric(output.entropy_T, batch.mask_T)
    return metrics


def mean_metric(x_T: torch.Tensor, mask_T: torch.Tensor) -> MetricSum:
    """Mean of x over masked-in tokens, as a sum and a count."""
    chosen = x_T.detach()[mask_T].double()
    return MetricSum("mean", float(chosen.sum()), float(chosen.numel()))


def max_metric(x_T: torch.Tensor, mask_T: torch.Tensor) -> MetricSum:
    """Largest x over masked-in tokens; NaN if one is NaN."""
    chosen = x_T.detach()[mask_T].double()
    return MetricSum("max", float(chosen.max()) if chosen.numel() else 0.0, float(chosen.numel()))
