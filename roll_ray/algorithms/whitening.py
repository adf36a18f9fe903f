"""Whitening over all valid tokens of a batch, from moments that ranks and mini-batches add up."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]
EPS = 1e-8
NOT_WHITENED = "a batch with fewer than two policy tokens has no variance: its advantages stay as they are"


@dataclass(frozen=True, slots=True)
class Moments:
    """How many numbers there were, their mean, and `m2`: the sum of squared distances from it. All in float64."""

    count: float = 0.0
    mean: float = 0.0
    m2: float = 0.0

    @staticmethod
    def of(x: Array, weights: Array | None = None) -> Moments:
        """Of all numbers of `x`; with `weights` (0 or more) as if each stood there that many times.

        What has weight 0 does not count, be it NaN. A mask is a weight; so is a sample's number of tokens.
        """
        x = np.asarray(x).reshape(-1)
        if weights is not None:
            weights = np.asarray(weights).reshape(-1)
            x, weights = x[weights > 0], weights[weights > 0].astype(np.float64)
        x = x.astype(np.float64)
        count = float(len(x)) if weights is None else float(weights.sum())
        if count == 0:
            return Moments()
        mean = float(np.average(x, weights=weights))
        squares = (x - mean) ** 2
        return Moments(count, mean, float(squares.sum() if weights is None else weights @ squares))

    def merged(self, other: Moments) -> Moments:
        """The moments of both sets together (Chan, Golub and LeVeque 1979)."""
        count = self.count + other.count
        if count == 0:
            return Moments()
        distance = other.mean - self.mean
        mean = self.mean + distance * (other.count / count)
        return Moments(count, mean, self.m2 + other.m2 + distance**2 * (self.count * other.count / count))

    @property
    def enough(self) -> bool:
        """Whether there is a variance: with fewer than two numbers `whiten` leaves them as they are."""
        return self.count >= 2

    @property
    def variance(self) -> float:
        """Unbiased (n - 1); 0 where there is none."""
        return self.m2 / (self.count - 1) if self.enough else 0.0


def whiten(x: Array, moments: Moments) -> Array:
    """(x - mean) / sqrt(variance + 1e-8), in the type of x; x itself with fewer than two numbers.

    At places that are not valid the result is as meaningless as x was.
    """
    if not moments.enough:
        return x
    return ((x - moments.mean) / np.sqrt(moments.variance + EPS)).astype(x.dtype, copy=False)
