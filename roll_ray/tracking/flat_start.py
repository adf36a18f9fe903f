"""The commonest silent fault of a new task: every reward is the same, so that nothing can be learned."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from roll_ray.tracking.trajectories import Trajectory


@dataclass(slots=True)
class FlatStart:
    """Says once, after `n_steps` steps without two different valid rewards, that the rewards are flat.

    A pure state machine: `observe` is told the rewards of each step and answers with the warning, or None.
    The warning shows one trajectory whole, with the verifier's reason.
    """

    n_steps: int = 1
    seen_steps: int = 0
    rewards: set[float] = field(default_factory=set)
    n_invalid: int = 0
    n_samples: int = 0

    def observe(self, rewards: Sequence[float | None], shown: Sequence[Trajectory]) -> str | None:
        """`rewards` of one step (None: invalid), `shown` some of its trajectories."""
        if self.seen_steps >= self.n_steps:
            return None
        self.seen_steps += 1
        self.rewards |= {r for r in rewards if r is not None}
        self.n_invalid += sum(r is None for r in rewards)
        self.n_samples += len(rewards)
        if self.seen_steps < self.n_steps or len(self.rewards) > 1:
            return None
        return self._warning(shown)

    def _warning(self, shown: Sequence[Trajectory]) -> str:
        steps = "first step" if self.n_steps == 1 else f"first {self.n_steps} steps"
        if not self.rewards:
            what = f"all {self.n_samples} rewards of the {steps} are invalid"
        else:
            (value,) = self.rewards
            valid = self.n_samples - self.n_invalid
            what = f"all {valid} rewards of the {steps} are {value:g}"
            if self.n_invalid:
                what += f", {self.n_invalid} more are invalid"
        example = f" One of them:\n{shown[0].text()}" if shown else ""
        return f"{what}: without different rewards nothing can be learned.{example}"
