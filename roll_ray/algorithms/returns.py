"""Token advantages: returns to go, GAE, step and segment returns, GiGPO. numpy only; no loop over tokens or samples.

Arrays are flat: `_T` all tokens of the samples one after another, `offsets` [B + 1], sample i owns tokens
`offsets[i]:offsets[i + 1]`. `mask_T`: tokens that the policy wrote. Only those count: what stands at a masked
token, be it NaN, changes nothing, it is no step of time, and its result is 0. Results are float32 [T].
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from roll_ray.algorithms.estimator_registry import Normalisation, Outcomes
from roll_ray.algorithms.group_family import normalised
from roll_ray.algorithms.suffix_sums import pieces, suffix_sums

Array = npt.NDArray[Any]
Float32s = npt.NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class Policy:
    """The policy's K tokens: where they stand, [K], and the offsets of the samples among them, [B + 1]."""

    positions_K: npt.NDArray[np.int64]
    offsets: npt.NDArray[np.int64]

    @staticmethod
    def of(mask_T: Array, offsets: Array) -> Policy:
        positions_K = np.flatnonzero(mask_T)
        return Policy(positions_K, np.searchsorted(positions_K, offsets).astype(np.int64))

    @property
    def written_B(self) -> npt.NDArray[np.bool_]:
        return np.diff(self.offsets) > 0

    @property
    def last_B(self) -> npt.NDArray[np.int64]:
        """The last policy token of each sample that has one."""
        return self.positions_K[self.offsets[1:][self.written_B] - 1]


def token_rewards(
    scores_B: Array, mask_T: Array, offsets: Array, token_rewards_T: Array | None = None
) -> Float32s:
    """The score at the last policy token, on top of token rewards (for example -beta x KL); 0 at masked tokens."""
    policy = Policy.of(mask_T, offsets)
    rewards_T = np.zeros(len(mask_T), np.float32)
    if token_rewards_T is not None:
        rewards_T[policy.positions_K] = token_rewards_T[policy.positions_K]
    rewards_T[policy.last_B] += np.asarray(scores_B)[policy.written_B]
    return rewards_T


def returns_to_go(
    scores_B: Array, mask_T: Array, offsets: Array, gamma: float, token_rewards_T: Array | None = None
) -> Float32s:
    """R_t = r_t + gamma R_{t+1} over policy tokens, with r as in `token_rewards` (REINFORCE, Williams 1992)."""
    if gamma == 1 and token_rewards_T is None:
        scores_T = np.repeat(np.asarray(scores_B, np.float32), np.diff(offsets))
        return np.where(mask_T, scores_T, np.float32(0))
    rewards_T = token_rewards(scores_B, mask_T, offsets, token_rewards_T)
    out_T = np.zeros(len(mask_T), np.float32)
    for piece in pieces(offsets, mask_T):
        piece.put(piece.sums(piece.take(rewards_T), gamma), out_T)
    return out_T


def gae(
    rewards_T: Array, values_T: Array, mask_T: Array, offsets: Array, gamma: float, lam: float
) -> tuple[Float32s, Float32s]:
    """Advantages and returns [T] (GAE, 1506.02438, equation 16), over policy tokens.

    delta_t = r_t + gamma V_{t+1} - V_t; A_t = delta_t + gamma lam A_{t+1}; returns = A + V. t + 1 is the next
    policy token of the sample; behind the last one V is 0.
    """
    advantages_T = np.zeros(len(mask_T), np.float32)
    returns_T = np.zeros(len(mask_T), np.float32)
    for piece in pieces(offsets, mask_T):
        values = piece.take(values_T)
        delta = piece.take(rewards_T) + gamma * piece.following(values) - values
        advantages = piece.sums(delta, gamma * lam)
        piece.put(advantages, advantages_T)
        piece.put(advantages + values, returns_T)
    return advantages_T, returns_T


