"""What the control plane knows of a sample: numbers and where its tokens are, never the tokens."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from schedulers.protocol import SampleId


class TurnNumbers(NamedTuple):
    """A turn of an episode. The turns' rewards sum up to the sample's; `state` is that before the turn, None where
    the environment names none."""

    n_policy_tokens: int
    reward: float
    state: int | None


@dataclass(frozen=True, slots=True)
class Receipt:
    """A scored sample that lies in the store `store`. `reward` is None when invalid; `parts`: what it is the sum of,
    where that is known. `turns`: empty for one response without a state, whose numbers are the sample's."""

    sample: SampleId
    attempt: int
    store: str
    n_tokens: int
    n_policy_tokens: int
    truncated: bool
    reward: float | None
    reason: str
    domain: str
    version_min: int
    version_max: int
    generation_s: float
    reward_s: float
    parts: Mapping[str, float] = field(default_factory=dict)
    turns: tuple[TurnNumbers, ...] = ()

    @property
    def each_turn(self) -> tuple[TurnNumbers, ...]:
        """The sample's turns, of which a valid one has one at least."""
        return self.turns or (TurnNumbers(self.n_policy_tokens, self.reward or 0.0, None),)


@dataclass(frozen=True, slots=True)
class Cut:
    """A complete batch (or part of one): the receipts, sorted by sample id."""

    step: int
    receipts: tuple[Receipt, ...]

    @property
    def rewards_B(self) -> npt.NDArray[np.float32]:
        """Shape [B], NaN where invalid."""
        return np.asarray([np.nan if r.reward is None else r.reward for r in self.receipts], np.float32)

    @property
    def policy_tokens_B(self) -> npt.NDArray[np.int64]:
        return np.asarray([r.n_policy_tokens for r in self.receipts], np.int64)


@dataclass(frozen=True, slots=True)
class PromptsWanted:
    """The scheduler asks for other prompts in the place of some that ended without training."""

    step: int
    count: int
    reason: str


@dataclass(frozen=True, slots=True)
class Stopped:
    """The scheduler gave the step up."""

    reason: str


Outcome = Cut | PromptsWanted | Stopped
Receipts = Sequence[Receipt]
