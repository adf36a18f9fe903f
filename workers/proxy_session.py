"""One episode as its foreign agent sees it: a key, one conversation that only grows, one call at a time.

Invariant. What the episode's trajectory holds is what the agent has sent and been answered, in order: a call
either extends the conversation, and only what is new in it goes on to the policy, or it is refused.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field, replace

from envs.task import Observation, Turn
from workers.proxy_calls import Call, RefusedError

_SHOWN = 80


@dataclass(slots=True)
class Conversation:
    """What was said so far: messages of a chat, or one text. Which of them, the first call decides."""

    said: list[dict[str, str]] | str | None = None

    def new_in(self, call: Call) -> Observation:
        """What the policy has not read yet. Raises `RefusedError` with 409 where history is not what it was."""
        if self.said is None:
            return (
                Observation(text=call.says) if isinstance(call.says, str) else Observation(messages=call.says)
            )
        if isinstance(call.says, str) is not isinstance(self.said, str):
            raise _conflict("an episode is either a chat or a text: /v1/chat/completions or /v1/completions")
        if isinstance(call.says, str):
            return Observation(text=self._new_text(call.says))
        return Observation(messages=self._new_messages(call.says))

    def took(self, call: Call, text: str) -> None:
        """The policy answered the call with this text."""
        if isinstance(call.says, str):
            self.said = call.says + text
        else:
            self.said = [*call.says, {"role": "assistant", "content": text}]

    def _new_text(self, text: str) -> str:
        said = str(self.said)
        if not text.startswith(said):
            at = next((i for i, (a, b) in enumerate(zip(said, text, strict=False)) if a != b), len(text))
            raise _conflict(
                f"the prompt must begin with the last prompt and its answer; it differs from them at character {at}: "
                f"{_short(text[at:])} instead of {_short(said[at:])}"
            )
        if len(text) == len(said):
            raise _conflict("the prompt adds nothing to the last prompt and its answer")
        return text[len(said) :]

    def _new_messages(self, messages: tuple[dict[str, str], ...]) -> tuple[dict[str, str], ...]:
        assert isinstance(self.said, list)
        for i, known in enumerate(self.said):
            if i == len(messages):
                raise _conflict(f"messages[{i}], {_shown(known)}, is missing: a conversation only grows")
            if not _same(known, messages[i]):
                raise _conflict(
                    f"messages[{i}] is {_shown(messages[i])}, but what was said there is {_shown(known)}: "
                    "history cannot be edited"
                )
        new = messages[len(self.said) :]
        for i, message in enumerate(new, len(self.said)):
            if message["role"] == "assistant":
                raise _conflict(f"messages[{i}], {_shown(message)}, is not what the policy said")
        if not new:
            raise _conflict("the messages add nothing to the last answer")
        return new


@dataclass(slots=True, eq=False)
class _Open:
    call: Call
    new: Observation
    answer: asyncio.Future[Turn] = field(default_factory=lambda: asyncio.get_running_loop().create_future())


class Session:
    """Between the agent's calls, which come over HTTP, and the environment that plays the episode."""

    def __init__(self, key: str) -> None:
        self.key = key
        self._conversation = Conversation()
        self._last: _Open | None = None
        self._arrived = asyncio.Event()
        self._over: RefusedError | None = None

    # --- the agent's side ----------------------------------------------------------------------------

    async def answer(self, call: Call) -> Turn:
        """The policy's answer to a call. Raises `RefusedError`.

        A client that sends a call again because its connection broke gets the answer of the first one.
        """
        if self._over is not None:
            raise self._over
        last = self._last
        if last is not None and call.repeated and call.says == last.call.says:
            return await asyncio.shield(last.answer)
        if last is not None and not last.answer.done():
            raise _conflict("another call of this episode is being answered: its calls go one after another")
        self._last = opened = _Open(call, self._conversation.new_in(call))
        self._arrived.set()
        return await asyncio.shield(opened.answer)

    # --- the environment's side ------------------------------------------------------------------------

    async def asked(self) -> Observation:
        """What is new in the next call, and its limit."""
        await self._arrived.wait()
        self._arrived.clear()
        assert self._last is not None
        return replace(self._last.new, max_new_tokens=self._last.call.max_new_tokens)

    def give(self, answer: Turn) -> None:
        """Answer the call that `asked` returned."""
        last = self._last
        assert last is not None
        self._conversation.took(last.call, answer.text)
        last.answer.set_result(answer)

    def close(self, reason: str) -> None:
        """Nobody will answer any more: a call that waits, or that was under way, is told so."""
        self._over = RefusedError(503, reason, code="episode_over")
        if self._last is not None and not self._last.answer.done():
            self._last.answer.set_exception(self._over)
            self._last.answer.exception()  # the agent may be gone: that nobody fetches it is no fault


def _conflict(message: str) -> RefusedError:
    return RefusedError(409, message, "messages", "not_an_extension")


def _same(known: dict[str, str], given: dict[str, str]) -> bool:
    """Agents strip answers before they keep them: white space around an answer does not count."""
    if known == given:
        return True
    answers = known["role"] == given["role"] == "assistant"
    return answers and known["content"].strip() == given["content"].strip()


def _shown(message: dict[str, str]) -> str:
    return f"{message['role']}: {_short(message['content'])}"


def _short(text: str) -> str:
    return repr(text if len(text) <= _SHOWN else text[:_SHOWN] + "...")
