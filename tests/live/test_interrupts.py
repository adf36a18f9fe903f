"""Ctrl-C, SIGTERM, SIGKILL, a dead trainer and a broken reward: one run, ended again and again, loses nothing.

The tests of this file build on one another: each goes on with the run where the one before ended it.
"""

import json
import re
import signal
import time
from pathlib import Path

import pytest

from roll_ray.data_stream import PromptStream
from roll_ray.sample import Prompt
from tests.live.programs import letters, resumed, saved_step, shared_memory_of, steps_written

pytestmark = [pytest.mark.engine, pytest.mark.timeout(240)]

STEPS = 10
SMALL = ("devices.rollout=[0]", "devices.train=[0]", f"max_steps={STEPS}")


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    return tmp_path_factory.mktemp("interrupts")


@pytest.fixture(scope="module")
def run_dir(folder) -> Path:
    return folder / "runs" / "letters-run"


def seconds_to_end(program) -> float:
    struck_s = float(re.search(r"struck in \w+ at ([\d.]+)", program.output)[1])
    return time.time() - struck_s


def check_nothing_is_left(program, within_s: float = 3.0) -> None:
    program.until(lambda: not program.family(), within_s)
    assert shared_memory_of("letters-run") == []


def test_sigint_to_the_whole_group_in_mid_rollout(folder, run_dir, letter_model):
    words = ("run_name=letters-run", "resume=true", "harm=SIGINT group rollout 5", *SMALL)
    with letters(folder, letter_model, *words) as program:
        assert program.ended() == 130
        assert seconds_to_end(program) < 30
        check_nothing_is_left(program)
    assert "resume is set and" in program.output
    assert "starting fresh" in program.output
    assert saved_step(run_dir) == 2
    assert steps_written(run_dir) == [1, 2]
    assert "step 2 is saved; go on with: roll-ray resume" in program.output


def test_its_name_is_taken_now(folder, letter_model):
    with letters(folder, letter_model, "run_name=letters-run") as program:
        assert program.ended() == 1
    assert "letters-run exists" in program.output


def test_sigterm_in_mid_training(folder, run_dir):
    with resumed(folder, run_dir, "harm=SIGTERM train 2") as program:
        assert program.ended() == 130
        assert seconds_to_end(program) < 30
        check_nothing_is_left(program)
    assert saved_step(run_dir) == 4, "the step that was under way is finished"


def test_sigint_in_mid_evaluation(folder, run_dir):
    with resumed(folder, run_dir, "harm=SIGINT evaluation 2", "evaluation.every_steps=5") as program:
        assert program.ended() == 130
        assert seconds_to_end(program) < 30
        check_nothing_is_left(program)
    assert saved_step(run_dir) == 5
    assert steps_written(run_dir) == [1, 2, 3, 4, 5]


def test_sigkill_of_the_driver(folder, run_dir):
    words = ("harm=SIGKILL rollout 5", "checkpoint_every_steps=1", "evaluation.every_steps=0")
    with resumed(folder, run_dir, *words) as program:
        assert program.ended() == -signal.SIGKILL
        agents = ("ray::DashboardAgent", "ray::RuntimeEnvAgent")  # Ray's own; they give up after a minute
        program.until(lambda: all(any(a in p for a in agents) for p in program.family()), 20)
    assert saved_step(run_dir) == 7


def test_a_dead_trainer_rank_ends_the_run_and_is_named_and_what_the_killed_run_left_was_swept(
    folder, run_dir
):
    with resumed(folder, run_dir, "harm=SIGKILL trainer train 2", "devices.train=[0,1]") as program:
        assert program.ended() == 1
        assert seconds_to_end(program) < 60
        check_nothing_is_left(program)
    assert re.search(r"error: actor-train-\d died during", program.output), program.output
    assert "step 8 is saved; go on with" in program.output


def test_a_second_sigint_ends_at_once(folder, run_dir):
    with resumed(folder, run_dir, "harm=SIGINT twice rollout 1", "devices.train=[0]") as program:
        assert program.ended() == 130
        assert seconds_to_end(program) < 10
        check_nothing_is_left(program)
    assert saved_step(run_dir) == 8


def test_in_the_end_every_step_is_there_once_and_every_prompt_was_used_in_order(folder, run_dir):
    with resumed(folder, run_dir, "harm=nothing") as program:
        assert program.ended() == 0
        check_nothing_is_left(program)
    assert steps_written(run_dir) == list(range(1, STEPS + 1))
    offered = {}
    for line in (run_dir / "events.jsonl").read_text().splitlines():
        for kind, *fields in json.loads(line).get("events", ()):
            if kind == "PromptsOffered":
                offered[fields[1]] = [tuple(visit) for visit in fields[2]]
    stream = PromptStream([Prompt(id=f"train-{i:02d}", text="a") for i in range(4)], seed=0)
    for step in range(1, STEPS + 1):
        assert offered[step] == [tuple(visit) for visit, _ in stream.draw(4)]


def test_sigint_in_mid_start_up(folder, letter_model):
    with letters(folder, letter_model, "run_name=letters-run-2", *SMALL) as program:
        program.until(lambda: program.titles("ray::RolloutEngine"))
        time.sleep(1.5)
        began_s = time.monotonic()
        program.send(signal.SIGINT)
        assert program.ended() == 130
        assert time.monotonic() - began_s < 30
        check_nothing_is_left(program)
    assert "no step was saved" in program.output
    assert not (folder / "runs" / "letters-run-2" / "checkpoints").exists()


def test_sigterm_to_the_whole_group_saves_the_step_though_rays_daemons_end_first(folder, letter_model):
    words = ("run_name=letters-run-4", "harm=SIGTERM group rollout 3", *SMALL)
    with letters(folder, letter_model, *words) as program:
        assert program.ended() != 0, "Ray ends the program itself 20 s after its daemons are gone"
        assert seconds_to_end(program) < 40
    assert "step 1 is saved" in program.output
    assert saved_step(folder / "runs" / "letters-run-4") == 1


def test_a_reward_that_breaks_ends_the_run_with_its_reason_and_the_last_step_saved(folder, letter_model):
    with letters(folder, letter_model, "run_name=letters-run-3", "reward=tired", *SMALL) as program:
        assert program.ended() == 1
        check_nothing_is_left(program)
    assert "error: step 3 cannot be completed" in program.output
    assert "this reward function is tired" in program.output
    assert saved_step(folder / "runs" / "letters-run-3") == 2
