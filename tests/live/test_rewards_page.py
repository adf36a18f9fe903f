"""The page docs/rewards.md says what is true: its recipe is planned and run, its names exist."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from roll_ray.settings import RunSettings
from roll_ray.settings_io import dotted_fields
from roll_ray.tracking.metrics import check_declared

PAGE = (Path(__file__).parents[2] / "docs" / "rewards.md").read_text()
STEPS = 4


@pytest.fixture
def recipe(tmp_path):
    (code,) = re.findall(r"```python\n(.*?)```", PAGE, re.S)
    path = tmp_path / "mine.py"
    path.write_text(code)
    return path


def run(words, folder):
    env = {**os.environ, "ROLL_RAY_HOME": str(folder / "home")}
    return subprocess.run(words, cwd=folder, env=env, capture_output=True, text=True, timeout=280)


def test_every_setting_and_metric_of_the_page_exists():
    settings = {name for name, _ in dotted_fields(RunSettings)}
    named = set(re.findall(r"\b((?:judge|shaping)\.\w+)", PAGE)) | set(
        re.findall(r"`(reward_(?:workers|slots|timeout_s))`", PAGE)
    )
    assert len(named) > 8
    assert named <= settings
    check_declared(name.replace("<name>", "x") for name in re.findall(r"`([a-z_]+/(?:maths|<name>))`", PAGE))


def test_the_recipe_of_the_page_can_be_planned(recipe, letter_model):
    done = run(
        [sys.executable, "-m", "recipes.cli", "plan", recipe.name, f"model={letter_model}"], recipe.parent
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "domain_weights.letters" in done.stdout


@pytest.mark.engine
def test_the_recipe_of_the_page_runs_with_its_mix_and_tells_of_domains_and_parts(recipe, letter_model):
    words = [
        f"model={letter_model}",
        "run_name=first",
        f"max_steps={STEPS}",
        "prompts_per_step=8",
        "learning_rate=1e-3",
    ]
    done = run([sys.executable, recipe.name, *words, "evaluation.every_steps=0"], recipe.parent)
    assert done.returncode == 0, done.stdout + done.stderr
    lines = (recipe.parent / "runs" / "first" / "metrics.jsonl").read_text().splitlines()
    rows = [row for row in map(json.loads, lines) if row["step"] > 0]
    assert len(rows) == STEPS
    for row in rows:
        assert (row["batch_share/letters"], row["batch_share/digits"]) == (0.75, 0.25)
        mixed = 0.75 * row["reward_mean/letters"] + 0.25 * row["reward_mean/digits"]
        assert row["reward_mean"] == pytest.approx(mixed, abs=1e-6)
        parts = sum(row[f"reward_part/{name}"] for name in ("digits", "format", "overlong"))
        assert row["reward_mean/digits"] == pytest.approx(parts, abs=1e-6)
        assert row["invalid_share"] == row["invalid_share/digits"] == 0
    assert (recipe.parent / "runs" / "first" / "report.html").exists()
