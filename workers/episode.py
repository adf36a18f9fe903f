"""One episode: the environment observes, the policy answers, the environment steps, until it is over.

Tokens are appended and never touched again; what the reward sees as text is decoded from them. While an environment
thinks the episode holds nothing of an engine: each turn is a request of its own.
"""

from __future__ import annotations

import asyncio
import hashlib
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar, cast

from envs.chat import Conversation
from envs.task import ClosableEnvironment, Environment, Observation, StepResult, Tokenizer, Turn
from roll_ray.sample import Prompt, Reward, Role, TrajectoryBuilder, TurnRecord
from schedulers.protocol import SampleId
from workers.generation_types import Generation
from workers.reward_worker import checked

T = TypeVar("T")


class EpisodeFailedError(Exception):
    """The attempt cannot be finished; the message is the reason of the `Failed` event."""


@dataclass(frozen=True, slots=True)
class Limits:
    """Tokens of one response and of the model's context, seconds of an episode's turns and of one call of its
    environment, turns. None: no limit."""

    max_new_tokens: int
    max_model_len: int | None
    timeout_s: float
    env_step_timeout_s: float | None = None
    max_turns: int | None = None


@dataclass(slots=True)
class Episode:
    """An episode while it is played, and what it was when it is over. `environment`: the name of its class; `phase`:
    "environment" or "generating", whom it waits for since `since_s`."""

    prompt: Prompt
    seed: int
    trajectory: TrajectoryBuilder = field(default_factory=TrajectoryBuilder)
    turns: list[TurnRecord] = field(default_factory=list)
    written: int = 0
    response: Generation = field(default_factory=Generation)
    finish_reason: str = ""
    text: str = ""
    reward: Reward | None = None
    info: Mapping[str, Any] = field(default_factory=dict)
    environment: str = ""
    phase: str = "generating"
    since_s: float = field(default_factory=time.time)

    @property
    def turn(self) -> int:
        """Turns that are over."""
        return len(self.turns)

    @property
    def n_policy_tokens(self) -> int:
        """Tokens that the policy wrote, those of the turn that is going on included."""
        return self.written + len(self.response.tokens)

    def waits_for(self, whom: str) -> None:
        self.phase, self.since_s = whom, time.time()

    def __str__(self) -> str:
        return f"prompt {self.prompt.id}, seed {self.seed}, turn {self.turn}"


Generate = Callable[[Episode, int], Awaitable[Generation]]
"""Generates the next turn of an episode with at most so many tokens."""


async def play(
    episode: Episode, environment: Environment, tokenizer: Tokenizer, generate: Generate, limits: Limits
) -> None:
    """Play to the end. A limit of turns or of the context truncates the episode.

    Raises `EpisodeFailedError` for a prompt beyond the context, an episode or an environment out of time.
    """
    episode.environment = type(environment).__name__
    deadline = asyncio.timeout(limits.timeout_s)
    try:
        async with deadline:
            await _Play(episode, environment, Conversation(tokenizer), generate, limits).turns()
    except TimeoutError:
        if not deadline.expired():
            raise  # the environment's own
        raise EpisodeFailedError(
            f"{episode}: not over after episode_timeout_s={limits.timeout_s:g} with {episode.n_policy_tokens} "
            f"tokens written; it waited for {episode.environment if episode.phase == 'environment' else 'an engine'}"
        ) from None
    finally:
        if hasattr(environment, "close"):  # a tenth of the time that isinstance takes with a protocol
            await cast(ClosableEnvironment, environment).close()


