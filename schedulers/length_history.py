"""How long responses of this run get: an empirical distribution that also counts those that were stopped.

An aborted response says only that it would have been longer, and tail batching aborts the long ones; left out, the
history would promise short responses. So survival is the product-limit estimate (Kaplan and Meier, 1958) over ended
and stopped responses. Invariant: survival falls from 1 and never rises, and without stopped responses it is the share
of responses that were longer.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]


class LengthHistory:
    """The last `size` responses: tokens, and whether the response ended by itself (or at its limit)."""

    def __init__(self, size: int = 4096) -> None:
        self._seen: deque[tuple[int, bool]] = deque(maxlen=size)
        self._curve: tuple[Floats, Floats] | None = None

    def __len__(self) -> int:
        return len(self._seen)

    def add(self, n_tokens: int, ended: bool = True) -> None:
        self._seen.append((n_tokens, ended))
        self._curve = None

    def survival(self, tokens: Floats) -> Floats:
        """For each number of tokens the share of responses that get longer than that."""
        at, share = self._survival_curve()
        return share[np.searchsorted(at, tokens, side="right")]

    def _survival_curve(self) -> tuple[Floats, Floats]:
        """Ascending lengths, and survival before the first and after each of them."""
        if self._curve is None:
            seen = np.asarray(self._seen, np.float64).reshape(-1, 2)
            at, index = np.unique(seen[:, 0], return_inverse=True)
            left = np.bincount(index, minlength=len(at)) if len(at) else np.zeros(0)
            ended = np.bincount(index, weights=seen[:, 1], minlength=len(at)) if len(at) else np.zeros(0)
            at_risk = left[::-1].cumsum()[::-1]
            self._curve = at, np.concatenate([[1.0], np.cumprod(1 - ended / np.maximum(at_risk, 1))])
        return self._curve

    def state(self) -> dict[str, Any]:
        """Plain data for a checkpoint."""
        return {"size": self._seen.maxlen, "seen": [[n, ended] for n, ended in self._seen]}

    def load(self, state: Mapping[str, Any]) -> None:
        """Become what gave `state`."""
        self._seen = deque(((n, ended) for n, ended in state["seen"]), maxlen=state["size"])
        self._curve = None
