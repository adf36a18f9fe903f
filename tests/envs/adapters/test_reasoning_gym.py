"""reasoning-gym: prompts, its own scores, life without pycosat."""

from __future__ import annotations

import importlib.util
import json
import pickle
import sys

import pytest

from envs.adapters import reasoning_gym as rg
from envs.task import ScoredView
from roll_ray.errors import RollRayError
from roll_ray.sample import Prompt, Reward


def score(prompt: Prompt, text: str) -> Reward:
    return rg.reward(ScoredView(prompt, text))


@pytest.mark.parametrize("name", ["chain_sum", "letter_counting", "gsm_symbolic"])
def test_the_right_answer_scores_1_and_another_less(name: str) -> None:
    for prompt in rg.prompts(name, 5, seed=3):
        assert prompt.domain == name
        for text in (
            "<answer>{}</answer>",
            "<think>7?</think> {}",
            "<answer>0</answer> no: <answer> {} </answer>",
        ):
            assert score(prompt, text.format(prompt.reference)).value == 1.0
        wrong = score(prompt, "<answer>no idea</answer>")
        assert wrong.value is not None
        assert wrong.value < 0.1
        assert wrong.extracted == "no idea"


def test_prompts_are_decided_by_name_seed_and_configuration() -> None:
    first = rg.prompts("chain_sum", 4, seed=1, min_terms=2, max_terms=2)
    assert first == rg.prompts("chain_sum", 4, seed=1, min_terms=2, max_terms=2)
    assert [p.shown() for p in first] == [
        p.shown() for p in rg.prompts("chain_sum", 9, seed=1, min_terms=2, max_terms=2)[:4]
    ]
    other = rg.prompts("chain_sum", 4, seed=2, min_terms=2, max_terms=2)
    assert not {p.id for p in first} & {p.id for p in other}
    assert json.loads(json.dumps(first[0].info)) == first[0].info
    assert pickle.loads(pickle.dumps(rg.reward)) is rg.reward


def test_unknown_names_and_settings_are_refused() -> None:
    with pytest.raises(RollRayError, match=r"no data set 'sums'\n.*chain_sum"):
        rg.prompts("sums", 1, seed=0)
    with pytest.raises(RollRayError, match="does not take these settings"):
        rg.prompts("chain_sum", 1, seed=0, n_terms=3)
    with pytest.raises(RollRayError, match="does not take these settings"):
        rg.prompts("chain_sum", 1, seed=0, min_terms=5, max_terms=2)
    assert not score(Prompt("p", text="?"), "x").valid


def test_only_zebra_puzzles_miss_the_solver() -> None:
    if importlib.util.find_spec("pycosat") is not None:
        assert rg.prompts("zebra_puzzles", 1, seed=0)
        return
    with pytest.raises(RollRayError, match="need the solver pycosat"):
        rg.prompts("zebra_puzzles", 1, seed=0)
    assert "pycosat" not in sys.modules
