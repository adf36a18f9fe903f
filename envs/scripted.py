"""Plays an episode with a plain function instead of a model: to try an environment, or to collect demonstrations."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from envs.task import Environment, Observation, StepResult, Turn
from roll_ray.sample import Prompt

Policy = Callable[[Observation], str]
"""Answers an observation with the text of a response."""


@dataclass(slots=True)
class Played:
    """An episode of N turns: what was observed before each, what was answered, and what it led to."""

    observations_N: list[Observation] = field(default_factory=list)
    responses_N: list[str] = field(default_factory=list)
    results_N: list[StepResult] = field(default_factory=list)

    @property
    def last(self) -> StepResult:
        return self.results_N[-1]


async def play_scripted(
    environment: Environment, prompt: Prompt, policy: Policy, *, seed: int = 0, max_turns: int = 1_000
) -> Played:
    """Play until the environment ends the episode. Raises RuntimeError after `max_turns`."""
    played = Played()
    observation = await environment.reset(prompt, seed)
    for _ in range(max_turns):
        played.observations_N.append(observation)
        played.responses_N.append(policy(observation))
        result = await environment.step(Turn((), played.responses_N[-1], "stop"))
        played.results_N.append(result)
        if result.terminated or result.truncated:
            return played
        if result.observation is None:
            raise RuntimeError(f"{type(environment).__name__} went on without an observation")
        observation = result.observation
    raise RuntimeError(f"{type(environment).__name__} did not end within {max_turns} turns")


def text_of(observation: Observation) -> str:
    """What an observation says: its text, or the content of its last message."""
    if observation.messages is not None:
        return observation.messages[-1]["content"]
    return observation.text or ""
