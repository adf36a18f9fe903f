"""Advantage estimators that need only per-sample scalars. They run where the rewards are: in the driver.

An estimator is one function registered with `@estimator(name)`. The group of a sample is data
(any hashable, in practice its `Visit`), never its position: permuting samples permutes advantages.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]


@dataclass(frozen=True, slots=True)
class Advantages:
    """`advantages_B` (float32 [B]) and what a person wants to know about the groups behind it.

    `n_no_signal_groups`: groups with one usable sample or with equal rewards; their samples get 0.
    `n_invalid`: samples without a reward (NaN). `n_empty`: samples with a reward and no policy token. Both
    get 0 and are in no group's mean or standard deviation.
    """

    advantages_B: npt.NDArray[np.float32]
    n_groups: int
    n_no_signal_groups: int
    n_invalid: int
    n_empty: int


class Estimator(Protocol):
    """Per-sample advantages from rewards (NaN: invalid), groups and policy-token counts, each of length B."""

    def __call__(
        self, rewards_B: Array, groups_B: Sequence[Hashable], policy_tokens_B: Array, eps: float = 1e-6
    ) -> Advantages: ...


ESTIMATORS: dict[str, Estimator] = {}
E_ = TypeVar("E_", bound=Callable[..., Advantages])


def estimator(name: str) -> Callable[[E_], E_]:
    """Register an estimator under the name that settings use."""

    def register(function: E_) -> E_:
        if name in ESTIMATORS:
            raise ValueError(f"advantage estimator {name!r} is registered twice")
        ESTIMATORS[name] = function
        return function

    return register


@dataclass(frozen=True, slots=True)
class _Groups:
    """Usable samples by group: `members[g]` are positions in the batch."""

    members: list[Array]
    n_invalid: int
    n_empty: int


def _groups(rewards_B: Array, groups_B: Sequence[Hashable], policy_tokens_B: Array) -> _Groups:
    if not len(rewards_B) == len(groups_B) == len(policy_tokens_B):
        raise ValueError(
            f"{len(rewards_B)} rewards, {len(groups_B)} group ids, {len(policy_tokens_B)} token counts: "
            "one of each per sample is needed"
        )
    valid_B = ~np.isnan(rewards_B)
    written_B = np.asarray(policy_tokens_B) > 0
    members: dict[Hashable, list[int]] = {}
    for i, group in enumerate(groups_B):
        usable = members.setdefault(group, [])
        if valid_B[i] and written_B[i]:
            usable.append(i)
    return _Groups(
        members=[np.asarray(m, np.int64) for m in members.values()],
        n_invalid=int((~valid_B).sum()),
        n_empty=int((valid_B & ~written_B).sum()),
    )


@estimator("grpo")
def grpo(
    rewards_B: Array, groups_B: Sequence[Hashable], policy_tokens_B: Array, eps: float = 1e-6
) -> Advantages:
    """Group-normalised rewards: (r - mean) / (std + eps), std unbiased (GRPO, 2402.03300, section 4.1.2)."""
    rewards_B = np.asarray(rewards_B, np.float64)
    groups = _groups(rewards_B, groups_B, policy_tokens_B)
    advantages_B = np.zeros(len(rewards_B))
    n_no_signal = 0
    for members in groups.members:
        rewards = rewards_B[members]
        # equality, not std == 0: the mean of equal numbers may round to another number
        if len(rewards) < 2 or (rewards == rewards[0]).all():
            n_no_signal += 1
            continue
        # sorted: the order of arrival does not change the last bit
        mean, std = np.sort(rewards).mean(), np.sort(rewards).std(ddof=1)
        advantages_B[members] = (rewards - mean) / (std + eps)
    return Advantages(
        advantages_B=advantages_B.astype(np.float32),
        n_groups=len(groups.members),
        n_no_signal_groups=n_no_signal,
        n_invalid=groups.n_invalid,
        n_empty=groups.n_empty,
    )
