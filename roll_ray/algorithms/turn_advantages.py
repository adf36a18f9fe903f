"""Advantages of turns, from their rewards and states: computed where the rewards are, in the driver, over the whole
batch, since a group's episodes may lie on different ranks. Loads no torch.

The driver knows of a turn its numbers, never its tokens: to `returns`, which works on tokens, a turn is one token here.
The trainer ranks then give each policy token its turn's advantage (`spread_over_tokens`).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from roll_ray.algorithms.estimator_registry import AdvantageSettings, Array
from roll_ray.algorithms.returns import Steps, gigpo, step_returns
from roll_ray.errors import RollRayError
from roll_ray.receipts import Receipt

BY_TURN = frozenset({"step_returns", "gigpo"})
"""Estimators whose advantages differ by turn and come from here."""


def turn_advantages(
    name: str, receipts: Sequence[Receipt], episode_advantages_B: Array, settings: AdvantageSettings
) -> list[npt.NDArray[np.float32]]:
    """For each sample the advantages of its turns, by estimator `name` of `BY_TURN`; 0 where its reward is invalid.

    Raises RollRayError for gigpo when an environment named no state."""
    turns = [turn for receipt in receipts for turn in receipt.each_turn]
    offsets = np.concatenate([[0], np.cumsum([len(r.each_turn) for r in receipts])]).astype(np.int64)
    valid_S = np.repeat([r.reward is not None for r in receipts], np.diff(offsets))
    rewards_S = np.where(valid_S, [turn.reward for turn in turns], np.nan)
    steps = Steps(rewards_S, np.arange(len(turns) + 1), [turn.state for turn in turns])
    wrote_S = np.asarray([turn.n_policy_tokens > 0 for turn in turns], np.bool_)
    if name == "gigpo":
        _check_states(receipts)
        assert settings.normalisation is not None
        groups_B = [receipt.sample.visit for receipt in receipts]
        own = (settings.gamma, settings.omega, settings.normalisation)
        advantages_S = gigpo(episode_advantages_B, groups_B, steps, wrote_S, offsets, *own)
    else:
        advantages_S = np.where(valid_S, step_returns(steps, wrote_S, offsets, settings.gamma), np.float32(0))
    return np.split(advantages_S, offsets[1:-1])


def spread_over_tokens(advantages_B: Array, tokens_B: Array, mask_T: Array) -> npt.NDArray[np.float32]:
    """Each turn's advantage at its policy tokens, 0 elsewhere, [T].

    Arrays of arrays: of each sample the advantages of its turns, and how many policy tokens each turn has."""
    out_T = np.zeros(len(mask_T), np.float32)
    if len(advantages_B):
        advantages_S, tokens_S = np.concatenate(list(advantages_B)), np.concatenate(list(tokens_B))
        out_T[np.flatnonzero(mask_T)] = np.repeat(advantages_S, tokens_S)
    return out_T


def _check_states(receipts: Sequence[Receipt]) -> None:
    lacking = next((r for r in receipts if any(turn.state is None for turn in r.each_turn)), None)
    if lacking is not None:
        raise RollRayError(
            f"adv_estimator=gigpo compares turns that were played from the same state, and the environment of domain "
            f"{lacking.domain!r} names no state",
            why=f"prompt {lacking.sample.visit.prompt_id} has a turn without one",
            next_step="let its `StepResult` say `state`, or use another adv_estimator, for example grpo",
        )
