"""Losses. Each is written once, as `loss(batch, output) -> LossOutput`, and never sees logits.

A policy loss is one function that gives a loss per token, registered with `@policy_loss(name)`; masking,
correction, aggregation, the KL term and the metrics are added around it by `build_loss`. Importing this
module, and building a loss, load no torch.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from roll_ray.algorithms import policy_losses  # registers them
from roll_ray.algorithms.aggregation import aggregation_named, sample_counts
from roll_ray.algorithms.corrections import Band, Correction, RegisteredCorrection, correction_named
from roll_ray.algorithms.kl import KL_ESTIMATORS
from roll_ray.algorithms.loss_registry import LOSSES, RegisteredLoss, Terms, TokenLoss, policy_loss
from roll_ray.algorithms.loss_settings import LossSettings
from roll_ray.algorithms.metric_sums import MetricSum
from roll_ray.batch import Batch
from roll_ray.errors import SettingsError

if TYPE_CHECKING:
    import torch

    from roll_ray.algorithms.loss_metrics import Measures
    from roll_ray.algorithms.token_batch import PolicyOutput, TokenBatch

__all__ = [
    "LOSSES",
    "Loss",
    "LossOutput",
    "RegisteredLoss",
    "Terms",
    "TokenLoss",
    "build_loss",
    "policy_loss",
    "policy_losses",
]


@dataclass(frozen=True, slots=True)
class LossOutput:
    """`loss`: the weighted sum over tokens, not yet divided by anything (scalar, carries the gradient)."""

    loss: torch.Tensor
    metrics: dict[str, MetricSum]


@dataclass(frozen=True, slots=True)
class Loss:
    """The whole loss: per-token loss, corrected, plus kl_coefficient x KL, less entropy_coefficient x entropy, weighted
    and summed."""

    settings: LossSettings
    registered: RegisteredLoss
    correction: RegisteredCorrection | None
    band: Band | None

    def tensors(self, batch: Batch, device: torch.device | str = "cpu") -> TokenBatch:
        """The batch as this loss wants it, with its aggregation's weights."""
        from roll_ray.algorithms.token_batch import TokenBatch

        return TokenBatch.of(
            batch,
            self.settings.aggregation,
            device,
            rewards="rewards" in self.registered.needs,
            counts=self.correction is not None and self.correction.rejects,
            aggregation_length=self.settings.aggregation_length,
        )

    def __call__(self, batch: TokenBatch, output: PolicyOutput) -> LossOutput:
        from roll_ray.algorithms.loss_pieces import sum_of_pieces

        self._check_fields(batch, output)
        total, metrics = sum_of_pieces(self.piece, batch, output)
        return LossOutput(total, metrics)

    def piece(
        self, batch: TokenBatch, logprobs_T: torch.Tensor, entropy_T: torch.Tensor | None, seen: Measures
    ) -> torch.Tensor:
        """The loss of some whole samples as a graph on `logprobs_T` and, with an entropy coefficient, on `entropy_T`;
        what it saw goes to `seen`."""
        settings, current_T = self.settings, logprobs_T.detach()
        trainer_T = current_T if batch.old_logprobs_T is None else batch.old_logprobs_T
        terms = self._terms(batch, logprobs_T, trainer_T)
        per_token = self.registered.function(terms, settings)
        seen.all(per_token.means, per_token.maxima)
        loss_T, correction = per_token.loss_T, self._correction(terms)
        if correction is not None:
            loss_T = _applied(correction, loss_T)
            _correction_metrics(correction, batch, terms, seen)
        if settings.kl_coefficient > 0:
            assert batch.reference_logprobs_T is not None
            kl_T = KL_ESTIMATORS[settings.kl_estimator](logprobs_T, batch.reference_logprobs_T)
            loss_T = loss_T + settings.kl_coefficient * kl_T
            seen.mean(f"kl_{settings.kl_estimator}", kl_T)
            seen.max(f"kl_{settings.kl_estimator}_max", kl_T)
        if settings.entropy_coefficient > 0:
            assert entropy_T is not None
            loss_T = loss_T - settings.entropy_coefficient * entropy_T
        if correction is not None and correction.kept_T is not None and batch.counts_B is not None:
            loss_T = loss_T.where(correction.kept_T, 0.0)  # rejected: out of those terms as well
        total = loss_T.dot(batch.weights_T)
        seen.sum("loss_sum", total)
        _common_metrics(terms, trainer_T, entropy_T, seen)
        return total

    def _terms(self, batch: TokenBatch, logprobs_T: torch.Tensor, trainer_T: torch.Tensor) -> Terms:
        engine_T, zeros_T = batch.engine_logprobs_T, None
        if batch.advantages_T is None or batch.rewards_T is None:
            zeros_T = engine_T.new_zeros(()).expand_as(engine_T)
        advantages_T = zeros_T if batch.advantages_T is None else batch.advantages_T
        rewards_T = zeros_T if batch.rewards_T is None else batch.rewards_T
        assert advantages_T is not None
        assert rewards_T is not None
        return Terms(
            logprobs_T=logprobs_T,
            old_logprobs_T=engine_T if self.settings.proximal == "engine" else trainer_T,
            behaviour_logprobs_T=engine_T,
            advantages_T=advantages_T,
            rewards_T=rewards_T,
            segments=batch.segments(),
        )

    def _correction(self, terms: Terms) -> Correction | None:
        if self.correction is None:
            return None
        assert self.band is not None
        return self.correction.function(terms, self.band)

    def _check_fields(self, batch: TokenBatch, output: PolicyOutput) -> None:
        """ValueError: the batch or the output lacks what this loss needs."""
        if self.settings.entropy_coefficient > 0 and (
            output.entropy_T is None or output.logprobs_T.requires_grad > output.entropy_T.requires_grad
        ):
            raise ValueError(
                "entropy_coefficient > 0 needs entropy_T with its gradient, which this output lacks"
            )
        if batch.advantages_T is None and "advantages" in self.registered.needs:
            raise ValueError(
                f"loss {self.settings.name!r} needs extra_B['advantages'], which this batch does not carry"
            )
        if batch.reference_logprobs_T is None and self.settings.kl_coefficient > 0:
            raise ValueError(
                "kl_coefficient > 0 needs extra_T['reference_logprobs'], which this batch does not carry"
            )


