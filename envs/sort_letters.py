"""The demo task: `fbca>` must be answered `abcf`.

A prompt is 4 to 7 letters from a to j, repeats allowed, and a `>`. The reward is 1 for the exact answer, ended by
the end token, else 0 with the reason. 400 prompts are held out: no generator here gives them for training.
"""

from __future__ import annotations

import functools
import random

from envs.task import ScoredView
from roll_ray.sample import Prompt, Reward

DOMAIN = "sort_letters"
ALPHABET = "abcdefghij"
MIN_LETTERS, MAX_LETTERS = 4, 7
HELDOUT_COUNT = 400
MAX_ANSWER_TOKENS = MAX_LETTERS + 1
"""Every letter and the end token, with a tokenizer of one token a character."""
_HELDOUT_SEED = 20_000_003  # fixed: the same prompts are held out whatever seed a run trains with


def answer_to(letters: str) -> str:
    return "".join(sorted(letters))


def training_prompts(count: int = 10_000, seed: int = 0) -> list[Prompt]:
    """`count` different prompts, none of them held out; equal seeds give equal lists."""
    return [
        _prompt(letters) for letters in _different_letters(random.Random(seed), count, _heldout_letters())
    ]


def heldout_prompts(count: int = HELDOUT_COUNT) -> list[Prompt]:
    """The first `count` of the held-out prompts, in their fixed order."""
    if not 0 < count <= HELDOUT_COUNT:
        raise ValueError(f"count={count}: 1 to {HELDOUT_COUNT} prompts are held out")
    return [_prompt(letters) for letters in list(_heldout_letters())[:count]]


def reward(view: ScoredView) -> Reward:
    """1 for the exact answer, else 0; the reason says what is wrong with it."""
    if view.reference is None:
        return Reward.invalid("the prompt has no reference answer")
    answer = view.response_text
    reason = _fault(answer, view.reference, truncated=view.truncated)
    return Reward(0.0 if reason else 1.0, reason or "sorted", extracted=answer)


def _fault(answer: str, reference: str, *, truncated: bool) -> str:
    if answer == reference:
        return "did not end after the answer" if truncated else ""
    if not answer:
        return "empty answer"
    if sorted(answer) == sorted(reference):
        return "right letters, wrong order"
    return f"other letters than asked: {answer!r}"


def _prompt(letters: str) -> Prompt:
    return Prompt(id=f"{DOMAIN}/{letters}", text=f"{letters}>", domain=DOMAIN, reference=answer_to(letters))


@functools.cache
def _heldout_letters() -> dict[str, None]:
    return dict.fromkeys(_different_letters(random.Random(_HELDOUT_SEED), HELDOUT_COUNT, {}))


def _different_letters(rng: random.Random, count: int, without: dict[str, None]) -> list[str]:
    found: dict[str, None] = {}
    while len(found) < count:
        letters = "".join(rng.choices(ALPHABET, k=rng.randint(MIN_LETTERS, MAX_LETTERS)))
        if letters not in without:
            found[letters] = None
    return list(found)
