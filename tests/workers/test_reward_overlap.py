"""A reward starts the moment its response ends; what order statistics predict of waiting is computed rightly."""

from __future__ import annotations

import asyncio

import numpy as np
import pytest

from benchmarks.reward_overlap import MEAN_S, SPREAD_S, played_s, predicted, step_s


def test_rewards_run_beside_the_generation_of_other_responses() -> None:
    seconds = asyncio.run(step_s(np.asarray([0.0, 0.4, 0.8]), reward_s=0.4, slots=1))
    assert 1.2 <= seconds < 1.9, "rewards after all responses would take 2.0 s"


def test_an_episode_waits_for_no_other() -> None:
    generation = np.asarray([[0.3, 0.0], [0.0, 0.3]])
    seconds = asyncio.run(played_s(generation, np.zeros((2, 2)), by_turn=False))
    assert 0.3 <= seconds < 0.55, "turn by turn takes 0.6 s"
    assert asyncio.run(played_s(generation, np.zeros((2, 2)), by_turn=True)) >= 0.6


@pytest.mark.parametrize(("episodes", "turns"), [(1, 3), (16, 1), (256, 5)])
def test_the_prediction_is_what_many_draws_give(episodes: int, turns: int) -> None:
    rng = np.random.default_rng(0)
    tries = 400_000 // (episodes * turns)
    drawn = np.maximum(0, rng.normal(MEAN_S, SPREAD_S, (tries, 2, episodes, turns)))
    by_turn = drawn.max(2).sum((1, 2)).mean()
    alone = drawn.sum((1, 3)).max(1).mean()
    assert predicted(episodes, turns) == pytest.approx(by_turn / alone, rel=0.02)
