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
    assert len(problems) == 3
    assert "8 is not a multiple of 3" in problems[1]
    assert "no worker a share of several GPUs" in problems[2]


def test_device_8_of_8_is_wrong_on_a_gpu_machine() -> None:
    (problem,) = plan("devices.train=[8]", machine=NODE).problems
    assert "devices.train names device 8 of 8" in problem


def test_handles_to_gpu_memory_are_wrong_on_a_cpu_machine_and_right_on_shared_gpus() -> None:
    (problem,) = plan("engine.weight_transfer=ipc").problems
    assert "engine.weight_transfer=ipc needs GPUs" in problem
    assert plan("engine.weight_transfer=ipc", machine=NODE).problems == ()
    (problem,) = plan("engine.weight_transfer=nccl", machine=NODE).problems
    assert "needs the first training device for itself" in problem


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


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """Names of files are all that `plan` looks at."""
    folder = tmp_path / "mine"
    folder.mkdir()
    for name in ("config.json", "model.safetensors", "tokenizer.json"):
        (folder / name).write_text("")
    return folder


@pytest.mark.parametrize("name", ["./nowhere", "../nowhere", "/nowhere/model", "~/nowhere", "a/b/c"])
def test_a_model_path_that_does_not_exist_is_wrong(name: str) -> None:
    (problem,) = plan(f"model={name}").problems
    assert f"there is no model folder {name}" in problem


@pytest.mark.parametrize(
    ("missing", "words"),
    [
        ("config.json", "is not a model folder"),
        ("model.safetensors", "has no weights"),
        ("tokenizer.json", "has no tokenizer"),
    ],
)
def test_a_model_folder_that_lacks_a_part_is_wrong(model: Path, missing: str, words: str) -> None:
    assert plan("model=mine").problems == ()
    assert plan("model=mine").notes == ()
    (model / missing).unlink()
    for name in ("mine", "./mine", str(model)):
        (problem,) = plan(f"model={name}").problems
        assert f"{name} {words}" in problem


def test_names_of_the_hub_are_looked_at_when_the_run_starts() -> None:
    shown = plan("model=owner/name", "data=owner/set:main:train", "evaluation.data=owner/set:test")
    assert shown.problems == ()
    assert len(shown.notes) == 3
    for name, note in zip(("model", "data", "evaluation.data"), shown.notes, strict=True):
        assert note.startswith(f"{name}=owner/")
        assert "looked at when the run starts" in note


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (None, "there is no file or folder"),
        ("", "holds no rows"),
        ('{"question": "x"}\n{"question": \n', "line 2 is not JSON"),
        ('{"instruction": "x"}\n', "no known layout has the columns instruction"),
    ],
)
@pytest.mark.parametrize("name", ["data", "evaluation.data"])
def test_data_that_cannot_be_read_is_wrong(
    tmp_path: Path, name: str, content: str | None, words: str
) -> None:
    if content is not None:
        (tmp_path / "d.jsonl").write_text(content)
    (problem,) = plan(f"{name}=d.jsonl").problems
    assert problem.startswith(f"{name}=d.jsonl: ")
    assert words in problem


def test_good_data_is_fine_as_a_file_and_in_a_folder(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "d.jsonl").write_text('{"question": "x", "answer": "1"}\n')
    for name in ("folder", "folder/d.jsonl"):
        assert plan(f"data={name}").problems == ()


def test_an_empty_folder_is_no_data(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    (problem,) = plan("data=empty").problems
    assert "there is no data file in" in problem
