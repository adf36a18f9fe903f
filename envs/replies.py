"""How environments speak: in the manner of the prompt, a user's message to a chat, bare text to a text."""

from __future__ import annotations

from typing import Any

from envs.task import Observation
from roll_ray.errors import RollRayError
from roll_ray.sample import Prompt


def opening(prompt: Prompt, text: str) -> Observation:
    """The prompt and below it the environment's first words, in the last message where it is the user's."""
    if prompt.messages is None:
        asked = _text(prompt)
        return Observation(text=f"{asked}\n{text}\n" if asked else f"{text}\n")
    *earlier, last = prompt.messages
    if last["role"] != "user":
        return Observation(messages=(*prompt.messages, {"role": "user", "content": text}))
    joined = f"{last['content']}\n{text}" if last["content"] else text
    return Observation(messages=(*earlier, {**last, "content": joined}))


def reply(prompt: Prompt, text: str) -> Observation:
    """The environment's next words: a new message of the user, or text on lines of its own."""
    if prompt.messages is not None:
        return Observation(messages=({"role": "user", "content": text},))
    return Observation(text=f"\n{text}\n")


def needed(prompt: Prompt, name: str) -> Any:
    """What an environment must know of its prompt. Raises RollRayError when `prompt.info` lacks it."""
    try:
        return prompt.info[name]
    except KeyError:
        raise RollRayError(
            f"prompt {prompt.id}: its environment needs info[{name!r}]",
            why=f"its info has: {', '.join(sorted(prompt.info)) or 'nothing'}",
            next_step=f"give each prompt of domain {prompt.domain!r} an info with {name!r}",
        ) from None


def _text(prompt: Prompt) -> str:
    if prompt.text is None:
        raise RollRayError(
            f"prompt {prompt.id}: an environment adds words to it, and it is given as token ids",
            next_step="give it as text or as messages",
        )
    return prompt.text
