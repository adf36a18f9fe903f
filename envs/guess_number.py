"""Guess a number from 1 to 15 in 4 turns; the environment answers `<`, `>` or `=`.

`<` says that the number is smaller than the guess. A response that is no number of the range costs a turn and
is told so. The reward is 1 for the number found, else 0. With 15 numbers and 4 turns only bisection always wins.

Two renderings. A chat for models that read: the last number of a response is the guess. *Compact*, one character
a guess for tiny models of one token a character: prompt `?`, guesses `a` for 1, `b` for 2 ..., answers `<`, `>`, `=`
and `?` for what is no guess. `COMPACT_CHARACTERS` are all that it uses.
"""

from __future__ import annotations

import re
import string
from dataclasses import dataclass, field

from envs.replies import needed, reply
from envs.task import Observation, StepResult, Turn
from roll_ray.sample import Prompt, Reward

DOMAIN = "guess_number"
HIGHEST, MAX_TURNS = 15, 4
COMPACT_ASK = "?"
COMPACT_LETTERS = string.ascii_lowercase
COMPACT_CHARACTERS = COMPACT_ASK + "<>=" + COMPACT_LETTERS[:HIGHEST]

_NUMBER = re.compile(r"(?<![\w.])-?[0-9]++(?![\w.]*[0-9])")
_RULES = (
    "I have chosen a whole number from 1 to {highest}. You have {max_turns} guesses; answer each time with your guess "
    "alone. After each guess I say < when my number is smaller, > when it is larger, = when you have found it."
)


def prompts(
    highest: int = HIGHEST, max_turns: int = MAX_TURNS, *, compact: bool = False, copies: int = 1
) -> list[Prompt]:
    """`copies` prompts for each number from 1 to `highest`: what differs is hidden in `info["target"]`."""
    if compact and highest > len(COMPACT_LETTERS):
        raise ValueError(f"highest={highest}: the compact rendering has {len(COMPACT_LETTERS)} letters")
    return [
        _prompt(target, copy, highest, max_turns, compact)
        for copy in range(copies)
        for target in range(1, highest + 1)
    ]


def _prompt(target: int, copy: int, highest: int, max_turns: int, compact: bool) -> Prompt:
    rules = _RULES.format(highest=highest, max_turns=max_turns)
    return Prompt(
        id=f"{DOMAIN}/{highest}/{target}/{copy}",
        text=COMPACT_ASK if compact else None,
        messages=None if compact else ({"role": "user", "content": rules},),
        domain=DOMAIN,
        info={"target": target, "highest": highest, "max_turns": max_turns, "compact": compact},
    )


@dataclass(slots=True)
class GuessNumber:
    """The game of one prompt. The prompt's info says `target`, and may say `highest`, `max_turns`, `compact`.

    `state` is what was known before the turn: the interval in which the number must be, and the turns left.
    """

    _prompt: Prompt = field(init=False)
    _target: int = field(init=False)
    _highest: int = field(init=False)
    _turns_left: int = field(init=False)
    _low: int = field(init=False)
    _high: int = field(init=False)

    async def reset(self, prompt: Prompt, seed: int) -> Observation:
        self._prompt, self._target = prompt, int(needed(prompt, "target"))
        self._highest = int(prompt.info.get("highest", HIGHEST))
        self._turns_left = int(prompt.info.get("max_turns", MAX_TURNS))
        self._low, self._high = 1, self._highest
        return Observation.of(prompt)

    async def step(self, response: Turn) -> StepResult:
        state = f"{self._low}-{self._high}, {self._turns_left} left"
        self._turns_left -= 1
        guess = self._guess(response.text)
        self._learn(guess)
        found = guess == self._target
        over = found or self._turns_left == 0
        return StepResult(
            observation=self._answer(guess),
            reward=self._verdict(found) if over else None,
            step_reward=float(found),
            terminated=over,
            state=state,
            info={"success": found, "malformed": guess is None},
        )

    def _guess(self, text: str) -> int | None:
        """The guess of a response, None when there is none within the range."""
        if self._compact:
            letter = text.strip()
            number = COMPACT_LETTERS.find(letter) + 1 if len(letter) == 1 else 0
        else:
            numbers = _NUMBER.findall(text)
            # Nobody means a number of twenty digits, and Python refuses to read one of 5,000.
            number = int(numbers[-1]) if numbers and len(numbers[-1]) < 20 else 0
        return number if 1 <= number <= self._highest else None

    def _answer(self, guess: int | None) -> Observation:
        if guess is None:
            words = f"That is not a whole number from 1 to {self._highest}. Answer with your guess alone."
            return Observation(text=COMPACT_ASK) if self._compact else reply(self._prompt, words)
        sign = "=" if guess == self._target else "<" if self._target < guess else ">"
        return Observation(text=sign) if self._compact else reply(self._prompt, sign)

    def _verdict(self, found: bool) -> Reward:
        return Reward(float(found), "found" if found else f"not found: it was {self._target}")

    def _learn(self, guess: int | None) -> None:
        """Narrow the interval in which the number must be by what a guess has told."""
        if guess is not None and guess < self._target:
            self._low = max(self._low, guess + 1)
        if guess is not None and guess > self._target:
            self._high = min(self._high, guess - 1)

    @property
    def _compact(self) -> bool:
        return bool(self._prompt.info.get("compact", False))
