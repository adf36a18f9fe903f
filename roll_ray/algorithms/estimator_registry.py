"""What an advantage estimator is: a function of per-sample scalars, registered under a name. Loads no torch.

An estimator of one's own, in a file of one's own:

    from roll_ray.algorithms.advantages import estimator

    @estimator("mine")
    def mine(outcomes, settings):
        return outcomes.rewards_B - outcomes.groups.mean_B(outcomes.rewards_B)

Samples without a valid reward or without policy tokens are taken out before it and get 0 after it.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy.typing as npt

from roll_ray.algorithms.group_statistics import Groups

Array = npt.NDArray[Any]
MeanOf = Literal["none", "group", "batch", "leave_one_out"]
StdOf = Literal["none", "group", "batch"]


@dataclass(frozen=True, slots=True)
class Normalisation:
    """What a reward is compared with and divided by: (r - mean) / (std + eps), std unbiased (n - 1).

    `leave_one_out`: the mean of the group's other samples.
    """

    mean: MeanOf = "group"
    std: StdOf = "group"
    eps: float = 1e-6


@dataclass(frozen=True, slots=True)
class Outcomes:
    """Per-sample scalars of a whole batch, each of length B, in the same order.

    `rewards_B`: NaN where invalid. `groups_B`: the group of each sample, any hashable. `policy_tokens_B`: how
    many tokens the policy wrote. `greedy_rewards_B`: of the greedy response to the same prompt, NaN where invalid.
    """

    rewards_B: Array
    groups_B: Sequence[Hashable]
    policy_tokens_B: Array
    greedy_rewards_B: Array | None = None

    @property
    def groups(self) -> Groups:
        """Statistics by group."""
        return Groups.of(self.groups_B)


@dataclass(frozen=True, slots=True)
class AdvantageSettings:
    """What an estimator may be told, as plain data.

    `normalisation`, `whiten`: None for the estimator's own. `gamma`, `gae_lambda`: discounts over policy tokens.
    `omega`: weight of the step advantage of gigpo. `reward_clip`: (low, high), applied before the estimator.
    `advantage_clip`: advantages end in [-this, this], applied after whitening.
    """

    normalisation: Normalisation | None = None
    gamma: float = 1.0
    gae_lambda: float = 1.0
    omega: float = 1.0
    reward_clip: tuple[float, float] | None = None
    advantage_clip: float | None = None
    whiten: bool | None = None


EstimatorFunction = Callable[[Outcomes, AdvantageSettings], Array]
"""Advantages [B] of usable samples. A `normalisation` of None has been replaced by the estimator's own."""


@dataclass(frozen=True, slots=True)
class RegisteredEstimator:
    """`needs`: fields beyond rewards that must be supplied. `normalisation`: the default of a member of the group
    family; None for an estimator that has its own way. `tokenwise`: its function gives the sample's share, and
    `returns` makes token advantages of it. `whiten`: whether advantages are whitened unless settings say no."""

    name: str
    function: EstimatorFunction
    needs: frozenset[str] = frozenset()
    normalisation: Normalisation | None = None
    tokenwise: bool = False
    whiten: bool = False


ESTIMATORS: dict[str, RegisteredEstimator] = {}


def estimator(
    name: str,
    *,
    needs: Iterable[str] = (),
    normalisation: Normalisation | None = None,
    tokenwise: bool = False,
    whiten: bool = False,
) -> Callable[[EstimatorFunction], EstimatorFunction]:
    """Register an estimator under the name that settings use."""

    def register(function: EstimatorFunction) -> EstimatorFunction:
        if name in ESTIMATORS:
            raise ValueError(f"advantage estimator {name!r} is registered twice")
        ESTIMATORS[name] = RegisteredEstimator(
            name, function, frozenset(needs), normalisation, tokenwise, whiten
        )
        return function

    return register
