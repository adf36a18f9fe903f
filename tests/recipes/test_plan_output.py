"""`plan` shows everything that can be known before a run starts, and what keeps it from starting."""

from __future__ import annotations

from pathlib import Path

import pytest

from recipes.plan import Machine, Plan, make_plan
from recipes.recipe_files import Recipe
from roll_ray.settings import RunSettings
from roll_ray.settings_io import load_settings

LAPTOP = Machine(gpus=0, cores=2, cluster=None)
NODE = Machine(gpus=8, cores=64, cluster=None)


class Settings(RunSettings):
    model: str = "m"
    max_steps: int = 5


RECIPE = Recipe("toy", Path("toy.py"), Settings, lambda settings: None, "A toy.\n\nMore.")


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def plan(*words: str, machine: Machine = LAPTOP) -> Plan:
    return make_plan(RECIPE, load_settings(Settings, words), machine)


def test_the_batch_sentence_follows_from_the_three_knobs_and_the_memory_knob() -> None:
    words = ["tokens_per_device=2048", "max_prompt_tokens=40", "sampling.max_new_tokens=24"]
    (line,) = [text for text in plan(*words).lines if "optimizer step" in text and "samples" in text]
    assert line.startswith(
        "  8 prompts x 8 = 64 samples, 1 optimizer step of 64, about 1 micro-batch on each of 2 devices"
    )


def test_what_differs_from_the_recipes_default_is_marked() -> None:
    lines = plan("sampling.temperature=0.6", "devices.train=0", "max_steps=5").lines
    marked = [line.split()[1] for line in lines if line.startswith("  * ")]
    assert marked == ["sampling.temperature", "devices.train"]


def test_who_sits_where_on_the_laptop() -> None:
    text = "\n".join(plan().lines)
    assert "device 0: rollout-0 (share 1/2), actor-train-0 (share 1/2)" in text
    assert "device 1: rollout-1 (share 1/2), actor-train-1 (share 1/2)" in text
    assert "no device: driver, rollout manager, 1 episode runner, 1 reward worker" in text


def test_tensor_parallel_groups_are_shown() -> None:
    words = ["devices.rollout=0-3", "devices.train=4-7", "engine.tensor_parallel=2"]
    text = "\n".join(plan(*words, machine=NODE).lines)
    assert "device 0: rollout-0 (share 1, tensor parallel with 1)" in text
    assert "device 3: rollout-1 (share 1, tensor parallel with 2)" in text
    assert "device 7: actor-train-3 (share 1)" in text


def test_nothing_is_wrong_with_the_defaults() -> None:
    assert plan().problems == ()
    assert plan().notes == ()


def test_all_contradictions_are_listed() -> None:
    problems = plan(
        "prompts_per_step=7",
        "optimizer_steps_per_batch=2",
        "devices.rollout=0-7",
        "engine.tensor_parallel=3",
        machine=NODE,
    ).problems
    assert len(problems) == 2
    assert "8 is not a multiple of 3" in problems[1]


def test_device_8_of_8_is_wrong_on_a_gpu_machine() -> None:
    (problem,) = plan("devices.train=[8]", machine=NODE).problems
    assert "devices.train names device 8 of 8" in problem


def test_asking_for_gpus_where_there_are_none_is_wrong() -> None:
    (problem,) = plan("devices.kind=gpu").problems
    assert "no GPU" in problem


def test_more_cpu_slots_than_cores_are_wrong() -> None:
    (problem,) = plan("devices.rollout=0-3", "devices.train=0-1").problems
    assert "devices.rollout names device 2 of 2" in problem
    (problem,) = plan("devices.rollout=0-1", "devices.train=0", "devices.threads_per_device=2").problems
    assert "devices.rollout names device 1 of 1" in problem


def test_a_cluster_is_asked_when_the_run_starts() -> None:
    shown = plan("devices.rollout=0-63", machine=Machine(gpus=0, cores=2, cluster="head:6379"))
    assert shown.problems == ()
    assert "head:6379" in shown.notes[0]


def test_a_run_that_exists_is_wrong_before_it_starts(tmp_path: Path) -> None:
    (tmp_path / "runs" / "a").mkdir(parents=True)
    (tmp_path / "runs" / "a" / "metrics.jsonl").write_text("{}\n")
    (problem,) = plan("run_name=a").problems
    assert "exists" in problem


def test_planning_makes_no_folder(tmp_path: Path) -> None:
    plan()
    assert list(tmp_path.iterdir()) == []
