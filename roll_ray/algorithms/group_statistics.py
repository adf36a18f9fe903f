"""Statistics of groups of samples that do not depend, not in the last bit, on the order of the samples."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]
Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Groups:
    """`codes_B`: the group of each sample, 0 to n - 1. Each statistic is given at every sample of its group, [B].

    Numbers are sorted before they are summed, and differences taken from the least of a group, so that equal
    numbers have exactly their mean.
    """

    codes_B: npt.NDArray[np.int64]
    n: int

    @staticmethod
    def of(groups_B: Sequence[Hashable]) -> Groups:
        codes = {group: code for code, group in enumerate(dict.fromkeys(groups_B))}
        codes_B = np.fromiter(map(codes.__getitem__, groups_B), np.int64, len(groups_B))
        return Groups(codes_B, len(codes))

    @staticmethod
    def whole(n_samples: int) -> Groups:
        """All samples as one group."""
        return Groups(np.zeros(n_samples, np.int64), 1)

    def sum_B(self, x_B: Array) -> Floats:
        order = np.lexsort((x_B, self.codes_B))
        sums = np.bincount(self.codes_B[order], np.asarray(x_B, np.float64)[order], self.n)
        return sums.astype(np.float64, copy=False)[self.codes_B]

    def size_B(self) -> npt.NDArray[np.int64]:
        return np.bincount(self.codes_B, minlength=self.n)[self.codes_B]

    def least_B(self, x_B: Array) -> Floats:
        least = np.full(self.n, np.inf)
        np.minimum.at(least, self.codes_B, x_B)
        return least[self.codes_B]

    def mean_B(self, x_B: Array, weights_B: Array | None = None) -> Floats:
        """The mean, or the mean weighted by `weights_B` (> 0)."""
        least_B = self.least_B(x_B)
        weights_B = np.ones(len(least_B)) if weights_B is None else np.asarray(weights_B, np.float64)
        return least_B + self.sum_B(weights_B * (x_B - least_B)) / self.sum_B(weights_B)

    def std_B(self, x_B: Array) -> Floats:
        """Unbiased (n - 1); 0 for a group of one."""
        squares_B = self.sum_B((x_B - self.mean_B(x_B)) ** 2)
        return np.sqrt(squares_B / np.maximum(self.size_B() - 1, 1))

    def equal_B(self, x_B: Array) -> npt.NDArray[np.bool_]:
        """Whether all numbers of the group are equal, as those of a group of one are."""
        least_B = self.least_B(x_B)
        return self.sum_B(np.not_equal(x_B, least_B)) == 0
