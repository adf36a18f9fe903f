"""Single-turn maths: is the answer of a response equal to the reference?

    verifier = MathsVerifier(percent_as_number=True)
    verifier.verdict(r"... \\boxed{\\frac12}", "0.5")     # Reward(value=1.0, reason="right", extracted=...)

A verifier is a reward function (`envs.task.RewardFunction`), safe in threads, Ray workers and scripts. An answer
that is not there is wrong (0); a comparison that cannot be finished is invalid. Either has a reason.
"""

from __future__ import annotations

from dataclasses import dataclass

from envs.maths_answer import (
    NoAnswer,
    Plain,
    choice_letter,
    find_answer,
    is_choice,
    other_bases,
    plain,
    same_number,
    same_text,
)
from envs.maths_equal import ComparisonFailed, ComparisonTimeout, shared_process
from envs.task import ScoredView
from roll_ray.sample import Prompt, Reward


@dataclass(frozen=True, slots=True)
class MathsVerifier:
    """1 for an answer equal to the reference, else 0.

    The answer is the last `\\boxed{}`, else what follows `####` or "the answer is"; nothing inside `<think>` counts.
    `percent_as_number`: `50\\%` is right for 50 too, and 50 for `50\\%`. `limit_s`: CPU time of one symbolic
    comparison; when it is over the reward is invalid.
    """

    percent_as_number: bool = False
    limit_s: float = 5.0

    def __call__(self, view: ScoredView) -> Reward:
        if view.reference is None:
            return Reward.invalid("the prompt has no reference answer")
        return self.verdict(view.response_text, view.reference, thinking_begun=_opens_thinking(view.prompt))

    def verdict(self, response: str, reference: str, *, thinking_begun: bool = False) -> Reward:
        """The reward of a response, with the answer found in it. `reference` may itself be boxed."""
        try:
            answer = find_answer(response, thinking_begun=thinking_begun)
        except NoAnswer as error:
            return Reward(0.0, str(error))
        gold = _bare(reference)
        if not gold:
            return Reward.invalid("the reference answer is empty")
        try:
            reason = self._difference(answer, gold)
        except (ComparisonTimeout, ComparisonFailed) as error:
            return Reward(None, f"verifier: {error}", extracted=answer)
        return Reward(0.0 if reason else 1.0, reason or "right", extracted=answer)

    def _difference(self, answer: str, reference: str) -> str:
        """Why the answer is wrong; empty when it is right."""
        ours, gold = plain(answer), plain(reference)
        if is_choice(gold.text):
            letter = choice_letter(ours.text)
            right = letter is not None and letter == choice_letter(gold.text)
            return "" if right else f"{answer} is not {reference}"
        if ours.is_percent != gold.is_percent:
            return self._percent_difference(answer, ours, reference, gold)
        return self._plain_difference(answer, ours, reference, gold)

    def _percent_difference(self, answer: str, ours: Plain, reference: str, gold: Plain) -> str:
        """One of the two has a percent sign: 50 % is 0.5, and with `percent_as_number` also 50."""
        if self.percent_as_number and not self._plain_difference(answer, ours, reference, gold):
            return ""
        scaled = [_hundredth(p) if p.is_percent else p for p in (ours, gold)]
        return self._plain_difference(answer, scaled[0], reference, scaled[1])

    def _plain_difference(self, answer: str, ours: Plain, reference: str, gold: Plain) -> str:
        wrong = f"{answer} is not {reference}"
        if None not in (ours.variable, gold.variable) and ours.variable != gold.variable:
            return wrong
        if same_text(ours.text, gold.text) or same_text(ours.with_unit, gold.with_unit):
            return ""
        if ours.number is not None and gold.number is not None:
            return "" if same_number(ours, gold) else wrong
        if other_bases(ours.text, gold.text):
            return wrong
        verdict = shared_process.compare(ours.text, gold.text, self.limit_s)
        if verdict == "equal":
            return ""
        return wrong if verdict == "different" else f"{wrong} ({verdict} as mathematics)"


def score(view: ScoredView) -> Reward:
    """The verifier with its defaults, as a plain function."""
    return _DEFAULT(view)


_DEFAULT = MathsVerifier()


def _bare(reference: str) -> str:
    """A reference as data sets have it: bare, boxed, or after `####`."""
    if "\\boxed" in reference or "####" in reference:
        try:
            return find_answer(reference)
        except NoAnswer:
            return reference.strip()
    return reference.strip()


def _opens_thinking(prompt: Prompt) -> bool:
    """Whether a text prompt itself ends with an opened `<think>`, as some templates do."""
    return prompt.text is not None and prompt.text.rstrip().endswith("<think>")


def _hundredth(percent: Plain) -> Plain:
    if percent.number is None:
        return Plain(rf"\frac{{{percent.text}}}{{100}}", None)
    return Plain(f"({percent.text})/100", percent.number / 100)