def segment_returns(
    scores_B: Array, mask_T: Array, offsets: Array, gamma: float, token_rewards_T: Array | None = None
) -> Float32s:
    """R_k = r_k + gamma R_{k+1} over segments, the unbroken runs of policy tokens of a sample; all tokens of a
    segment get its return, and its reward is the sum of theirs, with r as in `token_rewards` (the agentic
    REINFORCE of ROLL)."""
    mask_T = np.asarray(mask_T, np.bool_)
    cuts = np.union1d(np.flatnonzero(mask_T[1:] != mask_T[:-1]) + 1, offsets).astype(np.int64)
    written_P = mask_T[cuts[:-1]]  # the pieces between cuts are policy tokens all, or none
    segments = np.flatnonzero(written_P)
    if not len(segments):
        return np.zeros(len(mask_T), np.float32)
    rewards_T = token_rewards(scores_B, mask_T, offsets, token_rewards_T)
    rewards_P = np.add.reduceat(rewards_T, cuts[:-1], dtype=np.float64)
    segment_offsets = np.searchsorted(cuts[segments], offsets)
    returns_P = np.zeros(len(written_P), np.float32)
    returns_P[segments] = suffix_sums(rewards_P[segments], segment_offsets, gamma)
    return np.repeat(returns_P, np.diff(cuts))


@dataclass(frozen=True, slots=True)
class Steps:
    """The S environment steps (turns) of a batch, in order.

    `rewards_S`: of each step, NaN where invalid. `bounds` [S + 1]: step s owns tokens `bounds[s]:bounds[s + 1]`, at
    least one; a sample owns whole steps. `states_S`: what the policy saw before the step, any hashable.
    """

    rewards_S: Array
    bounds: Array
    states_S: Sequence[Hashable] = ()

    def sample_offsets(self, offsets: Array) -> npt.NDArray[np.int64]:
        """Sample i owns steps `[i]:[i + 1]` of this, [B + 1]. `ValueError` where a step lies in two samples."""
        places = np.searchsorted(self.bounds, offsets)
        inside = places < len(self.bounds)
        if len(self.bounds) != len(self.rewards_S) + 1 or (np.diff(self.bounds) < 1).any():
            raise ValueError(
                f"{len(self.rewards_S)} step rewards and {len(self.bounds)} bounds: one more bound than steps, and a "
                "token in each step, are needed"
            )
        if not inside.all() or (self.bounds[places] != offsets).any() or self.bounds[-1] != offsets[-1]:
            raise ValueError("a sample begins or ends inside a step: each sample owns whole steps")
        return places.astype(np.int64)

    def spread(self, x_S: Array, mask_T: Array) -> Float32s:
        """The number of each step at its policy tokens, 0 elsewhere, [T]."""
        x_T = np.repeat(np.asarray(x_S, np.float32), np.diff(self.bounds))
        return np.where(mask_T, x_T, np.float32(0))

    def policy_tokens_S(self, mask_T: Array) -> npt.NDArray[np.int64]:
        if not len(self.rewards_S):
            return np.zeros(0, np.int64)
        return np.add.reduceat(np.asarray(mask_T, np.bool_), self.bounds[:-1], dtype=np.int64)


def step_returns(steps: Steps, mask_T: Array, offsets: Array, gamma: float) -> Float32s:
    """R_s = r_s + gamma R_{s+1} over the steps of a sample, at all policy tokens of the step (the step REINFORCE of
    ROLL)."""
    returns_S = suffix_sums(steps.rewards_S, steps.sample_offsets(offsets), gamma)
    return steps.spread(returns_S, mask_T)


def gigpo(
    episode_advantages_B: Array,
    groups_B: Sequence[Hashable],
    steps: Steps,
    mask_T: Array,
    offsets: Array,
    gamma: float,
    omega: float,
    normalisation: Normalisation,
) -> Float32s:
    """A = A_episode + omega A_step at all policy tokens of a step (GiGPO, 2505.10978).

    A_step: the discounted return of the step, normalised over all visits of the same state by trajectories of the
    same group; a state visited once gives 0. Trajectories with an invalid step reward get 0 and are in no
    statistic, as are steps in which the policy wrote nothing.
    """
    sample_steps = steps.sample_offsets(offsets)
    returns_S = suffix_sums(steps.rewards_S, sample_steps, gamma)
    sample_S = np.repeat(np.arange(len(groups_B)), np.diff(sample_steps))
    invalid_B = np.bincount(sample_S[~np.isfinite(steps.rewards_S)], minlength=len(groups_B)) > 0
    usable = np.flatnonzero(~invalid_B[sample_S] & (steps.policy_tokens_S(mask_T) > 0))
    visits = [(groups_B[sample_S[s]], steps.states_S[s]) for s in usable]
    advantages_S = np.zeros(len(returns_S))
    if len(usable):
        step_share = normalised(Outcomes(returns_S[usable], visits, np.ones(len(usable))), normalisation)
        advantages_S[usable] = np.asarray(episode_advantages_B)[sample_S[usable]] + omega * step_share
    return steps.spread(advantages_S, mask_T)
