"""Trajectories as a person reads them: prompt, answer, reward with its reason, reference."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from roll_ray.sample import NO_VERSION, Prompt, Sample

Decode = Callable[[Sequence[int]], str]
"""Token ids to text."""


@dataclass(frozen=True, slots=True)
class Trajectory:
    """One answer, whole. `reward` is None when it is invalid; `reason` then says why. `parts`: what it is the sum of,
    where the reward function or the shaping says."""

    prompt_id: str
    domain: str
    prompt: str
    response: str
    reference: str | None
    reward: float | None
    reason: str
    extracted: str | None
    finish_reason: str
    n_policy_tokens: int
    weight_version: int
    attempt: int
    parts: Mapping[str, float] = field(default_factory=dict)

    @staticmethod
    def of(prompt: Prompt, sample: Sample, decode: Decode) -> Trajectory:
        return Trajectory(
            prompt_id=prompt.id,
            domain=sample.domain,
            prompt=prompt.shown(),
            response=decode([int(t) for t in sample.response_tokens()]),
            reference=prompt.reference,
            reward=sample.reward.value,
            reason=sample.reward.reason,
            extracted=sample.reward.extracted,
            finish_reason=sample.finish_reason,
            n_policy_tokens=sample.n_policy_tokens,
            weight_version=int(sample.versions_T.max(initial=NO_VERSION)),
            attempt=sample.attempt,
            parts=sample.reward.parts,
        )

    def row(self) -> dict[str, Any]:
        """Plain data for JSON."""
        return asdict(self)

    def text(self) -> str:
        """All of it on a few lines, nothing cut."""
        parts = "".join(f", {name} {value:g}" for name, value in self.parts.items())
        value = "invalid" if self.reward is None else f"{self.reward:g}"
        verdict = f"{value} ({self.reason}{parts})"
        return example_text(self.prompt, self.response, self.reference, verdict)


def example_text(prompt: str, response: str, reference: str | None, verdict: str) -> str:
    """One response and what was said of it, for a person."""
    return "\n".join(
        [
            f"  prompt:    {prompt}",
            f"  answer:    {response}",
            f"  reference: {reference}",
            f"  reward:    {verdict}",
        ]
    )
