"""Random batches in both layouts: flat with offsets for our functions, padded [B, L] tensors for verl's."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from roll_ray.algorithms.advantages import Outcomes
from roll_ray.algorithms.returns import token_rewards
from roll_ray.batch import Batch
from roll_ray.sample import Role, SamplingDistribution, Times
from schedulers.protocol import SampleId, Visit

Array = npt.NDArray[Any]


@dataclass(frozen=True)
class Case:
    """Responses of one batch: `mask_T` is False where an environment wrote; groups of two samples and more, each
    with a policy token and a valid reward. Log-probabilities: `lp_T` current, `old_T`, `beh_T` of the engine,
    `ref_T` reference."""

    offsets: Array
    mask_T: Array
    groups_B: list[int]
    rewards_B: Array
    greedy_B: Array
    values_T: Array
    lp_T: Array
    old_T: Array
    beh_T: Array
    ref_T: Array
    advantages_B: Array

    @staticmethod
    def random(seed: int, n_groups: int, tokens: tuple[int, int]) -> Case:
        random = np.random.default_rng(seed)
        groups_B = np.repeat(np.arange(n_groups), random.integers(2, 9, n_groups))
        random.shuffle(groups_B)
        n = len(groups_B)
        offsets = np.concatenate([[0], np.cumsum(random.integers(*tokens, n, endpoint=True))])
        n_tokens = int(offsets[-1])
        mask_T = random.random(n_tokens) < 0.85
        mask_T[offsets[:-1]] = True
        binary = seed % 2 == 0
        rewards_B = random.integers(0, 2, n) if binary else random.standard_normal(n)

        def near(logprobs_T: Array, nats: float) -> Array:
            return (logprobs_T + nats * random.standard_normal(n_tokens)).astype(np.float32)

        old_T = near(np.full(n_tokens, -1.5), 0.5)
        return Case(
            offsets=offsets,
            mask_T=mask_T,
            groups_B=groups_B.tolist(),
            rewards_B=rewards_B.astype(np.float32),
            greedy_B=random.standard_normal(n).astype(np.float32)[groups_B],
            values_T=random.standard_normal(n_tokens).astype(np.float32),
            lp_T=near(old_T, 0.4),
            old_T=old_T,
            beh_T=near(old_T, 0.4),
            ref_T=near(old_T, 0.3),  # k3 stays below 10, where verl clamps it
            advantages_B=random.standard_normal(n).astype(np.float32),
        )

    @property
    def policy_tokens_B(self) -> Array:
        return np.add.reduceat(self.mask_T, self.offsets[:-1], dtype=np.int64)

    @property
    def outcomes(self) -> Outcomes:
        return Outcomes(self.rewards_B, self.groups_B, self.policy_tokens_B, self.greedy_B)

    @property
    def score_T(self) -> Array:
        """The reward at the last policy token."""
        return token_rewards(self.rewards_B, self.mask_T, self.offsets)

    @property
    def advantages_T(self) -> Array:
        return np.repeat(self.advantages_B, np.diff(self.offsets))

    @property
    def places(self) -> tuple[Array, Array]:
        """Row and column of each token in the padded layout."""
        lengths = np.diff(self.offsets)
        return np.repeat(np.arange(len(lengths)), lengths), np.arange(self.offsets[-1]) - np.repeat(
            self.offsets[:-1], lengths
        )

    def padded(self, x_T: Array) -> torch.Tensor:
        """[B, L] in float32, 0 in the padding."""
        out = torch.zeros(len(self.groups_B), int(np.diff(self.offsets).max()))
        out[self.places] = torch.from_numpy(np.asarray(x_T, np.float32))
        return out

    def at_policy(self, padded: torch.Tensor) -> Array:
        """What stands at the policy's tokens, [K]."""
        return padded.detach()[self.places].numpy()[self.mask_T]

    def batch(self) -> Batch:
        """As the losses want it."""
        n, n_tokens = len(self.groups_B), int(self.offsets[-1])
        batch = Batch(
            ids=tuple(SampleId(Visit(str(group), 0), i) for i, group in enumerate(self.groups_B)),
            attempts_B=np.zeros(n, np.int32),
            offsets=self.offsets,
            tokens_T=np.zeros(n_tokens, np.int32),
            roles_T=np.where(self.mask_T, Role.POLICY, Role.ENVIRONMENT).astype(np.int8),
            logprobs_T=self.beh_T,
            versions_T=np.zeros(n_tokens, np.int32),
            rewards_B=self.rewards_B,
            truncated_B=np.zeros(n, np.bool_),
            sampling=(SamplingDistribution(),) * n,
            domains=("",) * n,
            reasons=("",) * n,
            extracted=(None,) * n,
            parts=({},) * n,
            times=(Times(),) * n,
            extra_T={"old_logprobs": self.old_T, "reference_logprobs": self.ref_T},
        )
        batch.extra_B["advantages"] = self.advantages_B
        return batch
