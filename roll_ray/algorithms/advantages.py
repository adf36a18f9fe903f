"""Advantages from per-sample scalars. They are computed where the rewards are: in the driver, over the whole batch.

An estimator is one function registered with `@estimator(name)`; `estimator_registry` shows one. The group of a
sample is data (any hashable, in practice its `Visit`), never its position: permuting samples permutes advantages.
Importing this module loads no torch.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from roll_ray.algorithms import group_family  # registers them
from roll_ray.algorithms.estimator_registry import (
    ESTIMATORS,
    AdvantageSettings,
    Array,
    EstimatorFunction,
    Normalisation,
    Outcomes,
    RegisteredEstimator,
    estimator,
)
from roll_ray.algorithms.group_statistics import Groups
from roll_ray.errors import SettingsError

__all__ = [
    "ESTIMATORS",
    "AdvantageSettings",
    "Advantages",
    "EstimatorFunction",
    "Groups",
    "Normalisation",
    "Outcomes",
    "RegisteredEstimator",
    "estimate",
    "estimator",
    "group_family",
]


@dataclass(frozen=True, slots=True)
class Advantages:
    """`advantages_B` (float32 [B]) and what a person wants to know about the groups behind it.

    `n_no_signal_groups`: groups with one usable sample, with none, or with equal rewards. `n_invalid`: samples
    without a finite reward (of their own or, for an estimator that needs it, of the greedy response). `n_empty`:
    samples with a reward and no policy token. Both get 0 and are in no mean or standard deviation.
    """

    advantages_B: npt.NDArray[np.float32]
    n_groups: int
    n_no_signal_groups: int
    n_invalid: int
    n_empty: int


def estimate(name: str, outcomes: Outcomes, settings: AdvantageSettings) -> Advantages:
    """Advantages of a whole batch by the registered estimator `name`.

    Rewards are clipped to `settings.reward_clip`, unusable samples taken out, and the rest given to the
    estimator. Whitening and `advantage_clip` come after the token stage and are not applied here. `ValueError`
    where the scalars differ in length or the estimator does not give one finite number per sample.
    """
    if name not in ESTIMATORS:
        raise SettingsError(
            f"unknown advantage estimator {name!r}", next_step=f"use one of {', '.join(sorted(ESTIMATORS))}"
        )
    registered = ESTIMATORS[name]
    outcomes = _checked(outcomes, settings.reward_clip)
    valid_B = np.isfinite(outcomes.rewards_B)
    if "greedy_rewards" in registered.needs and outcomes.greedy_rewards_B is not None:
        valid_B &= np.isfinite(outcomes.greedy_rewards_B)
    written_B = np.asarray(outcomes.policy_tokens_B) > 0
    usable = np.flatnonzero(valid_B & written_B)
    groups = outcomes.groups
    advantages_B = np.zeros(len(valid_B), np.float32)
    if len(usable):
        told = replace(settings, normalisation=settings.normalisation or registered.normalisation)
        advantages_B[usable] = _called(registered, _selected(outcomes, usable), told)
    return Advantages(
        advantages_B=advantages_B,
        n_groups=groups.n,
        n_no_signal_groups=groups.n - _groups_with_signal(groups.codes_B[usable], outcomes.rewards_B[usable]),
        n_invalid=int((~valid_B).sum()),
        n_empty=int((valid_B & ~written_B).sum()),
    )


def _checked(outcomes: Outcomes, reward_clip: tuple[float, float] | None) -> Outcomes:
    rewards_B = np.asarray(outcomes.rewards_B, np.float64)
    if not len(rewards_B) == len(outcomes.groups_B) == len(outcomes.policy_tokens_B):
        raise ValueError(
            f"{len(rewards_B)} rewards, {len(outcomes.groups_B)} group ids, {len(outcomes.policy_tokens_B)} token "
            "counts: one of each per sample is needed"
        )
    greedy_B = outcomes.greedy_rewards_B
    if greedy_B is not None and len(greedy_B) != len(rewards_B):
        raise ValueError(f"{len(rewards_B)} rewards, {len(greedy_B)} greedy rewards: one of each per sample")
    if reward_clip is not None:
        rewards_B = np.clip(rewards_B, *reward_clip)
        greedy_B = None if greedy_B is None else np.clip(np.asarray(greedy_B, np.float64), *reward_clip)
    return replace(outcomes, rewards_B=rewards_B, greedy_rewards_B=greedy_B)


def _selected(outcomes: Outcomes, usable: npt.NDArray[np.int64]) -> Outcomes:
    return Outcomes(
        rewards_B=outcomes.rewards_B[usable],
        groups_B=[outcomes.groups_B[i] for i in usable],
        policy_tokens_B=np.asarray(outcomes.policy_tokens_B)[usable],
        greedy_rewards_B=(
            None if outcomes.greedy_rewards_B is None else np.asarray(outcomes.greedy_rewards_B)[usable]
        ),
    )


def _called(registered: RegisteredEstimator, outcomes: Outcomes, settings: AdvantageSettings) -> Array:
    advantages_B = np.asarray(registered.function(outcomes, settings), np.float32)
    if advantages_B.shape != outcomes.rewards_B.shape or not np.isfinite(advantages_B).all():
        raise ValueError(
            f"advantage estimator {registered.name!r} gave shape {advantages_B.shape} with "
            f"{int((~np.isfinite(advantages_B)).sum())} numbers that are not finite, for {len(outcomes.rewards_B)} "
            "samples: one finite number per sample is needed"
        )
    return advantages_B


def _groups_with_signal(codes: Array, rewards: Array) -> int:
    different = codes[~Groups.of(codes.tolist()).equal_B(rewards)]
    return len(np.unique(different))
