"""The tracker: a controller's step becomes one line of numbers, and every second of it is accounted for."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import numpy as np
import pytest

from roll_ray.parts import Part
from roll_ray.receipts import Cut, Receipt
from roll_ray.sample import Prompt, Reward, Role, Sample, SamplingDistribution
from roll_ray.tracking.display import Progress
from roll_ray.tracking.metrics import UndeclaredMetricError
from roll_ray.tracking.run_folder import RunFolder, read_metrics
from roll_ray.tracking.run_tracker import RunTracker, batch_metrics
from roll_ray.tracking.timeline import Timeline
from roll_ray.tracking.trajectories import Trajectory
from schedulers.protocol import SampleId, Visit


class Silent:
    """A display that keeps what it is told."""

    def __init__(self) -> None:
        self.said: list[str] = []
        self.progress = Progress(10, 0)

    def phase(self, name: str) -> None: ...

    def step(self, step: int, metrics: object) -> None: ...

    def say(self, text: str) -> None:
        self.said.append(text)

    def close(self) -> None: ...


class Clock:
    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


def receipt(prompt: str, index: int, reward: float | None, n_tokens: int = 10) -> Receipt:
    return Receipt(
        SampleId(Visit(prompt, 0), index),
        0,
        "s",
        n_tokens + 5,
        n_tokens,
        index == 1,
        reward,
        "",
        "d",
        0,
        0,
        1.0,
        0.5,
    )


def part(*receipts: Receipt) -> Part:
    return Part(Cut(1, receipts), ())


def sample() -> Sample:
    return Sample(
        SampleId(Visit("a", 0), 0),
        0,
        np.asarray([1, 2, 3], np.int32),
        np.asarray([Role.PROMPT, Role.POLICY, Role.POLICY], np.int8),
        np.zeros(3, np.float32),
        np.asarray([-1, 4, 5], np.int32),
        Reward(0.0, "wrong"),
        "stop",
        SamplingDistribution(),
    )


def tracker(folder: Path, clock: Clock, **sources: object) -> RunTracker:
    return RunTracker(
        folder=RunFolder(folder),
        timeline=Timeline(folder / "timeline.json"),
        display=Silent(),
        decode=lambda tokens: " ".join(map(str, tokens)),
        shown=lambda: [(Prompt("a", text="one?"), sample())],
        clock=clock,
        **sources,  # type: ignore[arg-type]
    )


def test_the_numbers_of_a_batch_leave_invalid_rewards_out() -> None:
    numbers = batch_metrics(
        part(receipt("a", 0, 1.0), receipt("a", 1, 0.0), receipt("b", 0, 1.0, 30), receipt("b", 1, None))
    )
    assert numbers["reward_mean"] == pytest.approx(2 / 3)
    assert numbers["invalid_share"] == 0.25
    assert numbers["truncated_share"] == 0.5
    assert numbers["no_signal_share"] == 0.5, "one valid reward in a group gives no advantage"
    assert numbers["response_tokens_mean"] == 15
    assert numbers["response_tokens_max"] == 30


def test_a_batch_without_a_valid_reward_has_no_mean() -> None:
    assert batch_metrics(part(receipt("a", 0, None)))["reward_mean"] is None


def test_staleness_is_counted_from_the_oldest_token_to_the_weights_that_the_step_trains_on() -> None:
    old = dataclasses.replace(receipt("a", 0, 1.0), version_min=3, version_max=7)
    fresh = dataclasses.replace(receipt("a", 1, 1.0), version_min=7, version_max=7)
    empty = dataclasses.replace(receipt("a", 2, 1.0, 0), version_min=-1, version_max=-1)
    assert batch_metrics(Part(Cut(8, (fresh, empty)), ()))["staleness_max"] == 0
    assert batch_metrics(Part(Cut(8, (fresh, old, empty)), ()))["staleness_max"] == 4
    assert batch_metrics(Part(Cut(8, (empty,)), ()))["staleness_max"] is None


def test_every_second_of_a_step_is_in_the_breakdown(tmp_path: Path) -> None:
    clock = Clock()
    run = tracker(tmp_path, clock, sources=[lambda: {"loss": 0.5}])
    run.begun(0, {"heldout_accuracy": 0.25})
    for name, seconds in (("rollout", 4.0), ("train", 2.0), ("update", 1.0), ("evaluation", 10.0)):
        with run.phase(name):
            clock.now_s += seconds
    clock.now_s += 1.0
    run.step_done(1, part(receipt("a", 0, 1.0, 40), receipt("a", 1, 0.0, 40)), {"heldout_accuracy": 0.5})
    first, row = read_metrics(tmp_path)
    assert (first["step"], first["heldout_accuracy"], first["reward_mean"]) == (0, 0.25, None)
    assert {
        k: row[k] for k in ("step_s", "rollout_s", "train_s", "update_s", "control_s", "evaluation_s")
    } == {
        "step_s": 8.0,
        "rollout_s": 4.0,
        "train_s": 2.0,
        "update_s": 1.0,
        "control_s": 1.0,
        "evaluation_s": 10.0,
    }
    assert row["tokens_per_s"] == 10.0
    assert (row["loss"], row["heldout_accuracy"], row["weight_version"]) == (0.5, 0.5, 1)


def test_the_next_step_starts_with_clean_clocks(tmp_path: Path) -> None:
    clock = Clock()
    run = tracker(tmp_path, clock)
    run.begun(3, {"heldout_accuracy": 0.25})  # resumed: step 3 has its line already
    for step in (4, 5):
        with run.phase("rollout"):
            clock.now_s += step
        run.step_done(step, part(receipt("a", 0, 1.0), receipt("a", 1, 0.0)), {})
    assert [(r["step"], r["rollout_s"]) for r in read_metrics(tmp_path)] == [(4, 4.0), (5, 5.0)]


def test_sinks_get_the_same_numbers(tmp_path: Path) -> None:
    seen: list[tuple[int, object]] = []

    class Sink:
        def record(self, step: int, metrics: object) -> None:
            seen.append((step, metrics))

    run = tracker(tmp_path, Clock(), sinks=[Sink()])
    run.begun(0, {})
    run.step_done(1, part(receipt("a", 0, 1.0)), {})
    ((step, numbers),) = seen
    assert step == 1
    assert numbers["reward_mean"] == 1.0  # type: ignore[index]


def test_an_undeclared_number_reaches_no_sink(tmp_path: Path) -> None:
    run = tracker(tmp_path, Clock(), sources=[lambda: {"mystery": 1.0}])
    run.begun(0, {})
    with pytest.raises(UndeclaredMetricError, match="mystery"):
        run.step_done(1, part(receipt("a", 0, 1.0)), {})
    assert read_metrics(tmp_path) == []


def test_flat_rewards_are_warned_of_in_all_places(tmp_path: Path) -> None:
    run = tracker(tmp_path, Clock())
    run.begun(0, {})
    for step in (1, 2, 3, 4):
        run.step_done(step, part(receipt("a", 0, 0.0), receipt("a", 1, 0.0)), {})
    (said,) = run.display.said  # type: ignore[attr-defined]
    for word in ("rewards of the first step are 0", "one?", "2 3", "wrong"):
        assert word in said
    assert "first step" in (tmp_path / "warnings.jsonl").read_text()
    assert '"warning"' in (tmp_path / "timeline.json").read_text()
    assert "one?" in (tmp_path / "trajectories.jsonl").read_text()


def test_a_mixed_batch_is_told_of_as_a_whole_and_by_domain(tmp_path: Path) -> None:
    def of(domain: str, index: int, reward: float, **parts: float) -> Receipt:
        given = receipt(domain, index, reward, 10 if domain == "maths" else 30)
        return dataclasses.replace(given, domain=domain, parts=parts)

    mixed = part(
        of("maths", 0, 1.0, correct=1.0), of("maths", 1, 0.0, correct=0.0), of("code", 0, 0.5, style=-0.5)
    )
    numbers = batch_metrics(mixed, by_domain=True)
    assert (numbers["reward_mean"], numbers["reward_mean/maths"], numbers["reward_mean/code"]) == (
        0.5,
        0.5,
        0.5,
    )
    assert (numbers["response_tokens_mean/maths"], numbers["response_tokens_mean/code"]) == (10, 30)
    assert (numbers["no_signal_share/maths"], numbers["no_signal_share/code"]) == (0, 1)
    assert numbers["batch_share/maths"] == pytest.approx(2 / 3)
    assert (numbers["reward_part/correct"], numbers["reward_part/style"]) == (0.5, -0.5)
    assert not [name for name in batch_metrics(mixed) if "/maths" in name]
    run = tracker(tmp_path, Clock(), by_domain=True)
    run.begun(0, {"heldout_accuracy": 0.5, "heldout_accuracy/maths": 0.25})
    run.step_done(1, mixed, {})
    first, row = read_metrics(tmp_path)
    assert first["heldout_accuracy/maths"] == 0.25
    assert row["reward_mean/code"] == 0.5
    assert list(row).index("reward_mean/code") == list(row).index("reward_mean") + 1


def test_the_parts_of_a_reward_are_written_with_the_trajectory(tmp_path: Path) -> None:
    shaped = Reward(0.75, "right", parts={"score": 1.0, "overlong": -0.25})
    shown = Trajectory.of(Prompt("a", text="one?"), dataclasses.replace(sample(), reward=shaped), str)
    RunFolder(tmp_path).record_trajectories(1, [shown])
    (line,) = (tmp_path / "trajectories.jsonl").read_text().splitlines()
    assert json.loads(line)["parts"] == {"score": 1.0, "overlong": -0.25}
    assert "0.75 (right, score 1, overlong -0.25)" in shown.text()
    assert (
        "invalid (no verdict)"
        in dataclasses.replace(shown, reward=None, reason="no verdict", parts={}).text()
    )
