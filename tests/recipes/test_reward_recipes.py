"""The recipes of several domains and of a judge: short, planned without torch or Ray, refusing what they pass over."""

from __future__ import annotations

import importlib
import subprocess
import sys
from pathlib import Path

import pytest

from roll_ray.settings_io import load_settings

RECIPES = Path(__file__).parents[2] / "recipes"


@pytest.mark.parametrize("name", ["rlvr_mixed", "rlvr_judge"])
def test_a_recipe_is_under_100_lines_and_its_plan_loads_neither_torch_nor_ray(
    name: str, tmp_path: Path
) -> None:
    assert len((RECIPES / f"{name}.py").read_text().splitlines()) < 100
    program = (
        "import sys; from recipes.cli import main; code = main(['plan', sys.argv[1]]);"
        "print([m for m in ('torch', 'ray', 'vllm', 'openai') if m in sys.modules]); sys.exit(code)"
    )
    command = [sys.executable, "-c", program, str(RECIPES / f"{name}.py")]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.splitlines()[-1] == "[]"
    assert ("judge-0 (share 1/3)" in done.stdout) == (name == "rlvr_judge")


def test_the_mix_refuses_data_that_it_would_pass_over(tmp_path: Path) -> None:
    recipe = importlib.import_module("recipes.rlvr_mixed")
    (problem,) = load_settings(recipe.Settings, ["data=mine.jsonl"]).problems()
    assert problem.startswith("data=mine.jsonl would not be read")


def test_the_weights_of_the_mix_name_its_domains() -> None:
    from envs import reverse_letters, sort_letters

    recipe = importlib.import_module("recipes.rlvr_mixed")
    weights = load_settings(recipe.Settings, []).domain_weights
    assert set(weights) == {sort_letters.DOMAIN, reverse_letters.DOMAIN}
