"""What rewards take: pools of workers, one for each domain, each response scored when a worker is free.

Three kinds, after RollPacker's set-up (2509.21009, sections 4.3 and 6): a rule answers at once; a sandbox runs
a program, some of which run into the time limit; a judge is a language model that reads the response.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Mapping
from dataclasses import dataclass
from random import Random
from typing import Literal


@dataclass(frozen=True, slots=True)
class RewardCosts:
    """`kind` rule or judge: `base_s` and `token_s` for each token of the response. Sandbox: lognormal with median
    `base_s` and `sigma`, cut at `limit_s`; `stuck_share` of the programs never end and run into the limit, or into
    `adaptive_limit_s` where time-outs adapt (the limit that RewardTimeouts has learnt)."""

    kind: Literal["rule", "sandbox", "judge"]
    workers: int
    base_s: float
    token_s: float = 0.0
    sigma: float = 0.0
    limit_s: float = math.inf
    stuck_share: float = 0.0
    adaptive_limit_s: float | None = None

    def seconds(self, n_tokens: int, random: Random) -> float:
        """Of one response."""
        if self.kind != "sandbox":
            return self.base_s + self.token_s * n_tokens
        limit_s = self.limit_s if self.adaptive_limit_s is None else self.adaptive_limit_s
        if random.random() < self.stuck_share:
            return limit_s
        return min(self.base_s * math.exp(random.gauss(0.0, self.sigma)), limit_s)


class RewardPools:
    """First come first served by `workers` of each domain. `score` tells when an answer will be there: calls come in
    the order of time, so it is known at once."""

    def __init__(self, costs: Mapping[str, RewardCosts], seed: int = 0) -> None:
        self._costs = dict(costs)
        self._free_s: dict[str, list[float]] = {name: [0.0] * c.workers for name, c in costs.items()}
        self._random = Random(seed)
        self.busy_s = 0.0

    def score(self, t_s: float, domain: str, n_tokens: int) -> float:
        """The time at which a response handed in at `t_s` is scored."""
        seconds = self._costs[domain].seconds(n_tokens, self._random)
        free = self._free_s[domain]
        ready_s = max(t_s, free[0]) + seconds
        heapq.heapreplace(free, ready_s)
        self.busy_s += seconds
        return ready_s
