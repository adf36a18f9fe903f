"""A task with a long tail of lengths: `fbca2>` must be answered `abcfabcf`, the sorted letters so many times.

Most prompts ask for one or two repetitions, `TAIL_SHARE` of them for eight or nine: how long a response gets is
the prompt's own, as with hard prompts of real data, which stay long from step to step.
"""

from __future__ import annotations

import functools
import random

from envs.task import ScoredView
from roll_ray.sample import Prompt, Reward

DOMAIN = "sort_repeat"
ALPHABET = "abcdefghij"
MIN_LETTERS, MAX_LETTERS = 4, 6
SHORT_REPEATS, LONG_REPEATS = (1, 2), (8, 9)
TAIL_SHARE = 0.1
HELDOUT_COUNT = 400
MAX_ANSWER_TOKENS = MAX_LETTERS * max(LONG_REPEATS) + 1
"""Every letter and the end token, with a tokenizer of one token a character."""
_HELDOUT_SEED = 20_000_011  # fixed: the same prompts are held out whatever seed a run trains with


def answer_to(letters: str, repeats: int) -> str:
    return "".join(sorted(letters)) * repeats


def training_prompts(count: int = 10_000, seed: int = 0) -> list[Prompt]:
    """`count` different prompts, with other letters than those held out; equal seeds give equal lists."""
    return _different(random.Random(seed), count, _heldout())


def heldout_prompts(count: int = HELDOUT_COUNT) -> list[Prompt]:
    """The first `count` of the held-out prompts, in their fixed order."""
    if not 0 < count <= HELDOUT_COUNT:
        raise ValueError(f"count={count}: 1 to {HELDOUT_COUNT} prompts are held out")
    return list(_heldout().values())[:count]


def reward(view: ScoredView) -> Reward:
    """1 for the exact answer, else 0; the reason says what is wrong with it."""
    if view.reference is None:
        return Reward.invalid("the prompt has no reference answer")
    answer = view.response_text
    if answer == view.reference and not view.truncated:
        return Reward(1.0, "sorted and repeated", extracted=answer)
    return Reward(0.0, _fault(answer, view.reference), extracted=answer)


def _fault(answer: str, reference: str) -> str:
    if answer == reference:
        return "did not end after the answer"
    if answer and (reference.startswith(answer) or answer.startswith(reference)):
        wrong = "too few" if len(answer) < len(reference) else "too many"
        return f"{len(answer)} letters, {len(reference)} are right: {wrong}"
    return f"another order or other letters than asked: {answer!r}"


@functools.cache
def _heldout() -> dict[str, Prompt]:
    return {_letters(p): p for p in _different(random.Random(_HELDOUT_SEED), HELDOUT_COUNT, {})}


def _different(rng: random.Random, count: int, without: dict[str, Prompt]) -> list[Prompt]:
    found: dict[str, Prompt] = {}
    while len(found) < count:
        prompt = _drawn(rng)
        if _letters(prompt) not in without:
            found[_letters(prompt)] = prompt
    return list(found.values())


def _letters(prompt: Prompt) -> str:
    assert prompt.text is not None
    return prompt.text.rstrip(">0123456789")


def _drawn(rng: random.Random) -> Prompt:
    letters = "".join(rng.choices(ALPHABET, k=rng.randint(MIN_LETTERS, MAX_LETTERS)))
    repeats = rng.choice(LONG_REPEATS if rng.random() < TAIL_SHARE else SHORT_REPEATS)
    return Prompt(
        id=f"{DOMAIN}/{letters}{repeats}",
        text=f"{letters}{repeats}>",
        domain=DOMAIN,
        reference=answer_to(letters, repeats),
    )
