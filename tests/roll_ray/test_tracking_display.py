"""A live panel in a terminal, one line a step elsewhere; a warning when the first rewards are all the same."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from roll_ray.tracking.display import LineDisplay, LiveDisplay, Progress, duration, open_display
from roll_ray.tracking.flat_start import FlatStart
from roll_ray.tracking.trajectories import Trajectory

LONG = "a long answer " * 100
SHOWN = Trajectory(
    "p1", "maths", "What is 1 + 1?", LONG, "2", 0.0, "no number found", None, "length", 4, 1, 0
)


def test_without_a_terminal_a_step_is_one_line_with_all_figures() -> None:
    out = io.StringIO()
    display = open_display(10, 0, Console(file=out, width=20))
    assert isinstance(display, LineDisplay)
    display.phase("rollout")
    display.step(1, {"reward_mean": 0.25, "heldout_accuracy": 0.125, "tokens_per_s": 1234.5})
    display.step(2, {"reward_mean": 0.5, "heldout_accuracy": None, "logprob_difference_max": 2.5e-6})
    first, second = out.getvalue().splitlines()
    assert first.startswith("step 1/10  reward 0.250  held-out accuracy 0.125  tokens/s 1,234")
    assert "held-out accuracy 0.125" in second, "the last known accuracy stays"
    assert "engine-trainer difference 2.5e-06" in second
    assert "time left" in second


def test_in_a_terminal_the_panel_shows_phase_and_figures() -> None:
    out = io.StringIO()
    console = Console(file=out, force_terminal=True, width=100)
    display = open_display(10, 0, console)
    assert isinstance(display, LiveDisplay)
    display.phase("rollout")
    display.step(1, {"reward_mean": 0.25})
    display.say("[bold]not markup[/bold]")
    display.close()
    text = out.getvalue()
    for word in ("rollout", "1/10", "0.250", "[bold]not markup[/bold]"):
        assert word in text


def test_time_left_follows_the_last_steps() -> None:
    clock = iter([0.0, 100.0, 101.0, 102.0, 103.0])
    progress = Progress(10, 0, clock=lambda: next(clock), window=2)
    assert progress.left_s() is None
    for step in range(1, 5):
        progress.step(step, {})
    assert progress.left_s() == pytest.approx(6.0), "the slow first step is outside the window"


def test_a_resumed_run_counts_from_its_step() -> None:
    clock = iter([0.0, 2.0])
    progress = Progress(10, 7, clock=lambda: next(clock))
    progress.step(8, {})
    assert progress.left_s() == pytest.approx(4.0)


def test_a_resumed_run_shows_the_accuracy_that_is_known_until_the_next_evaluation() -> None:
    out = io.StringIO()
    display = open_display(10, 7, Console(file=out, width=20), known={"heldout_accuracy": 0.125})
    display.step(8, {"reward_mean": 0.5, "heldout_accuracy": None})
    display.step(9, {"heldout_accuracy": 0.25})
    first, second = out.getvalue().splitlines()
    assert "held-out accuracy 0.125" in first
    assert "held-out accuracy 0.250" in second


def test_durations_are_read_at_a_glance() -> None:
    assert [duration(s) for s in (5, 65, 7200)] == ["0:05", "1:05", "2:00:00"]


@pytest.mark.parametrize("reward", [0.0, 1.0, None])
@pytest.mark.parametrize("n_steps", [1, 3])
def test_flat_first_steps_give_one_warning_with_one_answer_whole(reward: float | None, n_steps: int) -> None:
    flat = FlatStart(n_steps)
    said = [flat.observe([reward] * 4, [SHOWN]) for _ in range(6)]
    assert [text is not None for text in said] == [step == n_steps for step in range(1, 7)]
    warning = str(said[n_steps - 1])
    assert ("first step " if n_steps == 1 else "first 3 steps ") in warning
    for word in ("What is 1 + 1?", LONG, "reference: 2", "no number found"):
        assert word in warning
    assert ("invalid" if reward is None else f"are {reward:g}") in warning


def test_one_different_reward_in_the_first_steps_is_enough() -> None:
    flat = FlatStart(n_steps=3)
    assert [flat.observe(rewards, [SHOWN]) for rewards in ([0.0, 0.0], [0.0, 1.0], [0.0], [0.0])] == [
        None
    ] * 4


def test_invalid_rewards_beside_flat_ones_are_counted_apart() -> None:
    flat = FlatStart(n_steps=1)
    warning = str(flat.observe([0.0, None, 0.0], []))
    assert warning.startswith("all 2 rewards of the first step are 0, 1 more are invalid")
