"""What is wrong with a model, a task or the machine is told before anything starts: what, why and what to do."""

import asyncio
import json
import shutil
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from recipes import grpo_qwen, grpo_smollm2
from recipes.checks import check_before_start
from recipes.memory import check_memory, free_memory_bytes, weights_bytes
from recipes.pipeline import Pipeline
from recipes.rules import default_rules
from recipes.task import Task
from roll_ray.errors import RollRayError, SettingsError
from roll_ray.sample import Prompt
from roll_ray.settings import RunSettings
from roll_ray.settings_io import read_settings

MIB = 1 << 20
PROMPTS = [Prompt(id="a", text="say aaa: ")]


def half(view):
    return 0.5


def settings_of(model: Path | str, *words: str) -> RunSettings:
    return read_settings(RunSettings, [f"model={model}", *words])


def check(settings: RunSettings, task: Task) -> None:
    check_before_start(settings, task, default_rules(settings))


def error_of(settings: RunSettings, task: Task) -> RollRayError:
    """The error of a start; it has all three parts."""
    with pytest.raises(RollRayError) as raised:
        check(settings, task)
    assert raised.value.what
    assert raised.value.why
    assert raised.value.next_step
    return raised.value


@pytest.fixture
def task() -> Task:
    return Task(PROMPTS, rewards={"default": half})


@pytest.fixture
def model(letter_model, tmp_path) -> Path:
    return Path(shutil.copytree(letter_model, tmp_path / "model"))


def test_a_good_start_passes(model, task):
    check(settings_of(model), task)


def test_a_model_folder_without_a_tokenizer(model, task):
    for file in model.glob("tokenizer*"):
        file.unlink()
    error = error_of(settings_of(model), task)
    assert "has no tokenizer" in error.what
    assert str(model) in error.what


def test_a_tokenizer_with_more_tokens_than_the_model_knows(model, task):
    config = json.loads((model / "config.json").read_text())
    (model / "config.json").write_text(json.dumps(config | {"vocab_size": 60}))
    error = error_of(settings_of(model), task)
    assert "is not its own" in error.what
    assert "token ids up to 97" in error.why
    assert "60 rows" in error.why


def test_a_model_folder_that_does_not_exist(tmp_path, task):
    with pytest.raises(RollRayError, match=f"there is no model folder {tmp_path}/nowhere"):
        check(settings_of(tmp_path / "nowhere"), task)


def test_a_hub_model_that_cannot_be_reached(task, monkeypatch):
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    assert "model=no-such/model cannot be loaded" in error_of(settings_of("no-such/model"), task).what


@pytest.mark.parametrize("name", ["lock", "generator"])
def test_a_reward_function_that_cannot_be_pickled(name, model):
    held = {"lock": threading.Lock(), "generator": (i for i in range(3))}[name]

    def reward(view):
        return float(held is not None)

    error = error_of(settings_of(model), Task(PROMPTS, rewards={"default": reward}))
    assert "the reward function of domain 'default'" in error.what
    assert "cannot be sent to a worker process" in error.what
    assert name in error.why


def test_an_environment_that_cannot_be_pickled(model):
    held = threading.Lock()
    task = Task(PROMPTS, environments={"default": lambda: held})
    assert "the environment of domain 'default'" in error_of(settings_of(model), task).what


def test_more_cache_than_the_machine_has_memory(model, task):
    error = error_of(settings_of(model, "engine.kv_cache_mb=100000000"), task)
    assert "engine.kv_cache_mb=100000000 for 2 engines is 200,000,000 MiB" in error.what


def test_memory_is_checked_against_what_is_free_now(tmp_path, monkeypatch):
    meminfo = tmp_path / "meminfo"
    meminfo.write_text("MemTotal: 64000000 kB\nMemAvailable: 1024000 kB\n")
    monkeypatch.setattr("recipes.memory._MEMINFO", meminfo)
    assert free_memory_bytes() == 1000 * MIB
    fits = {"engines": 2, "weights_bytes": 100 * MIB, "free_bytes": free_memory_bytes(), "shared": tmp_path}
    check_memory(cache_mb=400, **fits)
    with pytest.raises(RollRayError) as raised:
        check_memory(cache_mb=401, **fits)
    assert "engine.kv_cache_mb=401 for 2 engines is 802 MiB" in raised.value.what
    assert "two versions of the weights are 200 MiB" in raised.value.what
    assert raised.value.why == "1,000 MiB of memory are available now"
    assert "set engine.kv_cache_mb to some 100" in raised.value.next_step


