"""The recipes of agents: planned without anything heavy, they say what their environments report; how the lake's model
is warmed up."""

from __future__ import annotations

import random
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from envs.frozen_lake import COMPACT_ASK, GOAL, HOLE, Lake, heldout_prompts, training_prompts
from recipes import agentic_frozenlake, agentic_guess, lake_warmup
from recipes.lake_warmup import CONTEXT, walk
from roll_ray.errors import SettingsError
from roll_ray.sample import Role
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


class Letters:
    """One token a character: its code."""

    def encode(self, text: str) -> list[int]:
        return [ord(letter) for letter in text]

    def decode(self, token_ids: Sequence[int]) -> str:
        return "".join(map(chr, token_ids))

    def render_chat(self, messages: Any) -> str:
        raise AssertionError("there is no chat")

    apply_chat_template = render_chat  # type: ignore[assignment]


def test_a_taught_walk_is_the_agents_trajectory_of_a_shortest_path() -> None:
    (one,) = training_prompts(1, seed=3, compact=True)
    sample = walk(one, 1.0, random.Random(0), Letters())
    lake, walker = Lake.read(one.text or "")
    moves = Letters().decode(sample.tokens_T[sample.roles_T == Role.POLICY].tolist())
    assert len(moves) == lake.distances()[walker]
    seen = one.text or ""
    expected, roles = seen, [Role.PROMPT] * len(seen)
    for i, move in enumerate(moves):
        walker = lake.after(walker, move)
        assert lake.cell(walker) != HOLE
        shown = lake.view(walker).replace("\n", "") + COMPACT_ASK if i < len(moves) - 1 else ""
        expected += move + shown
        roles += [Role.POLICY] + [Role.ENVIRONMENT] * len(shown)
    assert lake.cell(walker) == GOAL
    assert Letters().decode(sample.tokens_T.tolist()) == expected
    assert sample.roles_T.tolist() == roles


def test_the_context_holds_the_longest_walk_and_no_held_out_map_is_walked_over() -> None:
    settings = lake_warmup.Settings(steps=4, examples_per_step=50, skill=0.0)
    taught = list(lake_warmup.batches(settings, Letters()))
    assert [len(batch) for batch in taught] == [50] * 4
    assert max(int(batch.lengths_B.max()) for batch in taught) < CONTEXT
    held = {prompt.id for prompt in heldout_prompts(compact=True)}
    assert len(held) == 256
    assert held.isdisjoint(visit.prompt_id for batch in taught for visit in batch.visits)
    shown = {prompt.text for prompt in heldout_prompts(compact=True)}
    texts = [
        Letters().decode(b.tokens_T[b.token_span(i)][:17].tolist()) for b in taught for i in range(len(b))
    ]
    assert shown.isdisjoint(texts)
