"""The recipes of agents: planned without anything heavy, they say what their environments report; how the lake's model
is warmed up."""

from __future__ import annotations

import itertools
import subprocess
import sys
from pathlib import Path

import pytest

from envs.frozen_lake import GOAL, HOLE, Lake, heldout_prompts, training_prompts
from recipes import agentic_frozenlake, agentic_guess
from recipes.lake_warmup import CONTEXT, moves
from roll_ray.errors import SettingsError
from roll_ray.settings import RunSettings
from roll_ray.settings_io import read_settings

ROOT = Path(__file__).parents[2]
RECIPES = {"agentic_guess": agentic_guess.Settings, "agentic_frozenlake": agentic_frozenlake.Settings}


@pytest.mark.parametrize("name", sorted(RECIPES))
def test_a_plan_loads_no_torch_and_accepts_every_estimator_of_turns(name: str, tmp_path: Path) -> None:
    block = "import sys; sys.modules.update(torch=None, ray=None, vllm=None, transformers=None)\n"
    lines = [
        f"from recipes.cli import main; sys.exit(main(['plan', {str(ROOT / 'recipes' / name)!r} + '.py']))"
    ]
    done = subprocess.run(
        [sys.executable, "-c", block + "\n".join(lines)],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    for estimator in ("gigpo", "step_returns", "segment_returns", "grpo"):
        assert read_settings(RECIPES[name], [f"adv_estimator={estimator}"]).problems() == []


@pytest.mark.parametrize("settings_class", RECIPES.values())
def test_data_that_would_not_be_read_is_refused(settings_class: type[RunSettings]) -> None:
    with pytest.raises(SettingsError, match=r"data=answers\.jsonl would not be read"):
        read_settings(settings_class, ["data=answers.jsonl"])


def test_a_walk_is_taught_move_by_move_with_all_that_was_seen_before() -> None:
    (one,) = training_prompts(1, seed=3, compact=True)
    rows = list(moves([one], skill=1.0, seed=0))
    lake, start = Lake.read(one.text or "")
    assert len(rows) == lake.distances()[start], "a shortest path"
    assert rows[0].text == one.text
    for before, after in itertools.pairwise(rows):
        assert (after.text or "").startswith((before.text or "") + (before.reference or "?"))
    walker = start
    for row in rows:
        assert Lake.read(row.text or "") == (lake, walker)
        walker = lake.after(walker, row.reference or "")
        assert lake.cell(walker) != HOLE
    assert lake.cell(walker) == GOAL


def test_the_context_holds_the_longest_walk_and_no_held_out_map_is_walked_over() -> None:
    maps = training_prompts(200, seed=0, compact=True)
    rows = list(moves(maps, skill=0.0, seed=1))
    assert max(len(row.text or "") for row in rows) < CONTEXT
    held = {prompt.text for prompt in heldout_prompts(compact=True)}
    assert len(held) == 256
    assert held.isdisjoint(row.text for row in rows)
