"""A second task for the demo's model: `fbca<` must be answered `acbf`, the letters in reverse.

A prompt is 4 to 8 letters from a to j, repeats allowed, and a `<`. The reward is 1 for the exact answer, ended by the
end token, else 0 with the reason. 400 prompts are held out: no generator here gives them for training.
"""

from __future__ import annotations

import functools
import random
from collections.abc import Collection

from envs.sort_letters import ALPHABET
from envs.task import ScoredView
from roll_ray.sample import Prompt, Reward

DOMAIN = "reverse_letters"
MIN_LETTERS, MAX_LETTERS = 4, 8
HELDOUT_COUNT = 400
_HELDOUT_SEED = 20_000_017  # fixed: the same prompts are held out whatever seed a run trains with


def training_prompts(count: int = 10_000, seed: int = 0) -> list[Prompt]:
    """`count` different prompts, none of them held out; equal seeds give equal lists."""
    return [_prompt(letters) for letters in _different(random.Random(seed), count, _heldout())]


def heldout_prompts() -> list[Prompt]:
    """The 400 held-out prompts, in their fixed order."""
    return [_prompt(letters) for letters in _heldout()]


def reward(view: ScoredView) -> Reward:
    """1 for the exact answer, else 0; the reason says from which letter on it is wrong."""
    if view.reference is None:
        return Reward.invalid("the prompt has no reference answer")
    answer, right = view.response_text, view.reference
    if answer == right:
        ended = not view.truncated
        return Reward(float(ended), "reversed" if ended else "did not end after the answer", extracted=answer)
    pairs = zip(answer, right, strict=False)
    wrong = next((i for i, (a, b) in enumerate(pairs, 1) if a != b), min(len(answer), len(right)) + 1)
    return Reward(0.0, f"wrong from letter {wrong} on: {answer!r}", extracted=answer)


def _prompt(letters: str) -> Prompt:
    return Prompt(id=f"{DOMAIN}/{letters}", text=f"{letters}<", domain=DOMAIN, reference=letters[::-1])


@functools.cache
def _heldout() -> dict[str, None]:
    return dict.fromkeys(_different(random.Random(_HELDOUT_SEED), HELDOUT_COUNT, ()))


def _different(rng: random.Random, count: int, without: Collection[str]) -> list[str]:
    found: dict[str, None] = {}
    while len(found) < count:
        letters = "".join(rng.choices(ALPHABET, k=rng.randint(MIN_LETTERS, MAX_LETTERS)))
        if letters not in without:
            found[letters] = None
    return list(found)
