"""The page docs/foreign_agents.md says what is true: its agent plays through OpenAI's client in a run of two steps."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from recipes.recipe_files import load_recipe
from recipes.tiny_models import make_tiny_qwen3
from roll_ray.recording import load_batch
from roll_ray.sample import Role
from workers.proxy_calls import MODEL, RefusedError, chat_call
from workers.tokenizer import ModelTokenizer, load_tokenizer

PAGE = (Path(__file__).parents[2] / "docs" / "foreign_agents.md").read_text()
TEMPLATE = (
    "{% for m in messages %}{% if m['role'] == 'assistant' %}>{{ m['content'] }}<eos>"
    "{% else %}{{ m['content'] }}{% endif %}{% endfor %}{% if add_generation_prompt %}>{% endif %}"
)


@pytest.fixture
def recipe(tmp_path: Path) -> Path:
    (code,) = re.findall(r"```python\n(.*?)```", PAGE, re.S)
    path = tmp_path / "guess_agent.py"
    path.write_text(code)
    return path


@pytest.fixture
def chat_model(tmp_path: Path) -> Path:
    """The demo's untrained model, with a chat template."""
    folder = make_tiny_qwen3(tmp_path / "chat")
    (folder / "chat_template.jinja").write_text(TEMPLATE)
    return folder


def refused(body: dict[str, object]) -> bool:
    try:
        chat_call({"model": MODEL, "messages": [{"role": "user", "content": "hello"}], **body})
    except RefusedError:
        return True
    return False


def test_the_agent_of_the_page_is_short() -> None:
    (agent,) = re.findall(r"^async def guess.*?^    return 0.0", PAGE, re.S | re.M)
    assert len(agent.splitlines()) <= 13


def test_the_parameters_of_the_page_are_taken_or_refused_as_it_says() -> None:
    table = re.split(r"^\*\*Parameters", PAGE, flags=re.M)[1].split("\n\n")[1]
    examples = {
        "messages": [{"role": "user", "content": "hello"}],
        "logprobs": True,
        "stream": True,
        "metadata": {},
        "tools": [{"type": "function"}],
        "functions": [{"name": "f"}],
        "response_format": {"type": "json_object"},
    }
    rows = [row for row in table.splitlines()[2:] if row]
    assert len(rows) == 8
    for row in rows:
        names = re.findall(r"`(\w+)`", row.split("|")[1])
        for name in set(names) - {"prompt"}:
            assert refused({name: examples.get(name, 2)}) is ("refused" in row.split("|")[2]), name


def test_the_file_of_the_page_is_a_recipe(recipe: Path) -> None:
    loaded = load_recipe(str(recipe))
    assert loaded.doc.startswith("An agent plays guess-a-number")
    assert loaded.settings_class(model="m").sampling.max_new_tokens == 16


@pytest.mark.engine
def test_the_agent_of_the_page_plays_in_a_run_and_its_calls_are_trained_on(
    recipe: Path, chat_model: Path
) -> None:
    words = [
        *("max_steps=2", "prompts_per_step=4", "samples_per_prompt=4", "sampling.max_new_tokens=4"),
        *("evaluation.every_steps=2", "evaluation.sampling.max_new_tokens=4", "checkpoint_every_steps=0"),
        *(f"model={chat_model}", "run_name=first", f"record={recipe.parent / 'recorded'}"),
    ]
    done = subprocess.run(
        [sys.executable, recipe.name, *words],
        cwd=recipe.parent,
        env={**os.environ, "ROLL_RAY_HOME": str(recipe.parent / "home")},
        capture_output=True,
        text=True,
        timeout=280,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    lines = (recipe.parent / "runs" / "first" / "metrics.jsonl").read_text().splitlines()
    rows = [row for row in map(json.loads, lines) if row["reward_mean"] is not None]
    assert [row["step"] for row in rows] == [1, 2]
    assert all(row["logprob_difference_max"] < 1e-3 for row in rows)
    tokenizer = load_tokenizer(str(chat_model))
    files = sorted((recipe.parent / "recorded").glob("step-*/*.npz"))
    assert sum(played(file, tokenizer) for file in files) == 2 * 4 * 4


def played(file: Path, tokenizer: ModelTokenizer) -> int:
    """How many episodes a recorded file holds, all of them of one to four answers with the agent's words between."""
    batch = load_batch(file)
    for begin, end in zip(batch.offsets[:-1], batch.offsets[1:], strict=True):
        tokens, roles = batch.tokens_T[begin:end], batch.roles_T[begin:end]
        assert tokenizer.decode(tokens[roles == Role.PROMPT]) == "guess my number, 0 to 9.>"
        given = tokenizer.decode(tokens[roles == Role.ENVIRONMENT])
        assert re.fullmatch(r"((say a digit|higher|lower)\.>)*", given), given
        n_answers = int((np.diff((roles == Role.POLICY).astype(int), prepend=0) == 1).sum())
        assert n_answers <= 4
        assert (batch.versions_T[begin:end][roles == Role.POLICY] >= 0).all()
    return len(batch.ids)
