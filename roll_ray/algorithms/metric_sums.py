"""Metrics that are exact under any cut of a batch: kept as sums, reduced once at the end."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Literal

Reduction = Literal["sum", "mean", "max"]


@dataclass(frozen=True, slots=True)
class MetricSum:
    """A metric over some tokens or samples. `total` is their sum (for "max": their largest), `count` how many.

    Parts of a batch merge in any order; `value` is None when nothing was counted (a mean or maximum of
    nothing is not 0).
    """

    reduction: Reduction
    total: float
    count: float

    def merged(self, other: MetricSum) -> MetricSum:
        if self.reduction != other.reduction:
            raise ValueError(f"a {self.reduction} and a {other.reduction} cannot be merged")
        if self.reduction == "max":
            totals = [m.total for m in (self, other) if m.count]
            # max() drops a NaN that is not in first place
            total = float("nan") if any(t != t for t in totals) else max(totals, default=0.0)
        else:
            total = self.total + other.total
        return MetricSum(self.reduction, total, self.count + other.count)

    @property
    def value(self) -> float | None:
        if self.reduction == "sum":
            return self.total
        if not self.count:
            return None
        return self.total / self.count if self.reduction == "mean" else self.total


def merge_sums(parts: Iterable[Mapping[str, MetricSum]]) -> dict[str, MetricSum]:
    """The metrics of a batch from those of its parts (micro-batches, ranks, streamed parts)."""
    merged: dict[str, MetricSum] = {}
    for part in parts:
        for name, metric in part.items():
            merged[name] = merged[name].merged(metric) if name in merged else metric
    return merged


def values(sums: Mapping[str, MetricSum]) -> dict[str, float | None]:
    """What is reported; None where nothing was counted."""
    return {name: metric.value for name, metric in sums.items()}
