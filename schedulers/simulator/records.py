"""What a simulated run is reduced to: a record a step, and sums over them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class StepRecord:
    """One step.

    Times in seconds: `rollout_s` from the offer until the last engine is idle, `reward_s` what the batch still waits
    for rewards then, `train_s` what of training is left then, `update_s` until the weights are with the engines.

    Tokens of responses: `generated` by the engines in this step, `trained`, `wasted` (aborted or not needed),
    `recomputed` after a preemption or a migration (prompts included). `kept_mean` and `launched_mean` are the mean
    lengths of the responses that are trained and of all that were launched, at the length that they would have had.
    """

    step: int
    kind: str
    degree: int
    starts_s: float
    rollout_s: float
    reward_s: float
    train_s: float
    update_s: float
    released_after_s: float | None
    generated: int
    trained: int
    wasted: int
    recomputed: int
    preemptions: int
    launched: int
    longest_trained: int
    kept_mean: float
    launched_mean: float
    busy_device_s: float
    streamed_tokens: int

    @property
    def step_s(self) -> float:
        return self.rollout_s + self.reward_s + self.train_s + self.update_s

    @property
    def ends_s(self) -> float:
        return self.starts_s + self.step_s


def mean(records: Sequence[StepRecord], field: str, kind: str | None = None) -> float:
    """Mean of a field over the steps of a kind; 0 where there is none."""
    values = [getattr(r, field) for r in records if kind is None or r.kind == kind]
    return float(sum(values)) / len(values) if values else 0.0


@dataclass(frozen=True, slots=True)
class TracePoint:
    """From `t_s` on: devices that generate, devices that train, running responses."""

    t_s: float
    generating_devices: int
    training_devices: int
    running: int
