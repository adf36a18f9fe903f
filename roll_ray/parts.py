"""What travels from rollout to training: parts of a batch, cut into mini-batches, shared out over ranks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from roll_ray.batch import balance_by_tokens
from roll_ray.receipts import Cut, Receipt


@dataclass(frozen=True, slots=True)
class Share:
    """What one data-parallel rank trains on. `handles` stand for `Batch`es that together hold the samples of
    `receipts`, in that order; whoever computes resolves them. `extra_B` is added per sample."""

    receipts: tuple[Receipt, ...]
    handles: tuple[Any, ...]
    extra_B: Mapping[str, npt.NDArray[Any]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class MiniBatch:
    """The samples of one optimizer step (or a part of them), a share per rank.

    `denominator` is what these samples add to the divisor of the loss; `closes_step` says that the
    optimizer step comes right after them.
    """

    shares: tuple[Share, ...]
    denominator: float = 0.0
    closes_step: bool = False

    @property
    def receipts(self) -> list[Receipt]:
        return [r for share in self.shares for r in share.receipts]


@dataclass(frozen=True, slots=True)
class Part:
    """A complete batch, or a part of one that may be trained on already (`last` is then False)."""

    cut: Cut
    mini_batches: tuple[MiniBatch, ...]
    last: bool = True


def split_by_visit(receipts: Sequence[Receipt], n: int) -> list[list[Receipt]]:
    """`n` lists of whole prompts, as even as can be, in the order of `receipts`."""
    by_visit: dict[Any, list[Receipt]] = {}
    for receipt in receipts:
        by_visit.setdefault(receipt.sample.visit, []).append(receipt)
    groups = list(by_visit.values())
    chunks = np.array_split(np.arange(len(groups)), n)
    return [[r for g in chunk for r in groups[g]] for chunk in chunks]


def share_out(receipts: Sequence[Receipt], n_ranks: int) -> list[list[Receipt]]:
    """Receipts for each rank, balanced by tokens; those of one store stand together, sorted by sample."""
    indices = balance_by_tokens([r.n_tokens for r in receipts], n_ranks)
    return [sorted((receipts[i] for i in rank), key=lambda r: (r.store, r.sample)) for rank in indices]
