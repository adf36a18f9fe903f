"""Code rewards give up soon where correct programs are known to be quick, and remember it in copies and checkpoints."""

from __future__ import annotations

import json
import pickle

import pytest

from envs.code import CodeVerifier
from envs.code_timeouts import AdaptiveCode
from envs.reward_parts import LearningReward, WeightedReward
from envs.sandbox import Limits
from envs.task import ScoredView
from roll_ray.sample import Prompt
from tests.envs.sandbox_needed import bubblewrap  # noqa: F401

ENDLESS = "while True: pass"


def view(program: str) -> ScoredView:
    prompt = Prompt("p", text="echo", info={"tests": ["assert True"]})
    return ScoredView(prompt, f"```python\n{program}\n```")


@pytest.mark.usefixtures("bubblewrap")
def test_an_endless_program_is_given_up_as_soon_as_correct_ones_are_known_to_be_quick() -> None:
    reward = AdaptiveCode(CodeVerifier(Limits(timeout_s=20.0)))
    assert reward(view("x = 1")).value == 1.0
    (anchor,) = reward.learnt()["anchors_s"].items()
    assert 1.5 * anchor[1] < 20.0
    said = reward(view(ENDLESS))
    assert said.value == 0.0
    assert "time-out: more than" in said.reason
    assert "more than 20 s" not in said.reason


def test_a_copy_in_a_worker_learns_by_itself_and_takes_in_what_a_checkpoint_holds() -> None:
    reward = AdaptiveCode()
    assert reward.timeouts.timeout_s("p/0") == 30.0
    copy = pickle.loads(pickle.dumps(reward))
    copy.verifier.on_correct("p/0", 4.0)
    assert copy.verifier.timeout_of("p/0") == 6.0
    assert reward.verifier.timeout_of("p/0") == 30.0
    learnt = json.loads(json.dumps(copy.learnt()))
    reward.learn(learnt)
    assert reward.verifier.timeout_of("p/0") == 6.0


def test_a_weighted_reward_keeps_what_its_parts_learn() -> None:
    code, resumed = AdaptiveCode(), AdaptiveCode()
    code.timeouts.correct_run("p/0", 4.0)
    mixed = WeightedReward({"code": (1.0, code), "plain": (0.1, lambda view: 1.0)})
    assert isinstance(mixed, LearningReward)
    WeightedReward({"code": (1.0, resumed), "plain": (0.1, lambda view: 1.0)}).learn(mixed.learnt())
    assert resumed.timeouts.timeout_s("p/0") == 6.0
