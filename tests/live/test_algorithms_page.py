"""The page docs/algorithms.md says what is true: its tables list what there is, its recipe is planned and run."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from roll_ray.algorithms.advantages import ESTIMATORS
from roll_ray.algorithms.aggregation import AGGREGATIONS
from roll_ray.algorithms.corrections import CORRECTIONS
from roll_ray.algorithms.kl import KL_ESTIMATORS
from roll_ray.algorithms.losses import LOSSES
from roll_ray.settings import RunSettings
from roll_ray.settings_io import dotted_fields
from roll_ray.tracking.metrics import DECLARED

PAGE = (Path(__file__).parents[2] / "docs" / "algorithms.md").read_text()
CHOICES = ["adv_estimator=median_baseline", "loss=saturating"]


@pytest.fixture
def recipe(tmp_path):
    (code,) = re.findall(r"```python\n(.*?)```", PAGE, re.S)
    path = tmp_path / "mine.py"
    path.write_text(code)
    return path


def run(words, folder):
    env = {**os.environ, "ROLL_RAY_HOME": str(folder / "home")}
    return subprocess.run(words, cwd=folder, env=env, capture_output=True, text=True, timeout=280)


def section(title):
    """What stands below the first heading that begins so, up to the next."""
    return re.split(r"^#+ ", re.split(rf"^#+ {title}", PAGE, maxsplit=1, flags=re.M)[1], flags=re.M)[0]


def first_column(text):
    return {
        name
        for row in re.findall(r"^\| ([^|]*`[^|]*) \|", text, re.M)
        for name in re.findall(r"`(\w+)`", row)
    }


@pytest.mark.parametrize(
    ("title", "names"),
    [
        ("Losses", LOSSES),
        ("Corrections", CORRECTIONS),
        ("KL", KL_ESTIMATORS),
        ("From tokens", AGGREGATIONS),
    ],
)
def test_each_table_lists_exactly_what_is_registered(title, names):
    assert first_column(section(title)) == set(names)


def test_every_estimator_is_in_the_table_or_among_those_that_nothing_feeds():
    usable = {name for name, e in ESTIMATORS.items() if e.needs <= {"steps", "states"}}
    assert usable <= first_column(section("Advantages"))
    waiting = section("Library functions")
    assert all(name in waiting for name in set(ESTIMATORS) - usable)


def test_every_setting_and_metric_that_the_page_names_exists():
    settings = {name for name, _ in dotted_fields(RunSettings)}
    named = set(
        re.findall(r"`((?:filters|shaping|loss_options|correction|normalisation|sampling)\.\w+)`", PAGE)
    )
    assert len(named) > 15
    assert named <= settings
    metrics = set(re.findall(r"`(\w+)`", section("Metrics").split("|---|---|")[1].split("\n\n")[0]))
    assert len(metrics) > 15
    assert metrics - {"advantage_clip"} <= set(DECLARED)


def test_the_estimator_and_the_loss_are_about_ten_lines_each_and_the_file_is_short(recipe):
    assert len(recipe.read_text().splitlines()) <= 35


def test_the_recipe_of_the_page_can_be_planned_and_only_with_names_that_it_registers(recipe):
    plan = [sys.executable, "-m", "recipes.cli", "plan", recipe.name]
    done = run([*plan, *CHOICES], recipe.parent)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "GRPO with a median" in done.stdout
    done = run([*plan, "loss=saturated"], recipe.parent)
    assert done.returncode == 1
    assert "saturating" in done.stderr


@pytest.mark.engine
def test_the_recipe_of_the_page_runs_and_goes_on(recipe, letter_model):
    small = [
        f"model={letter_model}",
        "run_name=first",
        "max_steps=2",
        "optimizer_steps_per_batch=2",
        "prompts_per_step=4",
        "evaluation.every_steps=0",
        "checkpoint_every_steps=1",
    ]
    done = run([sys.executable, recipe.name, *CHOICES, *small], recipe.parent)
    assert done.returncode == 0, done.stdout + done.stderr
    resume = [sys.executable, "-m", "recipes.cli", "resume", "runs/first", "max_steps=3"]
    done = run(resume, recipe.parent)
    assert done.returncode == 0, done.stdout + done.stderr
    lines = (recipe.parent / "runs" / "first" / "metrics.jsonl").read_text().splitlines()
    rows = [row for row in map(json.loads, lines) if row["step"] > 0]
    assert [row["step"] for row in rows] == [1, 2, 3]
    assert all(row["saturation"] is not None and row["optimizer_steps"] == 2 for row in rows)
