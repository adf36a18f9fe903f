"""Models that demos start from."""

import json
import subprocess

import pytest

from envs import sort_repeat
from recipes import sft_warmup
from recipes.taught_models import examples_file, taught_model
from roll_ray.errors import RollRayError


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch):
    monkeypatch.setenv("ROLL_RAY_HOME", str(tmp_path))
    return tmp_path


def test_examples_are_rows_of_prompt_and_answer_and_equal_examples_give_equal_files(home):
    examples = sort_repeat.training_prompts(20, seed=1)
    file = examples_file("sort-repeat", examples)
    first = file.read_bytes()
    rows = [json.loads(line) for line in first.splitlines()]
    assert [(row["prompt"], row["response"]) for row in rows] == [(p.text, p.reference) for p in examples]
    assert examples_file("sort-repeat", examples).read_bytes() == first
    assert [path.name for path in (home / "data").iterdir()] == ["sort-repeat.jsonl"]


def test_the_warm_up_gets_the_settings_that_the_folder_is_named_for(monkeypatch):
    words = []
    monkeypatch.setattr(
        subprocess,
        "run",
        lambda command, **_: words.extend(command) or subprocess.CompletedProcess(command, 0),
    )
    settings = sft_warmup.Settings(data="answers.jsonl", steps=7, seed=3)
    assert taught_model(settings) == settings.folder()
    assert words[3:] == ["data=answers.jsonl", "steps=7", "seed=3"]


def test_a_warm_up_that_fails_is_said(monkeypatch):
    monkeypatch.setattr(subprocess, "run", lambda command, **_: subprocess.CompletedProcess(command, 3))
    with pytest.raises(RollRayError, match=r"could not be made[\s\S]*exit code 3"):
        taught_model(sft_warmup.Settings())
