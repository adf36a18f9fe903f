"""What a run trains on, as recipes say it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from envs.reward_parts import AnyRewardFunction
from envs.task import Environment
from roll_ray.sample import Prompt


@dataclass(frozen=True, slots=True)
class Task:
    """What is trained on. `rewards` and `environments` are by domain; a domain without an environment is
    single-turn. A reward function is any `f(view) -> float | Reward`, async or not."""

    train: Sequence[Prompt]
    heldout: Sequence[Prompt] = ()
    rewards: Mapping[str, AnyRewardFunction] = field(default_factory=dict)
    environments: Mapping[str, Callable[[], Environment]] = field(default_factory=dict)

    def problems(self) -> list[str]:
        """Domains of prompts that nobody rewards."""
        domains = {p.domain for p in (*self.train, *self.heldout)}
        unknown = sorted(domains - set(self.rewards) - set(self.environments))
        known = ", ".join(sorted({*self.rewards, *self.environments})) or "none"
        return [f"no reward function for domain {d!r}; known: {known}" for d in unknown]
