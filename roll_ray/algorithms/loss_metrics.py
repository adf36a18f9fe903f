"""The metrics of a loss: gathered piece by piece, with one transfer from the device a piece."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from roll_ray.algorithms.metric_sums import MetricSum, Reduction, merge_sums


class Measures:
    """What was seen of one piece of `count` tokens: numbers on the device until `sums`."""

    def __init__(self, count: int) -> None:
        self.count = count
        self._totals: dict[str, tuple[Reduction, torch.Tensor]] = {}

    def mean(self, name: str, x_T: torch.Tensor) -> None:
        total = x_T.count_nonzero().to(torch.float32) if x_T.dtype is torch.bool else x_T.detach().sum()
        self._totals[name] = ("mean", total)

    def max(self, name: str, x_T: torch.Tensor) -> None:
        """NaN if one is NaN."""
        self._totals[name] = ("max", x_T.detach().amax())

    def sum(self, name: str, total: torch.Tensor) -> None:
        """A number that is a sum already."""
        self._totals[name] = ("sum", total.detach().to(torch.float32))

    def all(self, means: Mapping[str, torch.Tensor], maxima: Mapping[str, torch.Tensor]) -> None:
        for name, x_T in means.items():
            self.mean(name, x_T)
        for name, x_T in maxima.items():
            self.max(name, x_T)

    def sums(self) -> dict[str, MetricSum]:
        totals = torch.stack([total for _, total in self._totals.values()]).tolist()
        return {
            name: MetricSum(reduction, total, 1 if reduction == "sum" else self.count)
            for (name, (reduction, _)), total in zip(self._totals.items(), totals, strict=True)
        }


def merge_pieces(pieces: list[dict[str, MetricSum]]) -> dict[str, MetricSum]:
    """Of one share: its pieces are ours, so that a sum counts once."""
    return {
        name: MetricSum("sum", m.total, 1) if m.reduction == "sum" else m
        for name, m in merge_sums(pieces).items()
    }
