"""Code rewards whose time-outs follow the longest correct run of each test case (RollPacker, 2509.21009, section 4.3).

rewards={"code": AdaptiveCode()}
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from envs.code import CodeVerifier
from envs.sandbox import Limits
from envs.task import ScoredView
from roll_ray.sample import Reward
from schedulers.reward_timeouts import RewardTimeouts


class AdaptiveCode:
    """A `CodeVerifier` that gives up sooner on cases that correct programs pass quickly.

    min(max(2 s, 1.5 x anchor), the verifier's own limit) for each case, the anchor being the longest run among correct
    programs; the limit is 30 s unless a verifier is given. Each reward worker learns by itself; what they learnt is in
    the checkpoint.
    """

    def __init__(self, verifier: CodeVerifier | None = None) -> None:
        verifier = verifier or CodeVerifier(Limits(timeout_s=30.0))
        longest_s = verifier.limits.timeout_s
        self.timeouts = RewardTimeouts(t_min_s=min(2.0, longest_s), t_max_s=longest_s)
        self.verifier = replace(
            verifier, timeout_of=self.timeouts.timeout_s, on_correct=self.timeouts.correct_run
        )

    def __call__(self, view: ScoredView) -> Reward:
        return self.verifier(view)

    def learnt(self) -> dict[str, Any]:
        """Plain data for the checkpoint."""
        return self.timeouts.state()

    def learn(self, learnt: Mapping[str, Any]) -> None:
        """Take in what a reward worker had learnt when the checkpoint was written."""
        self.timeouts.learn(learnt)
