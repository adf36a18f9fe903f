"""Advantages of turns from the numbers in receipts: the formulas, written once more turn by turn."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from roll_ray.algorithms.estimator_registry import AdvantageSettings, Normalisation
from roll_ray.algorithms.turn_advantages import spread_over_tokens, turn_advantages
from roll_ray.errors import RollRayError
from roll_ray.receipts import Receipt, TurnNumbers
from schedulers.protocol import SampleId, Visit


def receipt(i: int, turns: list[TurnNumbers], valid: bool = True) -> Receipt:
    tokens = sum(turn.n_policy_tokens for turn in turns)
    reward = sum(turn.reward for turn in turns) if valid else None
    sample = SampleId(Visit(f"p{i // 3}", 0), i % 3)
    return Receipt(
        sample, 0, "s", tokens + 2, tokens, False, reward, "", "d", 0, 0, 0.0, 0.0, {}, tuple(turns)
    )


numbers = st.builds(TurnNumbers, st.integers(0, 3), st.sampled_from([-1.0, 0.0, 0.5, 2.0]), st.integers(0, 3))
episodes = st.lists(
    st.tuples(st.lists(numbers, min_size=1, max_size=4), st.booleans()), min_size=1, max_size=7
)


def returns_of(receipt: Receipt, gamma: float) -> list[float]:
    ahead, returns = 0.0, []
    for turn in reversed(receipt.turns):
        ahead = turn.reward + gamma * ahead
        returns.insert(0, ahead)
    return returns


@settings(max_examples=60, deadline=None)
@given(episodes=episodes, gamma=st.sampled_from([0.5, 0.9, 1.0]))
def test_a_turns_return_is_its_reward_and_the_discounted_return_of_the_next(episodes, gamma) -> None:
    receipts = [receipt(i, turns, valid) for i, (turns, valid) in enumerate(episodes)]
    given_B = turn_advantages(
        "step_returns", receipts, np.zeros(len(receipts)), AdvantageSettings(gamma=gamma)
    )
    for r, advantages in zip(receipts, given_B, strict=True):
        wrote = [turn.n_policy_tokens > 0 for turn in r.turns]
        expected = (
            np.where(wrote, returns_of(r, gamma), 0.0) if r.reward is not None else np.zeros(len(wrote))
        )
        assert advantages == pytest.approx(expected, abs=1e-6)


@settings(max_examples=60, deadline=None)
@given(episodes=episodes, gamma=st.sampled_from([0.5, 1.0]), omega=st.sampled_from([0.0, 0.5, 1.0]))
def test_gigpo_compares_turns_from_one_state_within_the_group(episodes, gamma, omega) -> None:
    receipts = [receipt(i, turns, valid) for i, (turns, valid) in enumerate(episodes)]
    own_B = np.arange(len(receipts), dtype=float)
    told = AdvantageSettings(Normalisation("group", "none"), gamma=gamma, omega=omega)
    given_B = turn_advantages("gigpo", receipts, own_B, told)
    at_state: dict[object, list[float]] = {}
    for r in receipts:
        if r.reward is not None:
            for turn, value in zip(r.turns, returns_of(r, gamma), strict=True):
                if turn.n_policy_tokens:
                    at_state.setdefault((r.sample.visit, turn.state), []).append(value)
    for i, r in enumerate(receipts):
        for turn, value, advantage in zip(r.turns, returns_of(r, gamma), given_B[i], strict=True):
            if r.reward is None or not turn.n_policy_tokens:
                assert advantage == 0
            else:
                mean = np.mean(at_state[r.sample.visit, turn.state])
                assert advantage == pytest.approx(own_B[i] + omega * (value - mean), abs=1e-5)


def test_a_response_without_turns_of_its_own_is_one_turn() -> None:
    plain = Receipt(SampleId(Visit("p", 0), 0), 0, "s", 5, 3, False, 0.75, "", "d", 0, 0, 0.0, 0.0)
    (advantages,) = turn_advantages("step_returns", [plain], np.zeros(1), AdvantageSettings(gamma=0.5))
    assert advantages.tolist() == [0.75]


def test_gigpo_without_a_state_is_an_error_that_names_prompt_and_domain() -> None:
    lacking = receipt(0, [TurnNumbers(1, 0.0, 4), TurnNumbers(1, 0.0, None)])
    with pytest.raises(RollRayError, match=r"domain 'd' names no state(.|\n)*prompt p0"):
        turn_advantages("gigpo", [lacking], np.zeros(1), AdvantageSettings(Normalisation()))


def test_every_policy_token_gets_its_turns_advantage_and_no_other_token_any() -> None:
    mask_T = np.asarray(
        [0, 1, 1, 0, 1, 0, 0, 1], bool
    )  # turns of 2, 0 and 1 tokens, then a sample of one turn
    advantages_B, tokens_B = np.empty(2, object), np.empty(2, object)
    advantages_B[0], advantages_B[1] = np.asarray([1.0, 9.0, 2.0]), np.asarray([3.0])
    tokens_B[0], tokens_B[1] = np.asarray([2, 0, 1]), np.asarray([1])
    spread_T = spread_over_tokens(advantages_B, tokens_B, mask_T)
    assert spread_T.tolist() == [0, 1, 1, 0, 2, 0, 0, 3]
    assert spread_over_tokens(advantages_B[:0], tokens_B[:0], mask_T[:0]).tolist() == []
