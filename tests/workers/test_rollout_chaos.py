"""Everything dies at random, again and again, and each batch is still exact and each token still whole."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from pathlib import Path
from random import Random

import pytest

from schedulers.tail_batching import TailBatching
from tests.workers.rollout_bench import Bench
from workers import engine_client, reward_client, runner_links, store_client
from workers.rollout_manager import RolloutManager


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (engine_client, reward_client, runner_links, store_client):
        monkeypatch.setattr(module, "RETRY_INTERVAL_S", 0.005)
    monkeypatch.setattr(runner_links, "REPORT_TIMEOUT_S", 0.2)
    monkeypatch.setattr(engine_client, "GREETING_S", 0.05)


async def havoc(bench: Bench, random: Random, deaths: dict[str, int]) -> None:
    """Kill one actor after another; each comes back a little later."""
    while True:
        await asyncio.sleep(random.uniform(0.01, 0.04))
        kind = random.choice(["engines", "engines", "rewards", "stores", "runners", "manager"])
        actor = bench.manager if kind == "manager" else random.choice(getattr(bench, kind))
        deaths[kind] = deaths.get(kind, 0) + 1
        actor.kill()
        if kind in ("runners", "manager"):
            await actor.instance.close()  # a dead process does nothing any more
        await asyncio.sleep(random.uniform(0, 0.02))
        actor.restart()


def long_tail(folder: Path) -> Bench:
    make = partial(TailBatching, 3, 4, 1.5, 1.25, max_attempts=60)
    return Bench(folder, tick_s=0.004, tail_tokens=20, max_new_tokens=40, make_scheduler=make)


@pytest.mark.parametrize(
    ("seed", "make"),
    [
        *((seed, partial(Bench, tick_s=0.004, max_attempts=60)) for seed in range(5)),
        (5, long_tail),
        (6, long_tail),
    ],
)
def test_batches_stay_exact_while_everything_dies(
    tmp_path: Path, seed: int, make: Callable[[Path], Bench]
) -> None:
    async def story() -> None:
        bench = make(tmp_path)
        deaths: dict[str, int] = {}
        chaos = asyncio.create_task(havoc(bench, Random(seed), deaths))
        try:
            for step in range(4):
                await asyncio.wait_for(bench.step(step), 30)
                assert not chaos.done(), chaos.exception()
        finally:
            chaos.cancel()
            await asyncio.gather(chaos, return_exceptions=True)
        for actor in (*bench.engines, *bench.rewards, *bench.stores, *bench.runners, bench.manager):
            if actor.error is not None:
                actor.restart()
        await bench.step(4)
        assert deaths, "nothing died: nothing was shown"
        metrics = await bench.manager.call(RolloutManager.metrics)
        assert metrics["batches_trained"] == 5
        await bench.close()

    asyncio.run(story())
