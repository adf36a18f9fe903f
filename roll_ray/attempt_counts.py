"""From the rollout manager's running counts to the numbers of a step."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(slots=True)
class AttemptCounts:
    """Takes differences of counts that only grow, unless the manager starts again and counts from 0."""

    _before: dict[str, float] = field(default_factory=dict)

    def step(self, counts: Mapping[str, float]) -> dict[str, float]:
        """Metrics since the last call: retries, wasted tokens, the share of invalid rewards, of all and by domain; and
        where prompts are deferred, how many wait and how short the kept responses are.

        `counts` has `retries`, and `scored/<domain>` and `invalid/<domain>` of every domain seen."""
        new = {name: self._since(name, value) for name, value in counts.items()}
        self._before = dict(counts)
        metrics = {"retries": new.get("retries", 0.0)}
        if "wasted_tokens" in new:
            metrics["wasted_tokens"] = new["wasted_tokens"]
        if "visits_queued" in counts:
            metrics["deferred_prompts"] = counts["visits_queued"]
        if counts.get("kept_tokens_mean"):
            metrics["kept_length_ratio"] = counts["kept_tokens_mean"] / counts["launched_tokens_mean"]
        scored = {name.partition("/")[2]: n for name, n in new.items() if name.startswith("scored/") and n}
        if not scored:
            return metrics
        invalid = {domain: new[f"invalid/{domain}"] for domain in scored}
        metrics["invalid_share"] = sum(invalid.values()) / sum(scored.values())
        if len(scored) > 1:
            metrics |= {f"invalid_share/{d}": invalid[d] / n for d, n in sorted(scored.items())}
        return metrics

    def _since(self, name: str, value: float) -> float:
        before = self._before.get(name, 0.0)
        return value - before if value >= before else value
