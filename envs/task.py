"""What a task gives to the episode runner: an environment, a reward function, and what they see.

An episode is a loop of turns: the environment observes, the policy writes a response, the environment
steps. A task without turns is an episode of one turn (`SingleTurn`); its reward comes from a reward
function, which a reward worker calls the moment the response ends. No Ray, no torch, no transformers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from roll_ray.sample import Prompt, Reward
from schedulers.protocol import SampleId, Visit


class Tokenizer(Protocol):
    """The little that a task and a runner need of a tokenizer."""

    def encode(self, text: str) -> list[int]:
        """Token ids of the text as it stands: no special token is added."""

    def decode(self, token_ids: Sequence[int]) -> str:
        """Text of the tokens, without special tokens."""

    def apply_chat_template(self, messages: Sequence[Mapping[str, str]]) -> list[int]:
        """Token ids of a chat, ending where the assistant's answer begins."""

    def render_chat(self, messages: Sequence[Mapping[str, str]]) -> str:
        """The text of which `apply_chat_template` gives the tokens."""


@dataclass(frozen=True, slots=True)
class Observation:
    """What the policy reads next. Exactly one of `token_ids`, `text` and `messages` is given.

    Text is tokenised as it stands. Messages that follow a turn go on with the chat that was begun: only they
    are new. `max_new_tokens` lowers the limit of the turn that answers; None leaves it.
    """

    token_ids: tuple[int, ...] | None = None
    text: str | None = None
    messages: tuple[dict[str, str], ...] | None = None
    max_new_tokens: int | None = None

    def __post_init__(self) -> None:
        if sum(given is not None for given in (self.token_ids, self.text, self.messages)) != 1:
            raise ValueError(f"an observation is exactly one of token_ids, text, messages: {self}")

    @staticmethod
    def of(prompt: Prompt) -> Observation:
        return Observation(prompt.token_ids, prompt.text, prompt.messages)

    def tokens(self, tokenizer: Tokenizer) -> list[int]:
        """Token ids of an observation that begins an episode; `envs.chat` knows what follows a turn."""
        if self.token_ids is not None:
            return list(self.token_ids)
        if self.messages is not None:
            return tokenizer.apply_chat_template(self.messages)
        return tokenizer.encode(self.text or "")


@dataclass(frozen=True, slots=True)
class Turn:
    """One response of the policy. `finish_reason` is "stop" or "length".

    `logprobs`: of each token, under which it was sampled. `n_context_tokens`: how many the policy had read.
    """

    token_ids: Sequence[int]
    text: str
    finish_reason: str
    logprobs: Sequence[float] = ()
    n_context_tokens: int = 0


@dataclass(frozen=True, slots=True)
class StepResult:
    """What a turn led to. The episode goes on with `observation` until `terminated` (by the task's own
    rules) or `truncated` (by a limit). `reward` is the environment's verdict on the whole episode so far;
    None where a reward function gives it, or where it is the sum of the turns' `step_reward`s.

    `state` names the state that the turn was played *from*, for advantages that compare the turns of an
    episode's siblings (GiGPO, arXiv 2505.10978): equal strings are the same state. `info["malformed"]` says
    that the environment could not read the turn."""

    observation: Observation | None = None
    reward: float | Reward | None = None
    terminated: bool = False
    truncated: bool = False
    info: Mapping[str, Any] = field(default_factory=dict)
    step_reward: float = 0.0
    state: str | None = None


class Environment(Protocol):
    """One episode of a task. All methods share the runner's event loop: what takes long is awaited, or computed in
    a thread (`asyncio.to_thread`)."""

    async def reset(self, prompt: Prompt, seed: int) -> Observation:
        """Begin the episode. Equal prompts and seeds begin equal episodes."""

    async def step(self, response: Turn) -> StepResult:
        """Take the policy's response."""


class ClosableEnvironment(Protocol):
    """What an environment has as well if it holds something, a process or a connection, which has to be let go."""

    async def close(self) -> None:
        """Called once when the episode is over, however it ended. It must not raise."""


class SingleTurn:
    """The episode of one turn: the prompt is the observation, and any response ends it."""

    async def reset(self, prompt: Prompt, seed: int) -> Observation:
        return Observation.of(prompt)

    async def step(self, response: Turn) -> StepResult:
        return StepResult(terminated=True, truncated=response.finish_reason == "length")


_NO_SAMPLE = SampleId(Visit("", 0), 0)


@dataclass(frozen=True, slots=True)
class ScoredView:
    """What a reward function sees of an ended response. Text is a view: nothing here is ever tokenised again.

    `finish_reason` is "stop", or "length" where the token limit cut the response. `info` is the prompt's,
    overlaid with what the environment said at its last step.
    """

    prompt: Prompt
    response_text: str
    finish_reason: str = "stop"
    sample: SampleId = _NO_SAMPLE
    attempt: int = 0
    info: Mapping[str, Any] = field(default_factory=dict)

    @property
    def reference(self) -> str | None:
        """The right answer, if the data has one."""
        return self.prompt.reference

    @property
    def domain(self) -> str:
        return self.prompt.domain

    @property
    def truncated(self) -> bool:
        return self.finish_reason == "length"


class RewardFunction(Protocol):
    """Any plain function of a view. If it raises, the reward is invalid with the exception as reason."""

    def __call__(self, view: ScoredView, /) -> float | Reward: ...


class AsyncRewardFunction(Protocol):
    """A reward function that waits for somebody: an endpoint, a judge. It is awaited, many at once."""

    async def __call__(self, view: ScoredView, /) -> float | Reward: ...
