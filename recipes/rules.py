"""The rules of a run as objects: which scheduler, which advantages, which loss. Recipes replace what they name."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial

import numpy as np

from roll_ray.algorithms import advantages
from roll_ray.algorithms.adaptive_kl import AdaptiveKl
from roll_ray.algorithms.advantages import ESTIMATORS, AdvantageSettings, Normalisation, Outcomes
from roll_ray.algorithms.aggregation import denominator, prompt_tokens
from roll_ray.algorithms.loss_settings import LossSettings
from roll_ray.algorithms.losses import LOSSES, RegisteredLoss
from roll_ray.algorithms.token_stage import TokenStage, finished
from roll_ray.algorithms.turn_advantages import BY_TURN, turn_advantages
from roll_ray.algorithms.whitening import NOT_WHITENED, Moments
from roll_ray.receipts import Cut, Receipt
from roll_ray.scoring import Estimate, Estimator, Finish, Weighing, Weights
from roll_ray.settings import RunSettings
from schedulers.protocol import Scheduler
from schedulers.synchronous import Synchronous
from schedulers.tail_batching import TailBatching
from schedulers.visit_filter import VisitFilter


@dataclass(frozen=True, slots=True)
class Rules:
    """What makes one algorithm differ from another. With a `token_stage` the trainer ranks make token advantages
    of the estimator's, and `finish` ends them; without, the estimator has finished them."""

    scheduler: Callable[[], Scheduler]
    estimator: Estimator
    weigh: Weighing
    loss: LossSettings
    registered_loss: RegisteredLoss
    token_stage: TokenStage | None = None
    finish: Finish = field(default_factory=Finish)
    adaptive_kl: AdaptiveKl | None = None


def default_rules(settings: RunSettings) -> Rules:
    """The rules that the settings name."""
    finish = Finish(settings.whitened, settings.advantage_clip)
    stage = token_stage_of(settings)
    return Rules(
        scheduler=scheduler_of(settings),
        estimator=partial(
            estimate,
            settings.adv_estimator,
            advantage_settings_of(settings),
            Finish() if stage is not None else finish,
            settings.filters.overlong,
        ),
        weigh=partial(weigh, settings.aggregation, _aggregation_length(settings), settings.filters.overlong),
        loss=loss_settings_of(settings),
        registered_loss=LOSSES[settings.loss],
        token_stage=stage,
        finish=finish,
        adaptive_kl=None
        if settings.kl_target is None
        else AdaptiveKl(settings.kl_coefficient, settings.kl_target, settings.kl_horizon),
    )


def scheduler_of(settings: RunSettings) -> Callable[[], Scheduler]:
    """Makes the rollout scheduler that the settings name."""
    prompts, samples, keep = settings.prompts_per_step, settings.samples_per_prompt, visit_filter_of(settings)
    if settings.scheduler == "synchronous":
        return partial(Synchronous, prompts, samples, keep=keep)
    eta = settings.tail_batching
    return partial(TailBatching, prompts, samples, eta.eta_prompts, eta.eta_responses, keep=keep)


def visit_filter_of(settings: RunSettings) -> VisitFilter | None:
    filters = settings.filters
    if not filters.by_prompt:
        return None
    return VisitFilter(
        filters.dynamic_sampling,
        filters.difficulty_low,
        filters.difficulty_high,
        filters.max_filtered_batches,
    )


def advantage_settings_of(settings: RunSettings) -> AdvantageSettings:
    """A mean or std that is not set is the estimator's own."""
    own, given = ESTIMATORS[settings.adv_estimator].normalisation, settings.normalisation
    clip = settings.reward_clip
    return AdvantageSettings(
        normalisation=None
        if own is None
        else Normalisation(given.mean or own.mean, given.std or own.std, given.eps),
        gamma=settings.gamma,
        gae_lambda=settings.gae_lambda,
        omega=settings.gigpo_omega,
        reward_clip=None if clip is None else (-clip, clip),
        advantage_clip=settings.advantage_clip,
        whiten=settings.whitened,
    )


def token_stage_of(settings: RunSettings) -> TokenStage | None:
    if not settings.token_stage:
        return None
    return TokenStage(
        gamma=settings.gamma,
        by_segment=settings.adv_estimator == "segment_returns",
        by_turn=settings.adv_estimator in BY_TURN,
        kl_coefficient=settings.kl_coefficient if settings.kl_in == "reward" else 0.0,
        kl_estimator=settings.kl_estimator,
    )


def loss_settings_of(settings: RunSettings) -> LossSettings:
    return LossSettings(
        name=settings.loss,
        clip_low=settings.clip_low,
        clip_high=settings.clip_high,
        dual_clip=settings.dual_clip,
        aggregation=settings.aggregation,
        aggregation_length=_aggregation_length(settings),
        kl_coefficient=settings.kl_coefficient if settings.kl_in == "loss" else 0.0,
        kl_estimator=settings.kl_estimator,
        entropy_coefficient=settings.entropy_coefficient,
        proximal=settings.proximal,
        correction=settings.correction.name,
        correction_level=settings.correction.level or "token",
        correction_low=settings.correction.low,
        correction_high=settings.correction.high,
        **settings.loss_options.model_dump(),
    )


def estimate(name: str, settings: AdvantageSettings, finish: Finish, overlong: bool, cut: Cut) -> Estimate:
    """Advantages of a whole cut by the registered estimator `name`, finished over the tokens that are trained."""
    visits = [r.sample.visit for r in cut.receipts]
    outcomes = Outcomes(cut.rewards_B, visits, cut.policy_tokens_B)
    advantages_B = advantages.estimate(name, outcomes, settings).advantages_B
    tokens_B = np.where(trained_B(cut.receipts, overlong), cut.policy_tokens_B, 0)
    moments = Moments.of(advantages_B, tokens_B) if finish.whiten else None
    usable_B = ~np.isnan(cut.rewards_B) & (cut.policy_tokens_B > 0)
    advantages_B = np.where(usable_B, finished(advantages_B, moments, finish.clip), np.float32(0))
    return Estimate(
        advantages_B,
        {
            "advantage_mean": float(advantages_B.mean()),
            "advantage_std": float(advantages_B.std()),
            "advantage_abs_max": float(np.abs(advantages_B).max()),
        },
        notes=(NOT_WHITENED,) if moments is not None and not moments.enough else (),
        turn_advantages_B=turn_advantages(name, cut.receipts, advantages_B, settings)
        if name in BY_TURN
        else (),
    )


def trained_B(receipts: Sequence[Receipt], overlong: bool) -> np.ndarray:
    """Which samples are in the loss: those with a valid reward and, with the overlong filter, not truncated."""
    return np.asarray([r.reward is not None and not (overlong and r.truncated) for r in receipts], np.bool_)


def weigh(aggregation: str, length: int | None, overlong: bool, receipts: Sequence[Receipt]) -> Weights:
    """The denominator of a mini-batch and what its samples need: `trained`, and `prompt_tokens` for prompt_mean."""
    policy_tokens_B = np.asarray([r.n_policy_tokens for r in receipts], np.int64)
    visits, trained = [r.sample.visit for r in receipts], trained_B(receipts, overlong)
    extra_B = {} if trained.all() else {"trained": trained}
    if aggregation == "prompt_mean":
        extra_B = {**extra_B, "prompt_tokens": prompt_tokens(policy_tokens_B, visits, trained)}
    divisor = denominator(aggregation, policy_tokens_B, groups_B=visits, trained_B=trained, length=length)
    return Weights(divisor, extra_B)


def _aggregation_length(settings: RunSettings) -> int:
    return settings.aggregation_length or settings.sampling.max_new_tokens
