"""One episode: the environment observes, the policy answers, the environment steps, until it is over.

Tokens are appended and never touched again; what the reward sees as text is decoded from them.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from envs.task import Environment, Observation, Tokenizer, Turn
from roll_ray.sample import Prompt, Reward, Role, TrajectoryBuilder
from schedulers.protocol import SampleId
from workers.generation_types import Generation
from workers.reward_worker import checked


class EpisodeFailedError(Exception):
    """The attempt cannot be finished; the message is the reason of the `Failed` event."""


@dataclass(frozen=True, slots=True)
class Limits:
    """Tokens of one response, tokens of the model's context (None: no limit), seconds of an episode's turns."""

    max_new_tokens: int
    max_model_len: int | None
    timeout_s: float


@dataclass(slots=True)
class Episode:
    """An episode while it is played, and what it was when it is over."""

    prompt: Prompt
    seed: int
    trajectory: TrajectoryBuilder = field(default_factory=TrajectoryBuilder)
    turn: int = 0
    written: int = 0
    response: Generation = field(default_factory=Generation)
    finish_reason: str = ""
    text: str = ""
    reward: Reward | None = None
    info: Mapping[str, Any] = field(default_factory=dict)

    @property
    def n_policy_tokens(self) -> int:
        """Tokens that the policy wrote, those of the turn that is going on included."""
        return self.written + len(self.response.tokens)


Generate = Callable[[Episode, int], Awaitable[Generation]]
"""Generates the next turn of an episode with at most so many tokens."""


async def play(
    episode: Episode, environment: Environment, tokenizer: Tokenizer, generate: Generate, limits: Limits
) -> None:
    """Play to the end. Raises `EpisodeFailedError` for a prompt beyond the context or an episode out of time."""
    try:
        async with asyncio.timeout(limits.timeout_s):
            await _turns(episode, environment, tokenizer, generate, limits)
    except TimeoutError:
        raise EpisodeFailedError(
            f"prompt {episode.prompt.id}, seed {episode.seed}, turn {episode.turn}: not over after "
            f"episode_timeout_s={limits.timeout_s:g} with {episode.n_policy_tokens} tokens written"
        ) from None


async def _turns(
    episode: Episode, environment: Environment, tokenizer: Tokenizer, generate: Generate, limits: Limits
) -> None:
    trajectory = episode.trajectory
    observation = await environment.reset(episode.prompt, episode.seed)
    trajectory.append_given(observation.tokens(tokenizer), Role.PROMPT)
    texts: list[str] = []
    while True:
        episode.response = Generation()
        response = await generate(episode, _room(episode, limits))
        trajectory.append_policy(response.tokens, response.logprobs, response.versions)
        episode.written += len(response.tokens)
        texts.append(tokenizer.decode(response.tokens))
        episode.response = Generation()
        result = await environment.step(Turn(response.tokens, texts[-1], response.finish))
        episode.turn += 1
        if result.terminated or result.truncated:
            break
        trajectory.append_given(_next(result.observation, episode).tokens(tokenizer), Role.ENVIRONMENT)
    episode.finish_reason, episode.info = response.finish, result.info
    episode.text = "\n".join(texts)
    if result.reward is not None:
        episode.reward = checked(result.reward)


def _room(episode: Episode, limits: Limits) -> int:
    """How many tokens the next turn may have. A prompt's own `info["max_new_tokens"]` lowers the limit."""
    limit = min(limits.max_new_tokens, int(episode.prompt.info.get("max_new_tokens", limits.max_new_tokens)))
    if limits.max_model_len is None:
        return limit
    used = len(episode.trajectory.tokens)
    if used >= limits.max_model_len:
        raise EpisodeFailedError(
            f"prompt {episode.prompt.id}, turn {episode.turn}: {used} tokens leave no room in the context of "
            f"engine.max_model_len={limits.max_model_len}"
        )
    return min(limit, limits.max_model_len - used)


def _next(observation: Observation | None, episode: Episode) -> Observation:
    if observation is None:
        raise EpisodeFailedError(
            f"prompt {episode.prompt.id}, turn {episode.turn}: the environment went on without an observation"
        )
    return observation


def seed_of(run_seed: int, sample: SampleId, attempt: int) -> int:
    """A 63-bit seed that only run seed, prompt, visit, response and attempt decide."""
    visit, index = sample
    text = f"{run_seed}|{visit.prompt_id}|{visit.number}|{index}|{attempt}"
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big") >> 1
