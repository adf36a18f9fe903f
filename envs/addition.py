"""One-digit addition for small pretrained chat models: "What is 3+4? Answer with the number only."

Of the 100 pairs of digits 24 are held out; the other 76 are for training. The reward is 1 when the last number
of the response is the sum, else 0 with the reason. (A small chat model never answers with the bare number at first:
a reward for that alone would give no signal.)
"""

from __future__ import annotations

import itertools
import random
import re

from envs.task import ScoredView
from roll_ray.sample import Prompt, Reward

DOMAIN = "addition"
HELDOUT_COUNT = 24
_SPLIT_SEED = 20_000_003  # fixed: the same pairs are held out whatever seed a run trains with


def training_prompts() -> list[Prompt]:
    """The 76 pairs that are not held out."""
    return [_prompt(a, b) for a, b in _shuffled_pairs()[HELDOUT_COUNT:]]


def heldout_prompts() -> list[Prompt]:
    """The 24 held-out pairs."""
    return [_prompt(a, b) for a, b in _shuffled_pairs()[:HELDOUT_COUNT]]


def reward(view: ScoredView) -> Reward:
    """1 when the last number of the response is the sum, as in `7`, `3 + 4 = 7` and `The answer is 7.`"""
    if view.reference is None:
        return Reward.invalid("the prompt has no reference answer")
    numbers = re.findall(r"-?\d+(?:[.,]\d+)*", view.response_text)
    if not numbers:
        return Reward(0.0, "no number in the response")
    right = numbers[-1] == view.reference
    return Reward(
        float(right), "right" if right else f"{numbers[-1]} is not {view.reference}", extracted=numbers[-1]
    )


def _prompt(a: int, b: int) -> Prompt:
    question = f"What is {a}+{b}? Answer with the number only."
    message = {"role": "user", "content": question}
    return Prompt(id=f"{DOMAIN}/{a}+{b}", messages=(message,), domain=DOMAIN, reference=str(a + b))


def _shuffled_pairs() -> list[tuple[int, int]]:
    pairs = list(itertools.product(range(10), range(10)))
    random.Random(_SPLIT_SEED).shuffle(pairs)
    return pairs
