"""HumanEval and MBPP: their lines are read, and their own solutions pass their own tests."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable
from pathlib import Path

import pytest

from envs.code import CodeVerifier
from envs.code_data import humaneval_prompts, mbpp_prompts
from envs.sandbox import Limits
from envs.task import ScoredView
from roll_ray.errors import DataError
from roll_ray.sample import Prompt
from tests.envs.sandbox_needed import bubblewrap  # noqa: F401

HUMANEVAL_LINE = {
    "task_id": "HumanEval/1000",
    "prompt": "def twice(x: int) -> int:\n    '''Two times x.'''\n",
    "entry_point": "twice",
    "canonical_solution": "    return 2 * x\n",
    "test": "def check(candidate):\n    assert candidate(2) == 4\n    assert candidate(0) == 0\n",
}
MBPP_LINE = {
    "task_id": 1000,
    "text": "Write a function to double a number.",
    "code": "class Unused: pass\ndef twice(x):\n    return 2 * x",
    "test_list": ["assert twice(2) == 4", "assert twice(0) == 0"],
    "test_setup_code": "",
}


def test_public_lines_are_read_plain_and_compressed(tmp_path: Path) -> None:
    plain, compressed = tmp_path / "a.jsonl", tmp_path / "a.jsonl.gz"
    plain.write_text(json.dumps(HUMANEVAL_LINE) + "\n\n")
    with gzip.open(compressed, "wt") as file:
        file.write(json.dumps({"doc": HUMANEVAL_LINE}))
    (prompt,) = humaneval_prompts(plain)
    assert [prompt] == humaneval_prompts(compressed)
    assert prompt.text == HUMANEVAL_LINE["prompt"]
    assert prompt.info["entry_points"] == ["twice"]


def test_an_mbpp_prompt_shows_its_tests_and_takes_only_what_they_use(tmp_path: Path) -> None:
    file = tmp_path / "mbpp.jsonl"
    file.write_text(json.dumps(MBPP_LINE))
    (prompt,) = mbpp_prompts(file)
    assert "assert twice(2) == 4" in prompt.shown()
    assert prompt.info["entry_points"] == ["twice"]
    assert prompt.id == "MBPP/1000"


def test_a_broken_line_names_file_and_line(tmp_path: Path) -> None:
    file = tmp_path / "mbpp.jsonl"
    file.write_text(json.dumps(MBPP_LINE) + "\n{")
    with pytest.raises(DataError, match=r"mbpp.jsonl, line 2"):
        mbpp_prompts(file)
    file.write_text("{}")
    with pytest.raises(DataError, match="no task_id"):
        mbpp_prompts(file)


@pytest.mark.usefixtures("bubblewrap")
@pytest.mark.parametrize(
    ("response", "value"),
    [
        ("    return 2 * x\n", 1.0),
        ("    return x\n", 0.0),
        ("```python\ndef twice(x):\n    return x + x\n```", 1.0),
    ],
)
def test_a_humaneval_prompt_is_continued_or_answered(response: str, value: float, tmp_path: Path) -> None:
    file = tmp_path / "a.jsonl"
    file.write_text(json.dumps(HUMANEVAL_LINE))
    (prompt,) = humaneval_prompts(file)
    assert CodeVerifier()(ScoredView(prompt, response)).value == value


@pytest.mark.engine
@pytest.mark.timeout(900)  # on a busy machine: some 20 s of CPU time
@pytest.mark.usefixtures("bubblewrap")
@pytest.mark.parametrize(("prompts", "count"), [(humaneval_prompts, 164), (mbpp_prompts, 500)])
def test_every_gold_solution_passes(prompts: Callable[[], list[Prompt]], count: int) -> None:
    verifier = CodeVerifier(limits=Limits(timeout_s=90.0))  # one of MBPP's takes some seconds
    rewards = {prompt.id: verifier(ScoredView(prompt, prompt.reference or "")) for prompt in prompts()}
    assert {id_: reward.reason for id_, reward in rewards.items() if reward.value != 1.0} == {}
    assert len(rewards) == count
