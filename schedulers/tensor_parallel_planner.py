"""Elastic tensor parallelism (RollPacker, 2509.21009, section 4.2): the degree follows the preemptions.

A KV cache that is too small shows as preemptions. Rounds are compared with the last one *of the same kind*, since
short rounds preempt nearly twice as much as long ones at the same degree (the paper's Fig 6) and would set off the
rule each time the kind changes. Preemptions that rose by more than 5 %, by more than 3 sqrt(previous) (the noise of a
count) and by at least 10 ask for twice the degree, up to a node; four rounds in a row without any ask for half of it.

A switch is made only when it pays: horizon x gain x seconds of this round > cost, where the cost is the last one that
was measured (`switched`) and the gain is a share of a round. The gain is what this very switch brought when it was
last made, if that is not longer ago than the horizon: 1 - seconds after / seconds before, of rounds of one kind.
Otherwise it is what the paper measured: doubling under preemptions 25 %, halving without 9 % (Fig 6, short and long
rounds). So a switch that did harm is not repeated at once, and its memory fades as lengths change.

Invariant. The degree stays between `lowest_degree` (at which the model fits) and a node's devices and changes by a
factor of 2, at most once a round, and only on one of the two conditions. Equal rounds give equal decisions.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from schedulers.protocol import SetTensorParallel

RISE_SHARE, RISE_NOISE, RISE_LEAST = 0.05, 3.0, 10
QUIET_ROUNDS = 4
UNTRIED_DOUBLING, UNTRIED_HALVING = 0.25, 0.09


class TensorParallelPlanner:
    """`degree` is the present one. `switch_cost_s` is the estimate until a switch was measured."""

    def __init__(
        self,
        devices_per_node: int,
        degree: int = 1,
        switch_cost_s: float = 0.0,
        horizon_rounds: int = 20,
        lowest_degree: int = 1,
    ) -> None:
        if not lowest_degree <= degree <= devices_per_node or degree & (degree - 1):
            raise ValueError(
                f"degree={degree} is not a power of 2 from {lowest_degree} to the {devices_per_node} devices of a node"
            )
        self.devices_per_node, self.horizon_rounds = devices_per_node, horizon_rounds
        self.lowest_degree = lowest_degree
        self.degree, self.switch_cost_s = degree, switch_cost_s
        self._round = 0
        self._quiet = 0
        self._last: dict[str, tuple[int, float, int]] = {}  # of a kind: preemptions, seconds, degree
        self._gains: dict[tuple[int, int], tuple[float, int]] = {}  # of a switch: share of a round, when

    def round_ended(self, kind: str, preemptions: int, rollout_s: float) -> SetTensorParallel | None:
        """A round of this kind ended at the present degree. What to do before the next one, if anything."""
        self._round += 1
        self._learn(kind, rollout_s)
        before = self._last.get(kind, (preemptions, rollout_s, self.degree))[0]
        self._last[kind] = (preemptions, rollout_s, self.degree)
        self._quiet = 0 if preemptions else self._quiet + 1
        wanted = self._wanted(before, preemptions)
        if wanted == self.degree:
            return None
        if not self._pays(wanted, rollout_s):
            self._last[kind] = (before, rollout_s, self.degree)  # the rise is still to be answered
            return None
        self.degree, self._quiet = wanted, 0
        return SetTensorParallel(wanted)

    def _wanted(self, before: int, preemptions: int) -> int:
        if rose(before, preemptions):
            return 2 * self.degree if 2 * self.degree <= self.devices_per_node else self.degree
        return max(self.degree // 2, self.lowest_degree) if self._quiet >= QUIET_ROUNDS else self.degree

    def switched(self, cost_s: float) -> None:
        """The last switch was carried out and took so long that nothing else went on."""
        self.switch_cost_s = cost_s

    def expected_gain(self, degree: int) -> float:
        """The share of a round that a switch to `degree` is expected to save; negative where it did harm."""
        share, when = self._gains.get((self.degree, degree), (0.0, -math.inf))
        if self._round - when <= self.horizon_rounds:
            return share
        return UNTRIED_DOUBLING if degree > self.degree else UNTRIED_HALVING

    def _pays(self, degree: int, rollout_s: float) -> bool:
        return self.horizon_rounds * self.expected_gain(degree) * rollout_s > self.switch_cost_s

    def _learn(self, kind: str, rollout_s: float) -> None:
        """The first round of a kind after a switch says what the switch brought."""
        before = self._last.get(kind)
        if before is None or before[2] == self.degree or before[1] <= 0:
            return
        self._gains[before[2], self.degree] = (1 - rollout_s / before[1], self._round)

    # --- state -------------------------------------------------------------------------------------

    def state(self) -> dict[str, Any]:
        return {
            "degree": self.degree,
            "switch_cost_s": self.switch_cost_s,
            "round": self._round,
            "quiet": self._quiet,
            "last": {kind: list(last) for kind, last in self._last.items()},
            "gains": [[*switch, *gain] for switch, gain in self._gains.items()],
        }

    def load(self, state: Mapping[str, Any]) -> None:
        self.degree, self.switch_cost_s = state["degree"], state["switch_cost_s"]
        self._round, self._quiet = state["round"], state["quiet"]
        self._last = {kind: (n, seconds, degree) for kind, (n, seconds, degree) in state["last"].items()}
        self._gains = {(a, b): (share, when) for a, b, share, when in state["gains"]}


def rose(before: int, now: int) -> bool:
    """Whether preemptions rose beyond a small share, the noise of a count, and a handful."""
    rise = now - before
    return rise > RISE_SHARE * before and rise > RISE_NOISE * math.sqrt(before) and rise >= RISE_LEAST
