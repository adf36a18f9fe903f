"""Two-digit addition for the demo's tiny model: `47+85=` must be answered `132`.

Both numbers are 10 to 99. The reward is 1 for the exact sum, ended by the end token, else 0 with the reason. 400 of the
8,100 pairs are held out: no generator here gives them for training.
"""

from __future__ import annotations

import functools
import itertools
import random

from envs.task import ScoredView
from roll_ray.sample import Prompt, Reward

DOMAIN = "two_digit_addition"
HELDOUT_COUNT = 400
_SPLIT_SEED = 20_000_003  # fixed: the same pairs are held out whatever seed a run trains with


def training_prompts(seed: int = 0) -> list[Prompt]:
    """The 7,700 pairs that are not held out, in an order that follows from the seed."""
    pairs = list(_shuffled_pairs()[HELDOUT_COUNT:])
    random.Random(seed).shuffle(pairs)
    return [_prompt(a, b) for a, b in pairs]


def heldout_prompts() -> list[Prompt]:
    """The 400 held-out pairs, in their fixed order."""
    return [_prompt(a, b) for a, b in _shuffled_pairs()[:HELDOUT_COUNT]]


def reward(view: ScoredView) -> Reward:
    """1 for the exact sum, else 0; the reason says what is wrong with it."""
    if view.reference is None:
        return Reward.invalid("the prompt has no reference answer")
    answer = view.response_text
    right = answer == view.reference and not view.truncated
    if right:
        return Reward(1.0, "right", extracted=answer)
    said = f"{answer} is not {view.reference}" if answer.isdigit() else f"no number: {answer!r}"
    return Reward(0.0, "did not end after the answer" if answer == view.reference else said, extracted=answer)


def _prompt(a: int, b: int) -> Prompt:
    return Prompt(id=f"{DOMAIN}/{a}+{b}", text=f"{a}+{b}=", domain=DOMAIN, reference=str(a + b))


@functools.cache
def _shuffled_pairs() -> tuple[tuple[int, int], ...]:
    pairs = list(itertools.product(range(10, 100), repeat=2))
    random.Random(_SPLIT_SEED).shuffle(pairs)
    return tuple(pairs)
