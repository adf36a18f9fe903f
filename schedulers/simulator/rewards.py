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
from typing import Literal, NamedTuple

from schedulers.reward_timeouts import RewardTimeouts


@dataclass(frozen=True, slots=True)
class RewardCosts:
    """`kind` rule or judge: `base_s` and `token_s` for each token of the response. Sandbox: lognormal with median
    `base_s` and `sigma`, cut at `limit_s`; `stuck_share` of the programs never end."""

    kind: Literal["rule", "sandbox", "judge"]
    workers: int
    base_s: float
    token_s: float = 0.0
    sigma: float = 0.0
    limit_s: float = math.inf
    stuck_share: float = 0.0

    def seconds(self, n_tokens: int, random: Random) -> float:
        """Of one response, were there no limit."""
        if self.kind != "sandbox":
            return self.base_s + self.token_s * n_tokens
        if random.random() < self.stuck_share:
            return math.inf
        return self.base_s * math.exp(random.gauss(0.0, self.sigma))


class Scoring(NamedTuple):
    """When the answer will be there, how long its worker took, and whether a program was killed at its limit."""

    ready_s: float
    run_s: float
    killed: bool


class RewardPools:
    """First come first served by `workers` of each domain. `score` tells when an answer will be there: calls come in
    the order of time, so it is known at once. With `timeouts` the limits of sandboxes adapt to correct runs, and a
    prompt counts as one test case."""

    def __init__(
        self, costs: Mapping[str, RewardCosts], seed: int = 0, timeouts: RewardTimeouts | None = None
    ) -> None:
        self.timeouts = timeouts
        self._costs = dict(costs)
        self._free_s: dict[str, list[float]] = {name: [0.0] * c.workers for name, c in costs.items()}
        self._random = Random(seed)
        self.busy_s = 0.0

    def score(self, t_s: float, domain: str, case: str, n_tokens: int) -> Scoring:
        """A response of prompt `case` is handed in at `t_s`."""
        costs, free = self._costs[domain], self._free_s[domain]
        limit_s, run_s = costs.limit_s, costs.seconds(n_tokens, self._random)
        if self.timeouts is not None and costs.kind == "sandbox":
            limit_s = self.timeouts.timeout_s(case)
        taken_s = min(run_s, limit_s)
        ready_s = max(t_s, free[0]) + taken_s
        heapq.heapreplace(free, ready_s)
        self.busy_s += taken_s
        return Scoring(ready_s, taken_s, run_s > limit_s)

    def correct(self, domain: str, case: str, scoring: Scoring) -> None:
        """The response turned out correct: what the time-outs learn from."""
        if self.timeouts is not None and self._costs[domain].kind == "sandbox":
            self.timeouts.correct_run(case, scoring.run_s)
