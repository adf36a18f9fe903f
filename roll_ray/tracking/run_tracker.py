"""The tracker of a run: what the controller tells it goes to the run folder, the display and all sinks."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from roll_ray.parts import Part
from roll_ray.sample import NO_VERSION, Prompt, Sample
from roll_ray.tracking.display import Display
from roll_ray.tracking.flat_start import FlatStart
from roll_ray.tracking.metrics import MetricsSink, Value, check_declared
from roll_ray.tracking.run_folder import RunFolder
from roll_ray.tracking.timeline import Timeline
from roll_ray.tracking.trajectories import Decode, Trajectory

MetricsSource = Callable[[], Mapping[str, Value]]
"""Asked once a step for the numbers of that step: a trainer, a scorer, an engine pool."""

_STEP_PHASES = ("rollout", "train", "update")


@dataclass(slots=True)
class RunTracker:
    """The controller's `Tracker`. `shown` gives a few answers of the step; `decode` makes text of them."""

    folder: RunFolder
    timeline: Timeline
    display: Display
    decode: Decode
    shown: Callable[[], Sequence[tuple[Prompt, Sample]]]
    sources: Sequence[MetricsSource] = ()
    sinks: Sequence[MetricsSink] = ()
    clock: Callable[[], float] = time.monotonic
    flat_start: FlatStart = field(default_factory=FlatStart)
    _phases_s: dict[str, float] = field(default_factory=dict)
    _step_began_s: float = 0.0

    @contextlib.contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Time spent in `name` counts for the step that is under way."""
        self.display.phase(name)
        began_s = self.clock()
        try:
            with self.timeline.phase(name):
                yield
        finally:
            self._phases_s[name] = self._phases_s.get(name, 0.0) + self.clock() - began_s

    def begun(self, step: int, evaluation: Mapping[str, float]) -> None:
        """The run stands after `step` (0: before the first) and goes on from here."""
        if step == 0 and evaluation:
            self._record(step, {**evaluation, "weight_version": 0})
        self._phases_s.clear()
        self._step_began_s = self.clock()

    def step_done(self, step: int, part: Part, evaluation: Mapping[str, float]) -> None:
        """Write the step down and show it. Raises `UndeclaredMetricError` for a number nobody explained."""
        times_s = self._times()
        metrics: dict[str, Value] = {**times_s, **batch_metrics(part), **evaluation, "weight_version": step}
        metrics["tokens_per_s"] = int(part.cut.policy_tokens_B.sum()) / times_s["step_s"]
        metrics["samples_per_s"] = len(part.cut.receipts) / times_s["step_s"]
        for source in self.sources:
            metrics |= source()
        self._record(step, metrics)
        shown = [Trajectory.of(prompt, sample, self.decode) for prompt, sample in self.shown()]
        self.folder.record_trajectories(step, shown)
        if warning := self.flat_start.observe([r.reward for r in part.cut.receipts], shown):
            self.warn(step, warning)
        self._phases_s.clear()
        self._step_began_s = self.clock()

    def warn(self, step: int, text: str) -> None:
        """Say it, keep it for the report, mark it in the timeline."""
        self.display.say(f"warning: {text}")
        self.folder.record_warning(step, text)
        self.timeline.instant("warning", text=text)

    def say(self, text: str) -> None:
        """Something worth a line that is not a fault: whom a long wait is for."""
        self.display.say(text)

    def interrupted(self, step: int) -> None:
        self.display.say(f"interrupted: ending after step {step}, which is being saved")
        self.timeline.instant("interrupted", step=step)

    def close(self) -> None:
        self.display.close()
        self.timeline.close()
        self.folder.close()

    def _record(self, step: int, metrics: Mapping[str, Value]) -> None:
        check_declared(metrics)
        self.folder.record(step, metrics)
        for sink in self.sinks:
            sink.record(step, metrics)
        self.display.step(step, metrics)

    def _times(self) -> dict[str, float]:
        """The phases of the step; `control_s` is what no phase accounts for."""
        times_s = {f"{name}_s": self._phases_s.get(name, 0.0) for name in _STEP_PHASES}
        beside = {f"{name}_s": s for name, s in self._phases_s.items() if name not in _STEP_PHASES}
        step_s = max(self.clock() - self._step_began_s - sum(beside.values()), 1e-9)
        return {**times_s, **beside, "step_s": step_s, "control_s": max(step_s - sum(times_s.values()), 0.0)}


def batch_metrics(part: Part) -> dict[str, Value]:
    """What the receipts of a batch say: rewards, lengths, shares. None where nothing counts."""
    receipts = part.cut.receipts
    rewards = part.cut.rewards_B[~np.isnan(part.cut.rewards_B)]
    tokens_B = part.cut.policy_tokens_B
    rewards_of: dict[object, set[float]] = {}
    for receipt in receipts:
        group = rewards_of.setdefault(receipt.sample.visit, set())
        if receipt.reward is not None:
            group.add(receipt.reward)
    weights_of_step = part.cut.step - 1  # the version that this step trains on
    staleness = [weights_of_step - r.version_min for r in receipts if r.version_min != NO_VERSION]
    return {
        "reward_mean": float(rewards.mean()) if len(rewards) else None,
        "reward_std": float(rewards.std(ddof=1)) if len(rewards) > 1 else None,
        "no_signal_share": float(np.mean([len(group) < 2 for group in rewards_of.values()])),
        "response_tokens_mean": float(tokens_B.mean()),
        "response_tokens_max": int(tokens_B.max()),
        "truncated_share": float(np.mean([r.truncated for r in receipts])),
        "invalid_share": float(np.mean([r.reward is None for r in receipts])),
        "staleness_max": max(staleness, default=None),
        "reward_s": float(np.mean([r.reward_s for r in receipts])),
    }
