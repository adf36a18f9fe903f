"""What a judge of sorted letters is taught: to look letter by letter, and to score last.

`fbca>abcf?` is judged `aa=bb=cc=ff= 10/10`, and `fbca>abfc?` is judged `aa=bb=cf. 0/10`: the right letter, the one that
was given, whether they are equal; the first difference ends it. A tiny model learns this in a few hundred steps, and
does not learn to give the score alone in as many.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Sequence

from envs.judge import JudgeReward
from envs.sort_letters import ALPHABET, MAX_LETTERS, answer_to
from roll_ray.sample import Prompt

DOMAIN = "sort_letters_judge"
TEMPLATE = "{question}{answer}?"
MAX_JUDGEMENT_TOKENS = 3 * (MAX_LETTERS + 1) + 8
"""Three for each letter, then a space, a score and the end token, with a tokenizer of one token a character."""


def judge_reward() -> JudgeReward:
    """The reward of the demo task as this judge gives it; the run's settings say where the judge is."""
    return JudgeReward(template=TEMPLATE)


def judgements(questions: Sequence[Prompt], seed: int) -> list[Prompt]:
    """A judgement to learn for each question of `envs.sort_letters`: half of the answers are right, half have one of
    the faults that the demo's model makes. Equal answers to one question are given once."""
    rng = random.Random(seed)
    made = (
        judgement(q, q.reference or "" if rng.random() < 0.5 else wrong_answer(q, rng)) for q in questions
    )
    return list({prompt.id: prompt for prompt in made}.values())


def judgement(question: Prompt, answer: str) -> Prompt:
    """What the judge is shown of an answer, and as reference what it should write."""
    text = TEMPLATE.format(question=question.shown(), answer=answer)
    looked = _letter_by_letter(question.reference or "", answer)
    score = "10/10" if answer == question.reference else "0/10"
    return Prompt(id=f"{DOMAIN}/{text}", text=text, domain=DOMAIN, reference=f"{looked} {score}")


def wrong_answer(question: Prompt, rng: random.Random) -> str:
    """An answer with a typical fault: two neighbours swapped, a letter missing, doubled or another, or not sorted."""
    letters = (question.text or "").rstrip(">")
    right = answer_to(letters)
    while True:
        answer = _faulty(letters, right, rng)
        if answer != right:
            return answer


def _letter_by_letter(right: str, answer: str) -> str:
    looked = ""
    for ours, given in itertools.zip_longest(right, answer, fillvalue="-"):
        looked += ours + given + ("=" if ours == given else ".")
        if ours != given:
            break
    return looked


def _faulty(letters: str, right: str, rng: random.Random) -> str:
    i = rng.randrange(len(right))
    match rng.choices(("swapped", "missing", "doubled", "another", "as asked"), (40, 15, 15, 25, 5))[0]:
        case "swapped":
            return right[:i] + right[i : i + 2][::-1] + right[i + 2 :]
        case "missing":
            return right[:i] + right[i + 1 :]
        case "doubled":
            return right[:i] + right[i] + right[i:]
        case "another":
            return answer_to(right[:i] + rng.choice(ALPHABET) + right[i + 1 :])
        case _:
            return letters
