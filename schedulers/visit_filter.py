"""Dynamic sampling: which completely scored visits are worth training on (DAPO, 2503.14476, section 3.2)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class VisitFilter:
    """Judges a visit by the rewards of all its responses; one that is refused is replaced by another prompt.

    `drop_equal`: equal rewards carry no signal for group baselines. `mean_above`, `mean_below`: the open band
    in which the mean reward must lie (too hard, too easy). `max_batches`: a step that filters more than so
    many times its prompts is given up, since its data has nothing to teach.
    """

    drop_equal: bool = True
    mean_above: float | None = None
    mean_below: float | None = None
    max_batches: int = 10

    def refuses(self, rewards: Sequence[float]) -> str:
        """Why the visit is not trained on; empty when it is."""
        mean = sum(sorted(rewards)) / len(rewards)
        if self.drop_equal and min(rewards) == max(rewards):
            return f"all {len(rewards)} rewards are {rewards[0]:g}"
        if self.mean_above is not None and mean <= self.mean_above:
            return f"the mean reward {mean:g} is not above {self.mean_above:g}"
        if self.mean_below is not None and mean >= self.mean_below:
            return f"the mean reward {mean:g} is not below {self.mean_below:g}"
        return ""
