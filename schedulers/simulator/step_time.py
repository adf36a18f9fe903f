"""What a step of a rollout engine takes, and a run of steps in closed form.

A step decodes one token for each of n running requests whose contexts hold C tokens in all, and takes
A + b n + c C seconds. Contexts grow by n tokens a step, so k steps take k (A + b n + c C) + c n k (k - 1) / 2.
"""

from __future__ import annotations

import math
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class StepCosts:
    """Seconds: `base_s` (A) a step, `request_s` (b) for each running request, `context_token_s` (c) for each
    token in the KV cache that is read, `prefill_token_s` for each prompt or recomputed token."""

    base_s: float
    request_s: float
    context_token_s: float
    prefill_token_s: float

    def decode_s(self, steps: int, n_running: int, context_tokens: int) -> float:
        """Seconds for `steps` steps that start with `context_tokens` in the cache."""
        step_s = self.base_s + self.request_s * n_running + self.context_token_s * context_tokens
        return steps * step_s + self.context_token_s * n_running * (steps * (steps - 1) / 2)

    def steps_to_reach(self, seconds: float, n_running: int, context_tokens: int) -> int:
        """The fewest whole steps that take at least `seconds`: the boundary at which a message is read."""
        if seconds <= 0:
            return 0
        growth = self.context_token_s * n_running / 2
        linear = self.base_s + self.request_s * n_running + self.context_token_s * context_tokens - growth
        root = 2 * seconds / (linear + math.sqrt(linear * linear + 4 * growth * seconds))
        steps = math.ceil(root)
        while steps > 0 and self.decode_s(steps - 1, n_running, context_tokens) >= seconds:
            steps -= 1
        while self.decode_s(steps, n_running, context_tokens) < seconds:
            steps += 1
        return steps
