"""How long a program of a code reward may run (RollPacker, 2509.21009, section 4.3).

For each test case min(max(T_min, factor x anchor), T_max), the anchor being the longest run of a correct response so
far. So a program that hangs is given up soon where correct ones are known to be quick, and a slow but correct one is
not.

Invariant. A time-out lies in [T_min, T_max], is T_max while no correct run is known, and at least `factor` times
every correct run that was observed, as far as T_max allows. The order of observations plays no part.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


class RewardTimeouts:
    """Time-outs in seconds by test case, learnt while training. The defaults are the paper's."""

    def __init__(self, t_min_s: float = 2.0, t_max_s: float = 30.0, factor: float = 1.5) -> None:
        if not 0 < t_min_s <= t_max_s:
            raise ValueError(f"t_min_s={t_min_s} and t_max_s={t_max_s}: 0 < t_min_s <= t_max_s is needed")
        self.t_min_s, self.t_max_s, self.factor = t_min_s, t_max_s, factor
        self._anchors_s: dict[str, float] = {}

    def timeout_s(self, case: str) -> float:
        """For the next run of this test case."""
        anchor_s = self._anchors_s.get(case)
        if anchor_s is None:
            return self.t_max_s
        return min(max(self.t_min_s, self.factor * anchor_s), self.t_max_s)

    def correct_run(self, case: str, run_s: float) -> None:
        """A correct response took so long for this test case."""
        self._anchors_s[case] = max(run_s, self._anchors_s.get(case, 0.0))

    def state(self) -> dict[str, Any]:
        """Plain data for a checkpoint."""
        return {"anchors_s": dict(self._anchors_s)}

    def load(self, state: Mapping[str, Any]) -> None:
        """Become what gave `state`."""
        self._anchors_s = dict(state["anchors_s"])

    def learn(self, state: Mapping[str, Any]) -> None:
        """Take in what another has learnt: the longer anchor of each case holds."""
        for case, anchor_s in state["anchors_s"].items():
            self.correct_run(case, anchor_s)

    def metrics(self) -> dict[str, float]:
        """Test cases with an anchor, and the mean of their time-outs."""
        timeouts_s = [self.timeout_s(case) for case in self._anchors_s]
        return {
            "cases_anchored": float(len(timeouts_s)),
            "timeout_mean_s": sum(timeouts_s) / len(timeouts_s) if timeouts_s else self.t_max_s,
        }
