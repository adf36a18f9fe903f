"""The rules of a run as objects: which scheduler, which advantages, which loss. Recipes replace what they name."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from roll_ray.algorithms import advantages
from roll_ray.algorithms.advantages import ESTIMATORS, AdvantageSettings, Outcomes
from roll_ray.algorithms.aggregation import denominator
from roll_ray.algorithms.loss_settings import LossSettings
from roll_ray.receipts import Cut
from roll_ray.scoring import Divisor, Estimate, Estimator
from roll_ray.settings import RunSettings
from schedulers.protocol import Scheduler
from schedulers.synchronous import Synchronous


@dataclass(frozen=True, slots=True)
class Rules:
    """What makes one algorithm differ from another."""

    scheduler: Callable[[], Scheduler]
    estimator: Estimator
    divisor: Divisor
    loss: LossSettings


def default_rules(settings: RunSettings) -> Rules:
    """The rules that the settings name."""
    return Rules(
        scheduler=partial(Synchronous, settings.prompts_per_step, settings.samples_per_prompt),
        estimator=partial(estimate, settings.adv_estimator, settings.advantage_eps),
        divisor=lambda receipts: denominator(
            settings.aggregation, np.asarray([r.n_policy_tokens for r in receipts])
        ),
        loss=LossSettings(
            name=settings.loss,
            clip_low=settings.clip_low,
            clip_high=settings.clip_high,
            dual_clip=settings.dual_clip,
            aggregation=settings.aggregation,
            kl_coefficient=settings.kl_coefficient,
            proximal=settings.proximal,
        ),
    )


def estimate(name: str, eps: float, cut: Cut) -> Estimate:
    """Advantages of a whole cut by the registered estimator `name`."""
    visits = [r.sample.visit for r in cut.receipts]
    own = ESTIMATORS[name].normalisation
    settings = AdvantageSettings(normalisation=None if own is None else replace(own, eps=eps))
    outcomes = Outcomes(cut.rewards_B, visits, cut.policy_tokens_B)
    advantages_B = advantages.estimate(name, outcomes, settings).advantages_B
    return Estimate(
        advantages_B,
        {
            "advantage_mean": float(advantages_B.mean()),
            "advantage_std": float(advantages_B.std()),
            "advantage_abs_max": float(np.abs(advantages_B).max()),
        },
    )
