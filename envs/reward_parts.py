"""Rewards of several weighted parts, each of which is logged by itself, and the parts that many tasks share.

    WeightedReward({
        "correct": (1.0, MathsVerifier()),
        "format": (0.2, FormatReward(THINK_ANSWER)),
        "overlong": (0.5, OverlongCharacters(8_000, 2_000)),
        "repetition": (0.5, RepeatedWords()),
        "tools": (0.2, ToolCallValidity({"search": {"required": ["query"]}})),    # envs.tool_calls
    })

What is counted in tokens is not here but in the settings' `shaping` group: a reward function sees text.
"""

from __future__ import annotations

import asyncio
import math
import numbers
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from inspect import isawaitable
from typing import Any, Protocol, runtime_checkable

import numpy as np

from envs.judge import Ask, needs_judge
from envs.task import AsyncRewardFunction, RewardFunction, ScoredView
from roll_ray.algorithms.shaping import repeated_ngram_share, soft_overlong
from roll_ray.sample import Reward

AnyRewardFunction = RewardFunction | AsyncRewardFunction


@runtime_checkable
class LearningReward(Protocol):
    """What a reward function has as well if it learns while it scores: it is kept in the checkpoint."""

    def learnt(self) -> Mapping[str, Any]:
        """Plain data (JSON types)."""

    def learn(self, learnt: Mapping[str, Any]) -> None:
        """Take in what this function, or its copy in another reward worker, had learnt."""


THINK_ANSWER = (
    r"\s*<think>(?:(?!</?(?:think|answer)>).)*</think>\s*<answer>(?:(?!</?(?:think|answer)>).)*</answer>\s*"
)
"""Reasoning in one pair of think tags, then the answer in one pair of answer tags, and nothing else."""


@dataclass(frozen=True, slots=True)
class WeightedReward:
    """The sum of `weight * value` over its parts; a reward function, awaited if one of its parts is.

    `parts` maps a name to weight and function. The first is the main one: its reason and the answer that it
    found are the reward's. A reward with an invalid part is invalid: without it the sum would be another reward. Each
    product is in `Reward.parts` and becomes the metric `reward_part/<name>`.
    """

    parts: Mapping[str, tuple[float, AnyRewardFunction]]

    def __post_init__(self) -> None:
        if not self.parts:
            raise ValueError("a weighted reward needs at least one part")

    @property
    def needs_judge(self) -> bool:
        """Whether one of its parts waits for the judge of the run."""
        return any(needs_judge(function) for _, function in self.parts.values())

    def with_judge(self, ask: Ask) -> WeightedReward:
        """The same, with this judge for the parts that need one."""
        given: dict[str, tuple[float, Any]] = {
            name: (weight, function.with_judge(ask) if needs_judge(function) else function)  # type: ignore[union-attr]
            for name, (weight, function) in self.parts.items()
        }
        return replace(self, parts=given)

    def learnt(self) -> dict[str, Any]:
        """What those of its parts that learn have learnt, by name."""
        functions = {name: function for name, (_, function) in self.parts.items()}
        return {name: f.learnt() for name, f in functions.items() if isinstance(f, LearningReward)}

    def learn(self, learnt: Mapping[str, Any]) -> None:
        """Hand on to each part what it had learnt."""
        for name, what in learnt.items():
            function = self.parts[name][1]
            assert isinstance(function, LearningReward)
            function.learn(what)

    def __call__(self, view: ScoredView) -> Any:
        """A `Reward`, or an awaitable of one: plain parts are computed at once, in the caller's thread."""
        values = {name: function(view) for name, (_, function) in self.parts.items()}
        if any(isawaitable(value) for value in values.values()):
            return self._awaited(values)
        return self._sum(values)

    async def _awaited(self, values: Mapping[str, Any]) -> Reward:
        waiting = {name: value for name, value in values.items() if isawaitable(value)}
        come = dict(zip(waiting, await asyncio.gather(*waiting.values()), strict=True))
        return self._sum({name: come.get(name, value) for name, value in values.items()})

    def _sum(self, values: Mapping[str, Any]) -> Reward:
        rewards = {name: checked(value) for name, value in values.items()}
        main = next(iter(rewards.values()))
        products: dict[str, float] = {}
        for name, reward in rewards.items():
            if reward.value is None:
                reason = reward.reason if reward is main else f"part {name}: {reward.reason}"
                return Reward(None, reason, main.extracted)
            products[name] = self.parts[name][0] * reward.value
        return Reward(sum(products.values()), main.reason, main.extracted, products)


@dataclass(frozen=True, slots=True)
class FormatReward:
    """1 for a response that the pattern matches as a whole (a dot is any character, line ends too), else 0."""

    pattern: str = THINK_ANSWER

    def __call__(self, view: ScoredView) -> Reward:
        fits = re.fullmatch(self.pattern, view.response_text, re.DOTALL) is not None
        return Reward(float(fits), "as asked" if fits else "not in the format that was asked for")


@dataclass(frozen=True, slots=True)
class OverlongCharacters:
    """Soft overlong punishment (DAPO, 2503.14476, equation 13) in characters: 0 up to `limit - cache`, then falling to
    -1 at `limit`."""

    limit: int
    cache: int

    def __call__(self, view: ScoredView) -> Reward:
        n = len(view.response_text)
        punishment = float(soft_overlong(np.asarray([n]), self.limit, self.cache)[0])
        return Reward(punishment, f"{n} characters")


@dataclass(frozen=True, slots=True)
class RepeatedWords:
    """Minus the share of n-grams of words that stood in the response before, in (-1, 0]."""

    ngram_words: int = 4

    def __call__(self, view: ScoredView) -> Reward:
        words = view.response_text.split()
        codes = np.unique(words, return_inverse=True)[1] if words else np.empty(0, np.int64)
        share = repeated_ngram_share(codes, self.ngram_words)
        return Reward(-share, f"{share:.0%} of its {self.ngram_words}-grams are repeated")


def checked(value: Any) -> Reward:
    """What a reward function or an environment gave, as a reward with a Python float or an invalid one."""
    given = value.value if isinstance(value, Reward) else value
    if isinstance(value, Reward) and given is None:
        return value
    number = given.item() if isinstance(given, np.generic) else given
    if not isinstance(number, numbers.Real) or not math.isfinite(number):
        return Reward.invalid(f"the reward is {given!r} ({type(given).__name__}), not a finite number")
    return replace(value, value=float(number)) if isinstance(value, Reward) else Reward(float(number))