@dataclass(slots=True)
class _Play:
    episode: Episode
    environment: Environment
    conversation: Conversation
    generate: Generate
    limits: Limits

    async def turns(self) -> None:
        episode, trajectory, texts = self.episode, self.episode.trajectory, list[str]()
        observation = await self._environment(self.environment.reset(episode.prompt, episode.seed))
        trajectory.append_given(self.conversation.opening(observation), Role.PROMPT)
        self._check_first_room()
        while True:
            turn = await self._answer(observation)
            texts.append(turn.text)
            result = await self._environment(self.environment.step(turn))
            self._took(turn, result)
            if result.terminated or result.truncated:
                break
            observation = self._next(result)
            given = self.conversation.after(turn.token_ids, observation)
            if not self._goes_on(given):
                result = StepResult(None, result.reward, truncated=True, info=result.info)
                break
            trajectory.append_given(given, Role.ENVIRONMENT)
        episode.finish_reason = "length" if result.truncated else "stop"
        episode.text, episode.info = "\n".join(texts), result.info
        if result.reward is not None:
            episode.reward = checked(result.reward)

    async def _answer(self, observation: Observation) -> Turn:
        """The policy's next turn, which is in the trajectory then."""
        episode, trajectory = self.episode, self.episode.trajectory
        n_context_tokens = len(trajectory.tokens)
        episode.response = Generation()
        episode.waits_for("generating")
        response = await self.generate(episode, self._room(observation))
        trajectory.append_policy(response.tokens, response.logprobs, response.versions)
        episode.written += len(response.tokens)
        episode.response = Generation()
        text = self.conversation.tokenizer.decode(response.tokens)
        return Turn(response.tokens, text, response.finish, response.logprobs, n_context_tokens)

    def _took(self, turn: Turn, result: StepResult) -> None:
        begin = turn.n_context_tokens
        self.episode.turns.append(
            TurnRecord(
                begin,
                begin + len(turn.token_ids),
                float(result.step_reward),
                None if result.state is None else state_number(result.state),
                bool(result.info.get("malformed", False)),
            )
        )

    async def _environment(self, call: Awaitable[T]) -> T:
        """What the environment answers. Raises `EpisodeFailedError` where it takes too long."""
        self.episode.waits_for("environment")
        deadline = asyncio.timeout(self.limits.env_step_timeout_s)
        try:
            async with deadline:
                return await call
        except TimeoutError:
            if not deadline.expired():
                raise  # its own
            raise EpisodeFailedError(
                f"{self.episode}: {self.episode.environment} did not answer within "
                f"env_step_timeout_s={self.limits.env_step_timeout_s:g}"
            ) from None

    def _next(self, result: StepResult) -> Observation:
        if result.observation is None:
            raise EpisodeFailedError(f"{self.episode}: the environment went on without an observation")
        return result.observation

    def _goes_on(self, given: list[int]) -> bool:
        """Whether there may be another turn after these tokens."""
        limits = self.limits
        if limits.max_turns is not None and self.episode.turn >= limits.max_turns:
            return False
        used = len(self.episode.trajectory.tokens) + len(given)
        return limits.max_model_len is None or used < limits.max_model_len

    def _check_first_room(self) -> None:
        used, context = len(self.episode.trajectory.tokens), self.limits.max_model_len
        if context is not None and used >= context:
            raise EpisodeFailedError(
                f"prompt {self.episode.prompt.id}: its {used} tokens leave no room in the context of "
                f"engine.max_model_len={context}"
            )

    def _room(self, observation: Observation) -> int:
        """How many tokens the next turn may have: the least of the run's limit, the prompt's own
        (`info["max_new_tokens"]`), the observation's, and what the context leaves."""
        limits = [self.limits.max_new_tokens, self.episode.prompt.info.get("max_new_tokens")]
        limits.append(observation.max_new_tokens)
        if self.limits.max_model_len is not None:
            limits.append(self.limits.max_model_len - len(self.episode.trajectory.tokens))
        return min(int(limit) for limit in limits if limit is not None)


def state_number(state: str) -> int:
    """A number of 63 bits for the name of an environment's state."""
    return int.from_bytes(hashlib.blake2b(state.encode(), digest_size=8).digest(), "big") >> 1


def seed_of(run_seed: int, sample: SampleId, attempt: int) -> int:
    """A 63-bit seed that only run seed, prompt, visit, response and attempt decide."""
    visit, index = sample
    text = f"{run_seed}|{visit.prompt_id}|{visit.number}|{index}|{attempt}"
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big") >> 1