def build_loss(settings: LossSettings, registered: RegisteredLoss | None = None) -> Loss:
    """The loss that settings name; `registered` instead, for one that was registered in another process.

    SettingsError: an unknown name, or settings that contradict each other.
    """
    if registered is None:
        if settings.name not in LOSSES:
            raise SettingsError(f"unknown loss {settings.name!r}", next_step=f"use one of {sorted(LOSSES)}")
        registered = LOSSES[settings.name]
    correction = correction_named(settings.correction)
    if settings.kl_estimator not in KL_ESTIMATORS:
        raise SettingsError(
            f"unknown KL estimator {settings.kl_estimator!r}", next_step=f"use one of {sorted(KL_ESTIMATORS)}"
        )
    aggregation = aggregation_named(settings.aggregation)
    if not aggregation.per_prompt:
        sample_counts(settings.aggregation, np.zeros(0), settings.aggregation_length)  # needs its length
    if correction is not None or registered.corrects:
        _check_correction(settings, registered)
    if correction is not None and correction.rejects and aggregation.per_prompt:
        raise SettingsError(
            f"correction {settings.correction!r} cannot be combined with aggregation {settings.aggregation!r}",
            why="a rejected response would change the weight of its siblings, which other ranks hold",
            next_step="use geometric_band or outlier_token, which mask instead, or another aggregation",
        )
    return Loss(settings, registered, correction, None if correction is None else correction.band(settings))


def _check_correction(settings: LossSettings, registered: RegisteredLoss) -> None:
    if settings.proximal == "engine":
        raise SettingsError(
            f"loss {settings.name!r} with correction {settings.correction!r} has nothing to correct",
            why='with proximal "engine" the proximal policy is the one that sampled: each ratio of the two is 1',
            next_step='set proximal to "trainer"',
        )
    anchored = settings.name == "cispo" and settings.cispo_anchor == "behaviour"
    if settings.correction != "none" and (registered.corrects or anchored):
        raise SettingsError(
            f"loss {settings.name!r} with correction {settings.correction!r} would correct twice",
            why="the ratio to the policy that sampled is in this loss already",
            next_step='set correction to "none"',
        )


def _applied(correction: Correction, loss_T: torch.Tensor) -> torch.Tensor:
    if correction.weights_T is not None:
        loss_T = loss_T * correction.weights_T
    # where, not times 0: the loss of what is masked may be infinite
    return loss_T if correction.kept_T is None else loss_T.where(correction.kept_T, 0.0)


def _correction_metrics(correction: Correction, batch: TokenBatch, terms: Terms, seen: Measures) -> None:
    weights_T = correction.kept_T if correction.weights_T is None else correction.weights_T
    assert weights_T is not None
    seen.mean("correction_weight_mean", weights_T)
    seen.mean("corrected_fraction", correction.changed_T)
    if batch.counts_B is not None:
        rejected_B = terms.segments.sums_B(correction.changed_T.float()) > 0
        seen.sum("rejected_sequences", rejected_B.count_nonzero())
        seen.sum("rejected_denominator", batch.counts_B.dot(rejected_B.float()))


def _common_metrics(
    terms: Terms, trainer_T: torch.Tensor, entropy_T: torch.Tensor | None, seen: Measures
) -> None:
    current_T, ratio_T = terms.logprobs_T.detach(), terms.ratio_T.detach()
    difference_T = (trainer_T - terms.behaviour_logprobs_T).abs()
    seen.mean("ratio_mean", ratio_T)
    seen.max("ratio_max", ratio_T)
    seen.mean("logprob_mean", current_T)
    seen.mean("logprob_difference_mean", difference_T)
    seen.max("logprob_difference_max", difference_T)
    if entropy_T is not None:
        seen.mean("entropy", entropy_T)
