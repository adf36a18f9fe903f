"""Evaluation loses no prompt when runners go away in its middle."""

import asyncio

import pytest

from roll_ray import evaluation
from roll_ray.actors import ActorUnavailable, LocalActor, Pool
from roll_ray.errors import WorkerDiedError
from roll_ray.evaluation import Evaluator
from roll_ray.sample import Prompt, Reward
from roll_ray.settings import EvaluationSettings
from roll_ray.worker_protocols import EvaluationAnswer

PROMPTS = [Prompt(id=f"p{i}", text="x") for i in range(7)]


class Runner:
    def __init__(self, *faults):
        self.faults, self.answered = list(faults), []

    async def evaluate(self, prompts, sampling, max_new_tokens):
        if self.faults:
            raise self.faults.pop(0)
        self.answered += [p.id for p in prompts]
        return [EvaluationAnswer(p.id, "", Reward(float(p.id == "p0")), 3, 1) for p in prompts]


def evaluated(monkeypatch, *runners):
    monkeypatch.setattr(evaluation, "RETRY_INTERVAL_S", 0.001)
    pool = Pool("runner", [LocalActor(runner, f"runner-{i}") for i, runner in enumerate(runners)])
    metrics = asyncio.run(Evaluator(pool, PROMPTS, EvaluationSettings(every_steps=1), 9)(1))
    assert sorted(p for r in runners for p in r.answered) == [p.id for p in PROMPTS], "each once"
    return metrics


def away():
    return ActorUnavailable("runner-0", "its node is lost")


def test_what_a_lost_runner_had_is_answered_by_the_others(monkeypatch):
    metrics = evaluated(monkeypatch, Runner(away()), Runner())
    assert metrics["heldout_accuracy"] == pytest.approx(1 / 7)


def test_a_runner_that_is_dead_for_good_is_not_missed(monkeypatch):
    evaluated(monkeypatch, Runner(*[WorkerDiedError("runner-0 died")] * 9), Runner(), Runner())


def test_the_only_runner_is_awaited(monkeypatch):
    evaluated(monkeypatch, Runner(away(), away()))


def test_when_nobody_comes_back_the_reason_is_told(monkeypatch):
    monkeypatch.setattr(evaluation, "PATIENCE_S", 0.01)
    with pytest.raises(ActorUnavailable, match="its node is lost"):
        evaluated(monkeypatch, Runner(*[away()] * 1000))
