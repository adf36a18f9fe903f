"""Ranks as one trainer: sums merge, rejections leave the denominator once, numbers of a step are of that step."""

import asyncio

import numpy as np

from roll_ray.actors import LocalActor, Pool
from roll_ray.algorithms.metric_sums import MetricSum
from roll_ray.parts import MiniBatch, Share
from roll_ray.trainers import TrainerGroup


class Rank:
    def __init__(self, rejected, results):
        self.rejected, self.results, self.denominators = rejected, iter(results), []

    def train_on(self, extra_B, *sources):
        sums = {"loss_sum": MetricSum("sum", 1.5, 1)}
        return sums | ({"rejected_denominator": MetricSum("sum", self.rejected, 1)} if self.rejected else {})

    def step(self, denominator):
        self.denominators.append(denominator)
        return next(self.results)


def group_of(*ranks):
    return TrainerGroup(Pool("t", [LocalActor(rank, f"t-{i}") for i, rank in enumerate(ranks)]))


MINI_BATCH = MiniBatch((Share((), (), {"advantages": np.zeros(0)}), Share((), ())))


def test_what_the_ranks_rejected_is_taken_off_the_step_they_belong_to():
    ranks = [Rank(3.0, [{}, {}]), Rank(4.0, [{}, {}])]

    async def story(group):
        await group.accumulate(MINI_BATCH)
        await group.accumulate(MINI_BATCH)
        await group.step(100.0)
        await group.step(50.0)

    asyncio.run(story(group_of(*ranks)))
    assert [rank.denominators for rank in ranks] == [[86.0, 50.0]] * 2


def test_numbers_are_those_of_the_last_optimizer_step_and_steps_are_counted():
    steps = [
        {"loss": 1.0, "kl": 0.5, "optimizer_steps": 1.0, "step_skipped": 0.0},
        {"loss": 2.0, "optimizer_steps": 0.0, "step_skipped": 1.0},
        {"loss": 3.0, "optimizer_steps": 1.0, "step_skipped": 0.0},
    ]
    group = group_of(Rank(0.0, steps), Rank(0.0, steps))

    async def story():
        await group.accumulate(MINI_BATCH)
        for _ in range(2):
            await group.step(1.0)
        first = group.take_metrics()
        await group.step(1.0)
        return first, group.take_metrics()

    first, second = asyncio.run(story())
    assert first == {"loss_sum": 3.0, "loss": 2.0, "kl": 0.5, "optimizer_steps": 1.0, "step_skipped": 1.0}
    assert second == {"loss": 3.0, "optimizer_steps": 1.0, "step_skipped": 0.0}
