"""The estimators that compare a sample with others: one normalisation, (r - mean) / (std + eps), and its kin.

Shapes: all [B], over usable samples (a valid reward and a policy token). r: reward, m and s: mean and unbiased
standard deviation of its group, S: the same over the batch. A group of one, or of equal rewards, gives no signal:
exactly 0 wherever the group's mean is subtracted.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from roll_ray.algorithms.estimator_registry import AdvantageSettings, Normalisation, Outcomes, estimator
from roll_ray.algorithms.group_statistics import Groups

Array = npt.NDArray[Any]


def normalised(outcomes: Outcomes, normalisation: Normalisation) -> Array:
    """(r - mean) / (std + eps), [B].

    A standard deviation that is not there (one sample, equal rewards) leaves nothing to divide by: 0.
    """
    centred_B = _centred(outcomes, normalisation.mean)
    if normalisation.std == "none":
        return centred_B
    rewards_B = outcomes.rewards_B
    groups = outcomes.groups if normalisation.std == "group" else Groups.whole(len(rewards_B))
    scaled_B = centred_B / (groups.std_B(rewards_B) + normalisation.eps)
    return np.where(groups.equal_B(rewards_B), 0.0, scaled_B)


def _centred(outcomes: Outcomes, mean: str) -> Array:
    rewards_B = np.asarray(outcomes.rewards_B, np.float64)
    if mean == "none":
        return rewards_B
    groups = Groups.whole(len(rewards_B)) if mean == "batch" else outcomes.groups
    centred_B = rewards_B - groups.mean_B(rewards_B)
    if mean != "leave_one_out":
        return centred_B
    size_B = groups.size_B()
    # r - (n m - r) / (n - 1) = (r - m) n / (n - 1); a group of one has no other, and r - m is 0
    return centred_B * size_B / np.maximum(size_B - 1, 1)


@estimator("reinforce", normalisation=Normalisation("none", "none"))
def reinforce(outcomes: Outcomes, settings: AdvantageSettings) -> Array:
    """r, or r - baseline where `normalisation` names one (REINFORCE, Williams 1992)."""
    return _as_told(outcomes, settings)


@estimator("grpo", normalisation=Normalisation("group", "group"))
def grpo(outcomes: Outcomes, settings: AdvantageSettings) -> Array:
    """(r - m) / (s + eps) (GRPO, 2402.03300, section 4.1.2)."""
    return _as_told(outcomes, settings)


@estimator("dr_grpo", normalisation=Normalisation("group", "none"))
def dr_grpo(outcomes: Outcomes, settings: AdvantageSettings) -> Array:
    """r - m, for a loss with a constant length as denominator (Dr. GRPO, 2503.20783)."""
    return _as_told(outcomes, settings)


@estimator("rloo", normalisation=Normalisation("leave_one_out", "none"))
def rloo(outcomes: Outcomes, settings: AdvantageSettings) -> Array:
    """r - mean of the other n - 1 of the group (RLOO, 2402.14740)."""
    return _as_told(outcomes, settings)


@estimator("lite_ppo", normalisation=Normalisation("group", "batch"))
def lite_ppo(outcomes: Outcomes, settings: AdvantageSettings) -> Array:
    """(r - m) / (S + eps), for a token-mean loss (Lite PPO, 2508.08221)."""
    return _as_told(outcomes, settings)


@estimator("reinforce_plus_plus", normalisation=Normalisation("none", "none"), whiten=True)
def reinforce_plus_plus(outcomes: Outcomes, settings: AdvantageSettings) -> Array:
    """r, whitened afterwards over all tokens of the batch; for KL in the token reward (REINFORCE++, 2501.03262)."""
    return _as_told(outcomes, settings)


@estimator("reinforce_plus_plus_baseline", normalisation=Normalisation("group", "none"), whiten=True)
def reinforce_plus_plus_baseline(outcomes: Outcomes, settings: AdvantageSettings) -> Array:
    """r - m, whitened afterwards over all tokens of the batch (REINFORCE++ with baseline, 2501.03262)."""
    return _as_told(outcomes, settings)


def _as_told(outcomes: Outcomes, settings: AdvantageSettings) -> Array:
    if settings.normalisation is None:
        raise ValueError("an estimator of the group family is called with a normalisation")
    return normalised(outcomes, settings.normalisation)


@estimator("remax", needs={"greedy_rewards"})
def remax(outcomes: Outcomes, settings: AdvantageSettings) -> Array:
    """r - reward of the greedy response to the same prompt (ReMax, 2310.10505)."""
    if outcomes.greedy_rewards_B is None:
        raise ValueError("remax needs greedy_rewards_B")
    return np.asarray(outcomes.rewards_B, np.float64) - outcomes.greedy_rewards_B


@estimator("opo")
def opo(outcomes: Outcomes, settings: AdvantageSettings) -> Array:
    """r - sum(l r) / sum(l) over the group, l = policy tokens of a response (OPO, 2505.23585)."""
    return outcomes.rewards_B - outcomes.groups.mean_B(outcomes.rewards_B, outcomes.policy_tokens_B)


@estimator("maxrl")
def maxrl(outcomes: Outcomes, settings: AdvantageSettings) -> Array:
    """(r - m) / m, and 0 where m is not above 0 (MaxRL, 2602.02710).

    Made for rewards of 0 or more: divided by a negative mean, better samples would be pushed down.
    """
    mean_B = outcomes.groups.mean_B(outcomes.rewards_B)
    positive_B = mean_B > 0
    return np.where(positive_B, (outcomes.rewards_B - mean_B) / np.where(positive_B, mean_B, 1.0), 0.0)


@estimator("gae", needs={"values"}, tokenwise=True, whiten=True)
def gae(outcomes: Outcomes, settings: AdvantageSettings) -> Array:
    """The reward, for `returns.gae` to put at the last policy token (1506.02438)."""
    return np.asarray(outcomes.rewards_B, np.float64)


@estimator("step_returns", needs={"steps"}, tokenwise=True)
def step_returns(outcomes: Outcomes, settings: AdvantageSettings) -> Array:
    """The reward; `returns.step_returns` makes the discounted return of each step."""
    return np.asarray(outcomes.rewards_B, np.float64)


@estimator("segment_returns", tokenwise=True)
def segment_returns(outcomes: Outcomes, settings: AdvantageSettings) -> Array:
    """The reward; `returns.segment_returns` makes the discounted return of each run of policy tokens."""
    return np.asarray(outcomes.rewards_B, np.float64)


@estimator("gigpo", needs={"states", "steps"}, normalisation=Normalisation("group", "group"), tokenwise=True)
def gigpo(outcomes: Outcomes, settings: AdvantageSettings) -> Array:
    """The episode advantage, (r - m) / (s + eps); `returns.gigpo` adds the step advantage (2505.10978)."""
    return _as_told(outcomes, settings)
