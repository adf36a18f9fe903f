"""Held-out answers are told of as a whole and by domain, and a limit on prompts leaves no domain out."""

import pytest

from roll_ray.errors import RollRayError
from roll_ray.evaluation import heldout_metrics, in_turns
from roll_ray.sample import Prompt, Reward
from roll_ray.worker_protocols import EvaluationAnswer


def answer(name, value, n_tokens=10):
    reward = Reward.invalid("no verdict") if value is None else Reward(value)
    return EvaluationAnswer(name, "text", reward, n_tokens, 1)


def test_each_domain_has_its_own_accuracy_and_an_invalid_one_is_not_0():
    answers = [answer("m0", 1.0), answer("m1", 0.5), answer("c0", 0.0, 40), answer("j0", None)]
    domains = {"m0": "maths", "m1": "maths", "c0": "code", "j0": "judged"}
    metrics = heldout_metrics(answers, domains)
    assert metrics["heldout_accuracy"] == 0.5
    assert (metrics["heldout_accuracy/maths"], metrics["heldout_accuracy/code"]) == (0.75, 0.0)
    assert "heldout_accuracy/judged" not in metrics
    assert (metrics["heldout_invalid_share/judged"], metrics["heldout_invalid_share"]) == (1.0, 0.25)
    assert metrics["heldout_tokens_mean/code"] == 40


def test_one_domain_is_told_of_once():
    assert set(heldout_metrics([answer("a", 1.0)], {"a": "d"})) == {
        "heldout_accuracy",
        "heldout_invalid_share",
        "heldout_tokens_mean",
    }


def test_no_valid_answer_at_all_is_an_error_with_the_reason():
    with pytest.raises(RollRayError, match="no verdict"):
        heldout_metrics([answer("a", None)], {"a": "d"})


def test_a_limit_takes_from_every_domain_in_turn():
    prompts = [
        Prompt(f"{d}{i}", text="?", domain=d) for d, n in (("maths", 6), ("code", 2)) for i in range(n)
    ]
    assert [p.id for p in in_turns(prompts, 6)] == ["maths0", "code0", "maths1", "code1", "maths2", "maths3"]
    assert in_turns(prompts[:6], 4) == prompts[:4]
