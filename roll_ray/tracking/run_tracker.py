"""The tracker of a run: what the controller tells it goes to the run folder, the display and all sinks."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from roll_ray.parts import Part
from roll_ray.receipts import Receipt
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
    """The controller's `Tracker`. `shown` gives a few answers of the step; `decode` makes text of them.

    `by_domain`: the run mixes domains, and what is told of the batch is told of each."""

    folder: RunFolder
    timeline: Timeline
    display: Display
    decode: Decode
    shown: Callable[[], Sequence[tuple[Prompt, Sample]]]
    sources: Sequence[MetricsSource] = ()
    sinks: Sequence[MetricsSink] = ()
    clock: Callable[[], float] = time.monotonic
    flat_start: FlatStart = field(default_factory=FlatStart)
    by_domain: bool = False
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
        metrics: dict[str, Value] = {
            **times_s,
            **batch_metrics(part, self.by_domain),
            **evaluation,
            "weight_version": step,
        }
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


def batch_metrics(part: Part, by_domain: bool = False) -> dict[str, Value]:
    """What the receipts of a batch say: rewards and their parts, lengths, shares. None where nothing counts.

    `by_domain`: also of each domain by itself, as `reward_mean/maths`."""
    receipts = part.cut.receipts
    weights_of_step = part.cut.step - 1  # the version that this step trains on
    staleness = [weights_of_step - r.version_min for r in receipts if r.version_min != NO_VERSION]
    metrics: dict[str, Value] = {
        **_common(receipts),
        "response_tokens_max": max(r.n_policy_tokens for r in receipts),
        "invalid_share": float(np.mean([r.reward is None for r in receipts])),
        "staleness_max": max(staleness, default=None),
        **_parts(receipts),
    }
    rewards = [r.reward for r in receipts if r.reward is not None]
    metrics["reward_std"] = float(np.std(rewards, ddof=1)) if len(rewards) > 1 else None
    if by_domain:
        for domain in sorted({r.domain for r in receipts}):
            of_it = [r for r in receipts if r.domain == domain]
            metrics |= {f"{name}/{domain}": value for name, value in _common(of_it).items()}
            metrics[f"batch_share/{domain}"] = len(of_it) / len(receipts)
    return metrics


def _common(receipts: Sequence[Receipt]) -> dict[str, Value]:
    """What is told of the batch and of each domain in it."""
    rewards = [r.reward for r in receipts if r.reward is not None]
    rewards_of: dict[object, set[float]] = {}
    for receipt in receipts:
        group = rewards_of.setdefault(receipt.sample.visit, set())
        if receipt.reward is not None:
            group.add(receipt.reward)
    return {
        "reward_mean": float(np.mean(rewards)) if rewards else None,
        "no_signal_share": float(np.mean([len(group) < 2 for group in rewards_of.values()])),
        "response_tokens_mean": float(np.mean([r.n_policy_tokens for r in receipts])),
        "truncated_share": float(np.mean([r.truncated for r in receipts])),
        "reward_s": float(np.mean([r.reward_s for r in receipts])),
    }


def _parts(receipts: Sequence[Receipt]) -> dict[str, Value]:
    """Each part of the rewards by itself, over the samples that have it."""
    names = sorted({name for r in receipts for name in r.parts})
    return {
        f"reward_part/{name}": float(np.mean([r.parts[name] for r in receipts if name in r.parts]))
        for name in names
    }
