"""How an episode is played for an attempt or an evaluation: its turns through the engines, its reward from whoever
gives it. What happened to the attempt is the episode runner's business."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from envs.task import Environment, ScoredView, SingleTurn, Tokenizer
from roll_ray.algorithms.shaping import Shaping
from roll_ray.sample import Prompt, Reward, SamplingDistribution, TurnRecord
from schedulers.protocol import SampleId
from workers.engine_client import EngineClient
from workers.episode import Episode, Limits, play
from workers.generation_types import Asked, Generation
from workers.reward_client import RewardClient

SEEDS = 1 << 63


@dataclass(frozen=True, slots=True)
class RunnerSpec:
    """What an episode runner needs to know. `environments` gives a factory by domain; others are single-turn.

    `max_model_len` is the context of the engines in tokens, None when unknown. `stop_token_ids` end a response
    beside the end tokens that `model`, a folder or hub name, names itself. `reward_timeout_s` is for one
    call to a reward worker, `env_step_timeout_s` for one call of an environment (None: no limit). `rewarded`: the
    domains that have a reward function. `shaping` is added to the rewards of training.
    """

    name: str
    model: str
    sampling: SamplingDistribution
    max_new_tokens: int
    max_model_len: int | None = None
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False
    max_turns: int | None = None
    episode_timeout_s: float = 600.0
    env_step_timeout_s: float | None = None
    reward_timeout_s: float = 120.0
    seed: int = 0
    deterministic: bool = False
    environments: Mapping[str, Callable[[], Environment]] = field(default_factory=dict)
    rewarded: frozenset[str] = frozenset()
    shaping: Shaping | None = None

    def environment(self, prompt: Prompt) -> Environment:
        factory = self.environments.get(prompt.domain)
        return factory() if factory is not None else SingleTurn()

    def limits(self, max_new_tokens: int) -> Limits:
        return Limits(
            max_new_tokens,
            self.max_model_len,
            self.episode_timeout_s,
            self.env_step_timeout_s,
            self.max_turns,
        )


@dataclass(slots=True)
class EpisodePlayer:
    """Plays and judges episodes through one runner's engines and reward workers."""

    spec: RunnerSpec
    engines: EngineClient
    rewards: RewardClient
    stop_token_ids: tuple[int, ...]

    async def play(
        self,
        episode: Episode,
        tokenizer: Tokenizer,
        name: str,
        sampling: SamplingDistribution,
        max_new_tokens: int,
        started: Callable[[int], None] | None = None,
    ) -> None:
        """Play to the end. `name` is unique among the requests to the engines; `started` is told the weight version of
        the first token. Raises as `workers.episode.play` and `EngineClient.generate` do."""
        near: str | None = None

        async def generate(episode: Episode, max_new_tokens: int) -> Generation:
            nonlocal near
            response = await self.engines.generate(
                Asked(
                    id=f"{name}:{episode.turn}",
                    prompt_tokens=tuple(episode.trajectory.tokens),
                    sampling=sampling,
                    max_new_tokens=max_new_tokens,
                    stop_token_ids=self.stop_token_ids,
                    seed=(episode.seed + episode.turn) % SEEDS if self.spec.deterministic else None,
                    so_far=episode.response,
                    started=started if episode.turn == 0 else None,
                    near=near,
                )
            )
            near = response.engine
            return response

        environment = self.spec.environment(episode.prompt)
        await play(episode, environment, tokenizer, generate, self.spec.limits(max_new_tokens))

    async def reward(self, episode: Episode, sample: SampleId, number: int) -> Reward:
        """The environment's verdict; else that of the domain's reward function; else, for an environment that rewards
        turns, the sum of those rewards."""
        if episode.reward is not None:
            return episode.reward
        domain = episode.prompt.domain
        if domain in self.spec.environments and domain not in self.spec.rewarded:
            return Reward(sum(turn.reward for turn in episode.turns), "the sum of its turns' rewards")
        info = {**episode.prompt.info, **episode.info}
        view = ScoredView(episode.prompt, episode.text, episode.finish_reason, sample, number, info)
        return await self.rewards.score(view)


def settled(
    turns: Sequence[TurnRecord], reward: float, format_penalty: float = 0.0
) -> tuple[TurnRecord, ...]:
    """The turns with rewards that sum up to the episode's: a malformed one pays its penalty, and what the episode got
    beside goes to the last turn."""
    if not turns:
        return ()
    rewards = [turn.reward - format_penalty * turn.malformed for turn in turns]
    rewards[-1] += reward - sum(rewards)
    return tuple(dataclasses.replace(turn, reward=r) for turn, r in zip(turns, rewards, strict=True))