def test_weights_that_do_not_fit_into_shared_memory(tmp_path, monkeypatch):
    monkeypatch.setattr("roll_ray.weights.folders.free_bytes", lambda folder: 64 * MIB)
    fits = {"engines": 1, "cache_mb": 1, "free_bytes": 1000 * MIB, "shared": tmp_path}
    check_memory(weights_bytes=32 * MIB, **fits)
    with pytest.raises(RollRayError, match=f"no room for the weights in {tmp_path}") as raised:
        check_memory(weights_bytes=33 * MIB, **fits)
    assert "--shm-size" in raised.value.next_step


def test_a_start_checks_the_memory_that_is_free(model, task, monkeypatch):
    monkeypatch.setattr("recipes.checks.free_memory_bytes", lambda: 100 * MIB)
    error = error_of(settings_of(model), task)
    assert "engine.kv_cache_mb=64 for 2 engines is 128 MiB" in error.what


def test_the_size_of_the_weights_is_that_of_their_numbers_in_the_runs_dtype(model):
    from transformers import AutoModelForCausalLM

    n = sum(p.numel() for p in AutoModelForCausalLM.from_pretrained(model).parameters())
    assert weights_bytes(str(model), "float32") == 4 * n
    assert weights_bytes(str(model), "bfloat16") == 2 * n
    assert weights_bytes("owner/name", "float32") == 0


def test_a_weights_file_that_is_none_is_named(model, task):
    (model / "model.safetensors").write_text("version https://git-lfs.github.com/spec/v1\n")
    error = error_of(settings_of(model), task)
    assert f"{model}/model.safetensors is not a safetensors file" in error.what


def test_wrong_data_is_told_before_the_demos_model_is_made(tmp_path, monkeypatch):
    monkeypatch.setattr("recipes.demo.demo_model", lambda: pytest.fail("the model was made"))
    (tmp_path / "d.jsonl").write_text('{"question": "1+1", "answer": "2"}\n' * 3 + "broken\n")
    for data, words in {
        "nowhere.jsonl": "there is no file",
        str(tmp_path / "d.jsonl"): "line 4 is not JSON",
    }.items():
        with pytest.raises(RollRayError, match=words):
            grpo_qwen.build(read_settings(grpo_qwen.Settings, [f"data={data}"]))


def test_data_that_the_addition_recipe_would_pass_over_is_refused():
    for name in ("data", "evaluation.data"):
        with pytest.raises(SettingsError, match=f"{name}=x.jsonl would not be read"):
            read_settings(grpo_smollm2.Settings, [f"{name}=x.jsonl"])


def test_prompts_that_leave_no_room_in_the_context(model):
    task = Task([Prompt(id="a", text="a" * 300), Prompt(id="b", text="a" * 200)], rewards={"default": half})
    error = error_of(settings_of(model), task)
    assert "no prompt leaves room for a response" in error.what
    assert "the shortest has 200 tokens, and the context is 128" in error.why


def test_a_few_prompts_that_leave_no_room_are_counted(model, capsys):
    task = Task([*PROMPTS, Prompt(id="b", text="a" * 200)], rewards={"default": half})
    check(settings_of(model), task)
    assert "1 of the first 2 prompts fill the context of 128 tokens" in capsys.readouterr().out


def test_a_domain_that_nobody_rewards(model, tmp_path):
    task = Task([Prompt(id="a", text="x", domain="maths")], rewards={"default": half})
    with pytest.raises(SettingsError, match="no reward function for domain 'maths'; known: default"):
        Pipeline(settings_of(model).model_copy(update={"run_dir": tmp_path / "run"}), task)


def test_nothing_is_started_and_nothing_is_left_when_a_check_fails(model, task, tmp_path):
    for file in model.glob("tokenizer*"):
        file.unlink()
    pipeline = Pipeline(settings_of(model).model_copy(update={"run_dir": tmp_path / "run"}), task)
    with pytest.raises(RollRayError, match="has no tokenizer"):
        asyncio.run(pipeline.run())
    assert pipeline.staff is None
    assert not (tmp_path / "run" / "checkpoints").exists()


def test_a_folder_of_the_users_that_shadows_ours_is_named(tmp_path):
    (tmp_path / "envs").mkdir()
    (tmp_path / "envs" / "__init__.py").write_text("")
    (tmp_path / "mine.py").write_text("import recipes.running")
    done = subprocess.run(
        [sys.executable, "mine.py"], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 1
    assert f"{tmp_path}/envs shadows" in done.stderr
    assert f"rename {tmp_path}/envs" in done.stderr
