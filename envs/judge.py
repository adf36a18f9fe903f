"""A language model as the judge of responses.

    rewards={"essay": JudgeReward()}                       the judge is what the settings' `judge` group says
    JudgeReward(EndpointJudge("some-model", "https://host/v1"))    one of your own

The judge is shown question, reference and answer, and what it writes is read by `envs.judge_score`. A call that
fails, or an answer without a score, is tried again; after `attempts` the reward is invalid, never 0.
"""

from __future__ import annotations

import asyncio
import string
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Protocol

from envs.judge_score import parse_score
from envs.task import ScoredView
from roll_ray.judge_settings import ATTEMPTS
from roll_ray.sample import Reward

TEMPLATE = """You grade an answer to a question. Judge only whether it is right and complete, not how it is written.

Question:
{question}

Reference answer:
{reference}

Answer to grade:
{answer}

Write one sentence of reasons, then on a line of its own a score from 0 (useless) to {scale} (perfect), like this:
Score: n/{scale}"""

_FIELDS = ("question", "reference", "answer", "scale")
_SHOWN_CHARACTERS = 200


class JudgeFailedError(Exception):
    """A call of the judge gave no answer. `again`: whether another call may do better."""

    def __init__(self, reason: str, again: bool = True) -> None:
        super().__init__(reason)
        self.again = again


class Ask(Protocol):
    """How a judge is asked: a text in, its answer out. Raises `JudgeFailedError`."""

    async def __call__(self, text: str, /) -> str: ...


@dataclass(frozen=True, slots=True)
class JudgeReward:
    """The judge's score as reward, in [0, 1]; an async reward function.

    `template` may name {question}, {reference}, {answer} and {scale}; a brace of its own is written twice. `scale`:
    the best score that it asks for. `ask` None: the judge of the run. `pause_s` before the second call, twice that
    before the third.
    """

    ask: Ask | None = None
    template: str = TEMPLATE
    scale: float = 10.0
    attempts: int = ATTEMPTS
    pause_s: float = 0.25
    parse: Callable[[str, float], float | None] = parse_score

    def __post_init__(self) -> None:
        named = {name for _, name, _, _ in string.Formatter().parse(self.template) if name is not None}
        if unknown := named - set(_FIELDS):
            raise ValueError(
                f"the judge's template names {sorted(unknown)}; known are {', '.join(_FIELDS)}, and a brace of its own "
                "is written twice"
            )
        if "answer" not in named:
            raise ValueError("the judge's template does not name {answer}: there would be nothing to judge")

    @property
    def needs_judge(self) -> bool:
        """Whether the run has to give it a judge."""
        return self.ask is None

    def with_judge(self, ask: Ask) -> JudgeReward:
        """The same, asking this judge where none is named."""
        return self if self.ask is not None else replace(self, ask=ask)

    def question(self, view: ScoredView) -> str:
        """What the judge is shown."""
        return self.template.format(
            question=view.prompt.shown(),
            reference=view.reference if view.reference is not None else "(none is given)",
            answer=view.response_text,
            scale=f"{self.scale:g}",
        )

    async def __call__(self, view: ScoredView) -> Reward:
        if self.ask is None:
            raise RuntimeError(
                "this judge was given nobody to ask: set judge.model, or name one in JudgeReward(ask)"
            )
        text, why = self.question(view), ""
        for attempt in range(self.attempts):
            if attempt:
                await asyncio.sleep(self.pause_s * attempt)
            try:
                answer = await self.ask(text)
            except JudgeFailedError as error:
                why = str(error)
                if not error.again:
                    break
                continue
            score = self.parse(answer, self.scale)
            if score is not None:
                return Reward(score, f"the judge: {_short(answer)}", extracted=view.response_text)
            why = f"no score in its answer {_short(answer)!r}"
        return Reward(None, f"judge failed: {why}", extracted=view.response_text)


def needs_judge(function: Any) -> bool:
    """Whether a reward function, or a part of it, waits for the judge of the run."""
    return bool(getattr(function, "needs_judge", False))


def _short(text: str) -> str:
    text = " ".join(text.split())
    return text if len(text) <= _SHOWN_CHARACTERS else f"...{text[-_SHOWN_CHARACTERS:]}"
