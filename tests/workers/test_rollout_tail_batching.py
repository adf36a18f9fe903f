"""Tail batching over the live rollout side: aborts reach the engines, deferred prompts outlive steps and restarts."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from schedulers.protocol import Launch, SampleId, Visit
from schedulers.tail_batching import TailBatching
from tests.workers.rollout_bench import Bench
from workers import engine_client, reward_client, runner_links, store_client
from workers.rollout_manager import RolloutManager

P, R = 2, 2
TAIL_TOKENS = 200


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (engine_client, reward_client, runner_links, store_client):
        monkeypatch.setattr(module, "RETRY_INTERVAL_S", 0.01)
    monkeypatch.setattr(runner_links, "REPORT_TIMEOUT_S", 0.5)


def bench_at(folder: Path, session: str = "s") -> Bench:
    """Short rounds of 3 prompts x 3 responses, of which 2 x 2 are trained; every fifth prompt is long."""
    make = partial(TailBatching, P, R, 1.5, 1.5)
    return Bench(
        folder, p=P, r=R, session=session, tail_tokens=TAIL_TOKENS, max_new_tokens=400, make_scheduler=make
    )


def run(bench: Bench, story: Callable[[Bench], Awaitable[Any]]) -> Any:
    async def whole() -> Any:
        try:
            return await asyncio.wait_for(story(bench), 20)
        finally:
            await bench.close()

    return asyncio.run(whole())


async def queue_of(bench: Bench) -> list[Visit]:
    state = await bench.manager.call(RolloutManager.state)
    return [Visit(prompt_id, number) for prompt_id, number, *_ in state["scheduler"]["queue"]]


async def engines_idle(bench: Bench) -> None:
    while any(engine.instance._running for engine in bench.engines):
        await asyncio.sleep(0.001)


def test_what_is_deferred_stops_at_the_engines_and_is_trained_from_scratch_in_a_long_round(
    tmp_path: Path,
) -> None:
    async def story(bench: Bench) -> None:
        seen: set[Visit] = set()
        kinds, reattempted = [], 0
        for step in range(9):
            wanted = await bench.manager.call(RolloutManager.prompts_wanted)
            queued = await queue_of(bench)
            samples = await bench.step(step)
            kinds.append("short" if wanted else "long")
            visits = {s.visit for s in samples}
            assert not visits & seen, "trained twice"
            seen |= visits
            if not wanted:
                assert visits == set(queued[:P])
                reattempted += sum(s.attempt > 0 for s in samples)
            await engines_idle(bench)
            queue = await queue_of(bench)
            for runner in bench.runners:
                assert {v for visits, _ in runner.instance._books.handles() for v in visits} == set(queue)
        assert kinds == ["short", "short", "long"] * 3
        assert reattempted == 3 * P * R
        assert any(len(s.tokens_T) > TAIL_TOKENS for s in samples), "the last round was a long one"
        await asyncio.sleep(0.02)
        metrics = await bench.manager.call(RolloutManager.metrics)
        assert metrics["visits_queued"] == 0
        assert metrics["tokens_aborted"] > 0
        assert metrics["wasted_tokens"] >= metrics["tokens_aborted"]
        assert [s.instance.metrics()["samples"] for s in bench.stores] == [0, 0]

    run(bench_at(tmp_path), story)


def test_a_short_round_does_not_wait_for_its_long_prompt(tmp_path: Path) -> None:
    async def story(bench: Bench) -> None:
        bench.drawn = 1  # prompts 1 to 3: the last of them is long
        samples = await bench.step(0)
        assert max(len(s.tokens_T) for s in samples) < 20
        assert await queue_of(bench) == [Visit("p003", 0)]

    run(bench_at(tmp_path), story)


def test_a_manager_that_dies_between_rounds_keeps_the_queue_and_its_prompts(tmp_path: Path) -> None:
    async def story(bench: Bench) -> None:
        await bench.step(0)
        await bench.step(1)
        queued = await queue_of(bench)
        bench.manager.kill()
        await bench.manager.instance.close()
        bench.manager.restart()
        samples = await bench.step(2)
        assert {s.visit for s in samples} == set(queued)

    run(bench_at(tmp_path), story)


def test_a_run_that_is_resumed_asks_for_the_prompts_of_the_queue_and_goes_on_with_them(
    tmp_path: Path,
) -> None:
    async def before(bench: Bench) -> tuple[dict[str, Any], list[Visit], dict[str, Any]]:
        await bench.step(0)
        await bench.step(1)
        state = json.loads(json.dumps(await bench.manager.call(RolloutManager.state)))
        return state, await queue_of(bench), bench.prompts

    state, queued, prompts = run(bench_at(tmp_path), before)
    assert len(queued) == P

    async def after(bench: Bench) -> None:
        bench.prompts |= prompts
        bench.drawn = len(prompts)
        lacking = await bench.manager.call(RolloutManager.restore, state)
        assert sorted(lacking) == sorted(queued)
        await bench.manager.call(RolloutManager.renew_prompts, lacking, [prompts])
        samples = await bench.step(2)
        assert {s.visit for s in samples} == set(queued)
        await bench.step(3)

    run(bench_at(tmp_path, session="another"), after)


def test_a_repeated_offer_of_no_prompts_begins_a_long_round_once(tmp_path: Path) -> None:
    async def story(bench: Bench) -> None:
        await bench.step(0)
        await bench.step(1)
        await bench.offer(2, 0, starts_step=True)
        await bench.offer(2, 0, starts_step=True)
        await bench.finish(2)
        metrics = await bench.manager.call(RolloutManager.metrics)
        assert metrics["long_rounds"] == 1

    run(bench_at(tmp_path), story)


def test_a_launch_that_is_aborted_before_it_was_sent_is_not_sent(tmp_path: Path) -> None:
    async def story(bench: Bench) -> None:
        await bench.manager.call(RolloutManager.start)
        links, visit = bench.manager.instance._runners, Visit("p000", 0)
        await links.hand_out([visit], [{}])
        links.launch(Launch(visit, (0, 1), 0))
        links.abort([SampleId(visit, i) for i in (0, 1)])
        links.launch(Launch(Visit("p001", 0), (0, 1), 0))
        links.abort([SampleId(Visit("p001", 0), 0)])
        assert links.held_back == [Launch(Visit("p001", 0), (1,), 0)], "its prompt is missing"
        await asyncio.sleep(0.05)
        assert not any(runner.instance._attempts for runner in bench.runners)
        assert not any(n for n, _ in links._router.load().values())

    run(bench_at(tmp_path), story)
