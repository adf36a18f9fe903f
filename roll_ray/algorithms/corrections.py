"""Corrections for the difference between the engine that sampled and the trainer's proximal policy.

w = exp(old - behaviour) per token. A correction gives a weight or a mask, without gradient, which any loss can
be wrapped in; the KL term is left as it is. Comparisons are made of log w, which cannot overflow.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from roll_ray.algorithms.loss_registry import Terms, bounded_exp
from roll_ray.algorithms.loss_settings import LossSettings
from roll_ray.errors import SettingsError

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True, slots=True)
class Correction:
    """`weights_T` multiplies the loss (None: 1), tokens outside `kept_T` have none (None: all are kept),
    `changed_T`: where the correction took effect."""

    changed_T: torch.Tensor
    weights_T: torch.Tensor | None = None
    kept_T: torch.Tensor | None = None


@dataclass(frozen=True, slots=True)
class Band:
    """`level` "token" or "sequence" and the bounds of w in use."""

    level: str
    low: float
    high: float

    def holds(self, log_w_T: torch.Tensor) -> torch.Tensor:
        """Where w is in [low, high]; False for NaN."""
        return (log_w_T >= _log(self.low)).logical_and(log_w_T <= _log(self.high))


@dataclass(frozen=True, slots=True)
class RegisteredCorrection:
    """`bounds`: the default low and high of each level that it knows. `rejects`: samples that are not kept leave
    the denominator as well."""

    function: Callable[[Terms, Band], Correction]
    bounds: dict[str, tuple[float, float]]
    rejects: bool = False

    def band(self, settings: LossSettings) -> Band:
        """The bounds of settings, each the default of the level unless given. SettingsError: none are inside."""
        level = (
            settings.correction_level if settings.correction_level in self.bounds else next(iter(self.bounds))
        )
        low, high = self.bounds[level]
        low = low if settings.correction_low is None else settings.correction_low
        high = high if settings.correction_high is None else settings.correction_high
        if not 0 <= low <= high or high == 0:
            raise SettingsError(
                f"correction {settings.correction!r} keeps ratios from {low} to {high}, which are none",
                next_step="set correction_low and correction_high with 0 <= low <= high",
            )
        return Band(level, low, high)


def truncated_is(terms: Terms, band: Band) -> Correction:
    """sg(min(w, high)), high = 2; per token, or the product over the response at all its tokens."""
    log_w_T = terms.log_weight_T
    if band.level == "sequence":
        log_w_T = terms.sequence_sum(log_w_T)
    w_T = bounded_exp(log_w_T)
    weights_T = w_T.clamp(band.low, band.high)
    return Correction(changed_T=(w_T - weights_T).sign().abs(), weights_T=weights_T)


def icepop(terms: Terms, band: Band) -> Correction:
    """Tokens with w in [low, high] = [0.5, 5] keep their loss times w, the others lose it (2510.18855)."""
    kept_T = band.holds(terms.log_weight_T)
    weights_T = bounded_exp(terms.log_weight_T).where(kept_T, 0.0)
    return Correction(changed_T=kept_T.logical_not(), weights_T=weights_T, kept_T=kept_T)


def geometric_band(terms: Terms, band: Band) -> Correction:
    """The whole response loses its loss where exp(mean of log w) is outside [low, high] = [0.8, 1.2]."""
    return _kept(band.holds(terms.sequence_mean(terms.log_weight_T)))


def product_band(terms: Terms, band: Band) -> Correction:
    """The whole response loses its loss where the product of its w is outside [low, high] = [0.5, 2]."""
    return _kept(band.holds(terms.sequence_sum(terms.log_weight_T)))


def outlier_token(terms: Terms, band: Band) -> Correction:
    """The whole response loses its loss where a token's w is outside [low, high] = [1e-4, 100]."""
    outside_T = band.holds(terms.log_weight_T).logical_not()
    return _kept(terms.sequence_sum(outside_T.float()) == 0)


def rejection(terms: Terms, band: Band) -> Correction:
    """The response is dropped, as if it had not been sampled: it leaves the denominator and the KL term too.

    Level "token": for a token's w outside [1e-4, 100], as in `outlier_token`; level "sequence": for the
    geometric mean outside [0.8, 1.2], as in `geometric_band`.
    """
    return outlier_token(terms, band) if band.level == "token" else geometric_band(terms, band)


CORRECTIONS: dict[str, RegisteredCorrection] = {
    "truncated_is": RegisteredCorrection(truncated_is, {"token": (0.0, 2.0), "sequence": (0.0, 2.0)}),
    "icepop": RegisteredCorrection(icepop, {"token": (0.5, 5.0)}),
    "geometric_band": RegisteredCorrection(geometric_band, {"sequence": (0.8, 1.2)}),
    "product_band": RegisteredCorrection(product_band, {"sequence": (0.5, 2.0)}),
    "outlier_token": RegisteredCorrection(outlier_token, {"sequence": (1e-4, 100.0)}),
    "rejection": RegisteredCorrection(
        rejection, {"token": (1e-4, 100.0), "sequence": (0.8, 1.2)}, rejects=True
    ),
}


def correction_named(name: str) -> RegisteredCorrection | None:
    """None for "none"."""
    if name != "none" and name not in CORRECTIONS:
        raise SettingsError(
            f"unknown correction {name!r}", next_step=f"use one of {['none', *sorted(CORRECTIONS)]}"
        )
    return CORRECTIONS.get(name)


def _kept(kept_T: torch.Tensor) -> Correction:
    return Correction(changed_T=kept_T.logical_not(), kept_T=kept_T)


def _log(bound: float) -> float:
    return math.log(bound) if bound > 0 else -math.inf
