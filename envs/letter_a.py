"""The toy for comparing learning curves: the reward is the share of the letter a in the response."""

from __future__ import annotations

from envs.task import ScoredView
from roll_ray.sample import Prompt, Reward

DOMAIN = "letter_a"
PROMPT_TEXT = "say aaa: "


def prompts(count: int = 64) -> list[Prompt]:
    """`count` copies of the one prompt, each a prompt of its own."""
    return [Prompt(id=f"{DOMAIN}/{i}", text=PROMPT_TEXT, domain=DOMAIN) for i in range(count)]


def reward(view: ScoredView) -> Reward:
    """Letters a divided by characters, 0 for an empty response."""
    text = view.response_text
    return Reward(
        text.count("a") / len(text) if text else 0.0, f"{text.count('a')} of {len(text)} characters"
    )
