"""The page docs/custom_pipeline.md says what is true: its recipe is taken out of it, planned and run."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

PAGE = Path(__file__).parents[2] / "docs" / "custom_pipeline.md"


@pytest.fixture
def recipe(tmp_path):
    (code,) = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.S)
    path = tmp_path / "reverse.py"
    path.write_text(code)
    return path


def run(words, folder):
    env = {**os.environ, "ROLL_RAY_HOME": str(folder / "home")}
    return subprocess.run(words, cwd=folder, env=env, capture_output=True, text=True, timeout=280)


def test_the_recipe_of_the_page_is_about_forty_lines(recipe):
    assert len(recipe.read_text().splitlines()) <= 55


def test_the_recipe_of_the_page_can_be_planned(recipe):
    done = run([sys.executable, "-m", "recipes.cli", "plan", recipe.name], recipe.parent)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "16 prompts x 8 = 128 samples" in done.stdout


@pytest.mark.engine
def test_the_recipe_of_the_page_runs_and_learns(recipe):
    words = [sys.executable, recipe.name, "run_name=first", "max_steps=12", "evaluation.every_steps=12"]
    done = run(words, recipe.parent)
    assert done.returncode == 0, done.stdout + done.stderr
    lines = (recipe.parent / "runs" / "first" / "metrics.jsonl").read_text().splitlines()
    rewards = [row["reward_mean"] for row in map(json.loads, lines) if row["reward_mean"] is not None]
    assert len(rewards) == 12
    assert sum(rewards[-3:]) > sum(rewards[:3])
