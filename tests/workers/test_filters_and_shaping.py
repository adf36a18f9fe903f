"""Dynamic sampling and reward shaping through manager, runners, stores and scripted engines."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from envs.task import ScoredView
from roll_ray.algorithms.shaping import Shaping
from roll_ray.sample import Reward, SamplingDistribution
from schedulers.visit_filter import VisitFilter
from tests.workers.rollout_bench import Bench, make_prompt
from workers import runner_links
from workers.episode_runner import EpisodeRunner
from workers.rollout_manager import RolloutManager


@pytest.fixture(autouse=True)
def _quick_polls(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runner_links, "REPORT_TIMEOUT_S", 0.5)


def run(bench: Bench, story: Callable[[Bench], Awaitable[Any]]) -> None:
    async def whole() -> None:
        try:
            await asyncio.wait_for(story(bench), 20)
        finally:
            await bench.close()

    asyncio.run(whole())


def number_of(view: ScoredView) -> int:
    return int(view.prompt.id[1:])


def solved_or_hopeless(view: ScoredView) -> float:
    """Prompts 1, 4, 7, ... are always right, 2, 5, 8, ... never; of the others every second answer is."""
    kind = number_of(view) % 3
    return float(view.sample.index % 2) if kind == 0 else float(kind == 1)


def test_prompts_of_equal_rewards_are_replaced_and_the_stores_forget_them(tmp_path: Path) -> None:
    async def story(bench: Bench) -> None:
        for step in range(2):
            samples = await bench.step(step)
            rewards: dict[str, set[float]] = {}
            for sample in samples:
                assert sample.reward.value is not None
                rewards.setdefault(sample.visit.prompt_id, set()).add(sample.reward.value)
            assert len(rewards) == bench.p
            assert set(map(frozenset, rewards.values())) == {frozenset({0.0, 1.0})}
        await asyncio.sleep(0.05)
        assert [s.instance.metrics()["samples"] for s in bench.stores] == [0, 0]
        assert all(not r.instance._books.handles() for r in bench.runners)
        metrics = await bench.manager.call(RolloutManager.metrics)
        assert metrics["visits_trained"] == 2 * bench.p
        assert metrics["visits_filtered"] >= 4 * (bench.p - 1)
        assert metrics["visits_invalid"] == 0

    run(Bench(tmp_path, reward=solved_or_hopeless, keep=VisitFilter()), story)


def test_a_difficulty_band_takes_only_prompts_that_are_neither_too_hard_nor_too_easy(tmp_path: Path) -> None:
    def a_quarter_more_each_prompt(view: ScoredView) -> float:
        return float(view.sample.index < number_of(view) % 5)

    async def story(bench: Bench) -> None:
        samples = await bench.step(0)
        assert {int(s.visit.prompt_id[1:]) % 5 for s in samples} <= {1, 2}

    band = VisitFilter(drop_equal=False, mean_above=0.1, mean_below=0.75)
    run(Bench(tmp_path, reward=a_quarter_more_each_prompt, keep=band), story)


def test_data_without_signal_stop_the_run_and_say_so(tmp_path: Path) -> None:
    async def story(bench: Bench) -> None:
        with pytest.raises(AssertionError, match=r"filtered 7 visits, more than 2 times the 3 prompts"):
            await bench.step(0)

    run(Bench(tmp_path, keep=VisitFilter(max_batches=2)), story)


def test_a_manager_that_dies_goes_on_filtering(tmp_path: Path) -> None:
    async def story(bench: Bench) -> None:
        await bench.offer(0, bench.p, starts_step=True)
        await bench.cut(0)
        bench.manager.kill()
        await bench.manager.instance.close()
        bench.manager.restart()
        samples = await bench.finish(0)
        assert {int(s.visit.prompt_id[1:]) % 3 for s in samples} == {0}

    run(Bench(tmp_path, reward=solved_or_hopeless, keep=VisitFilter()), story)


def test_rewards_of_training_are_shaped_part_by_part_and_those_of_evaluation_are_not(tmp_path: Path) -> None:
    # prompt i is answered with 9 + i tokens, so from prompt 1 on the last four tokens before 13 are touched
    shaping = Shaping(limit_tokens=13, overlong_cache_tokens=4, repetition_weight=0.5, repetition_ngram=2)

    async def story(bench: Bench) -> None:
        for sample in await bench.step(0):
            i = int(sample.visit.prompt_id[1:])
            assert sample.reward.value == pytest.approx(1.0 - 0.25 * i)
            assert sample.reward.parts == {"score": 1.0, "overlong": -0.25 * i, "repetition": 0.0}
        prompts = [make_prompt(i) for i in range(3)]
        answers = await bench.runners[0].call(EpisodeRunner.evaluate, prompts, SamplingDistribution(), 16)
        assert [(a.reward.value, a.reward.parts) for a in answers] == [(1.0, {})] * 3

    run(Bench(tmp_path, spec={"shaping": shaping}), story)


def test_an_invalid_reward_is_shaped_into_nothing(tmp_path: Path) -> None:
    def judged(view: ScoredView) -> Reward:
        return Reward.invalid("no verdict") if number_of(view) == 1 else Reward(1.0)

    async def story(bench: Bench) -> None:
        samples = await bench.step(0)
        assert {s.visit.prompt_id for s in samples} == {"p000", "p002", "p003"}

    run(Bench(tmp_path, reward=judged, spec={"shaping": Shaping(13, 4)}), story)
