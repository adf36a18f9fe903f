"""Weighted parts: the sum is the reward, each product is kept by itself, and no invalid part is counted as 0."""

from __future__ import annotations

import asyncio
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from envs.reward_parts import FormatReward, OverlongCharacters, RepeatedWords, WeightedReward
from envs.task import ScoredView
from roll_ray.algorithms.shaping import soft_overlong
from roll_ray.sample import Prompt, Reward


def view(text: str) -> ScoredView:
    return ScoredView(Prompt("p", text="?", reference="4"), text)


def right(view: ScoredView) -> Reward:
    return Reward(float(view.reference in view.response_text), "right", extracted="4")


def test_the_reward_is_the_weighted_sum_with_each_part_and_the_main_ones_reason() -> None:
    weighted = WeightedReward({"correct": (1.0, right), "short": (-0.125, lambda v: len(v.response_text))})
    assert weighted(view("4 it")) == Reward(0.5, "right", "4", {"correct": 1.0, "short": -0.5})


@settings(deadline=None)
@given(st.lists(st.tuples(st.floats(-5, 5), st.floats(-5, 5)), min_size=1, max_size=5))
def test_the_parts_sum_to_the_value(pairs: list[tuple[float, float]]) -> None:
    parts: dict[str, Any] = {f"p{i}": (w, lambda v, x=x: x) for i, (w, x) in enumerate(pairs)}
    reward = WeightedReward(parts)(view(""))
    assert reward.value == sum(reward.parts.values())
    assert reward.parts == {f"p{i}": w * x for i, (w, x) in enumerate(pairs)}


def test_an_invalid_part_makes_the_whole_invalid_with_its_name() -> None:
    def lost(view: ScoredView) -> Reward:
        return Reward(None, "verifier timed out", "5")

    main = WeightedReward({"correct": (1.0, lost), "short": (1.0, lambda v: 1.0)})(view(""))
    assert main == Reward(None, "verifier timed out", "5")
    beside = WeightedReward({"correct": (1.0, right), "style": (0.1, lost)})(view("4"))
    assert (beside.value, beside.reason) == (None, "part style: verifier timed out")
    no_number: Any = WeightedReward({"correct": (1.0, right), "odd": (0.1, lambda v: float("nan"))})(
        view("4")
    )
    assert "part odd: the reward is nan" in no_number.reason


def test_awaited_and_plain_parts_make_one_reward() -> None:
    async def slow(view: ScoredView) -> float:
        await asyncio.sleep(0)
        return np.float32(0.5)  # type: ignore[return-value]

    async def story() -> Reward:
        return await WeightedReward({"judge": (2.0, slow), "correct": (1.0, right)})(view("4"))

    assert asyncio.run(story()) == Reward(2.0, "", None, {"judge": 1.0, "correct": 1.0})


def test_no_part_is_no_reward() -> None:
    with pytest.raises(ValueError, match="at least one part"):
        WeightedReward({})


@pytest.mark.parametrize(
    ("text", "fits"),
    [
        ("<think>\nso\n</think>\n<answer>4</answer>\n", True),
        ("<think></think><answer></answer>", True),
        ("<answer>4</answer>", False),
        ("<think>so</think>4", False),
        ("<think>a</think><think>b</think><answer>4</answer>", False),
        ("<think>a <answer>4</answer></think><answer>4</answer>", False),
        ("well <think>a</think><answer>4</answer>", False),
        ("<think>a</think><answer>4", False),
    ],
)
def test_the_think_answer_format_is_one_pair_of_each_and_nothing_else(text: str, fits: bool) -> None:
    assert FormatReward()(view(text)).value == float(fits)


def test_a_long_response_that_nearly_fits_is_judged_at_once() -> None:
    assert FormatReward()(view("<think>" + "a<" * 50_000)).value == 0.0


def test_a_pattern_of_ones_own_has_to_match_the_whole() -> None:
    assert FormatReward(r"Answer: \d+")(view("Answer: 4")).value == 1.0
    assert FormatReward(r"Answer: \d+")(view("Answer: 4, I think")).value == 0.0


@settings(deadline=None)
@given(n=st.integers(0, 50))
def test_overlong_characters_follow_the_formula_for_tokens(n: int) -> None:
    value = OverlongCharacters(30, 10)(view("x" * n)).value
    assert value == soft_overlong(np.asarray([n]), 30, 10)[0]


@pytest.mark.parametrize(
    ("text", "value"), [("", 0.0), ("a b c", 0.0), ("a b a b a b", -0.6), ("one two three one two", -0.25)]
)
def test_repeated_words_are_punished_by_their_share(text: str, value: float) -> None:
    assert RepeatedWords(ngram_words=2)(view(text)).value == pytest.approx(value)
