"""What follows a policy's turn: a chat goes on by difference, so that nothing is tokenised that the policy wrote.

The template renders the conversation with a placeholder where the policy's last answer stands, and what it puts
behind the placeholder is what comes after the answer: the end of the turn, the new messages, the beginning of
the next answer. What of this the policy wrote itself (its end-of-turn token, unless it was cut) is not repeated.

An answer stays in the trajectory as it was sampled. A template that drops reasoning text from earlier turns
(Qwen3's) would render the conversation without it; the trajectory keeps it, since the policy has read it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from envs.task import Observation, Tokenizer
from roll_ray.errors import RollRayError

ASSISTANT = "assistant"
PLACEHOLDER = "ANSWER"


@dataclass(slots=True)
class Conversation:
    """The messages of one episode; none where it began with a text. Where the policy answered stands a placeholder."""

    tokenizer: Tokenizer
    messages: list[dict[str, str]] = field(default_factory=list)

    def opening(self, observation: Observation) -> list[int]:
        """Token ids of the observation that begins the episode."""
        self.messages = [dict(message) for message in observation.messages or ()]
        return observation.tokens(self.tokenizer)

    def after(self, answer_tokens: Sequence[int], observation: Observation) -> list[int]:
        """Token ids that follow the policy's answer until its next one. Raises RollRayError for a template that leaves
        the answer out."""
        if observation.messages is None:
            return observation.tokens(self.tokenizer)
        if not self.messages:
            return self.opening(observation)
        answer = {"role": ASSISTANT, "content": PLACEHOLDER}
        new = [dict(message) for message in observation.messages]
        tail = self.tokenizer.encode(self._behind(self.messages, answer, new))
        self.messages += [answer, *new]
        return tail[_overlap(answer_tokens, tail) :]

    def _behind(self, before: list[dict[str, str]], answer: dict[str, str], new: list[dict[str, str]]) -> str:
        """The rendered text behind an answer."""
        unique = PLACEHOLDER
        while any(unique in message["content"] for message in (*before, *new)):
            unique += "-"
        rendered = self.tokenizer.render_chat([*before, {**answer, "content": unique}, *new])
        _, found, tail = rendered.rpartition(unique)
        if not found:
            raise RollRayError(
                "the chat template leaves out what the assistant said before the last messages",
                why=f"it rendered the answer {unique!r}, message {len(before) + 1}, nowhere",
                next_step="use a chat template that keeps the conversation, or an environment that answers with text",
            )
        return tail


def _overlap(answer_tokens: Sequence[int], tail: Sequence[int]) -> int:
    """How many tokens the end of the answer and the beginning of `tail` have in common."""
    answer = list(answer_tokens)
    for n in range(min(len(answer), len(tail)), 0, -1):
        if answer[-n] == tail[0] and answer[-n:] == list(tail[:n]):
            return n
    return 0
