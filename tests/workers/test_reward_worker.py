"""A reward is a finite number or invalid with a reason; no fault of a verifier is ever a 0."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from envs.task import RewardFunction, ScoredView
from roll_ray.actors import LocalActor
from roll_ray.sample import Prompt, Reward
from workers.reward_client import RewardClient
from workers.reward_worker import RewardWorker


def view(text: str = "4", domain: str = "maths") -> ScoredView:
    return ScoredView(Prompt("p", text="2 + 2", domain=domain, reference="4"), text)


def score(function: RewardFunction, *views: ScoredView, **kwargs: Any) -> list[Reward]:
    worker = RewardWorker({"maths": lambda: function}, **kwargs)
    return asyncio.run(worker.score_many(views or [view()]))


def test_each_response_gets_its_own_reward_in_order() -> None:
    def right(view: ScoredView) -> float:
        time.sleep(0.02 if view.response_text == "4" else 0)
        return float(view.response_text == view.reference)

    assert [r.value for r in score(right, view("4"), view("5"), view("4"))] == [1.0, 0.0, 1.0]


def test_a_verdict_with_a_reason_is_kept_whole() -> None:
    verdict = Reward(0.5, "half", extracted="4", parts={"format": 0.5})
    assert score(lambda view: verdict) == [verdict]


@pytest.mark.parametrize("returned", [float("nan"), float("inf"), None, "1", Reward(float("nan"))])
def test_what_is_no_finite_number_is_invalid_and_says_so(returned: Any) -> None:
    (reward,) = score(lambda view: returned)
    assert not reward.valid
    assert "not a finite number" in reward.reason


@pytest.mark.parametrize(
    "returned", [True, 1, 1.0, np.float32(1), np.bool_(True), np.int64(1), Reward(np.float32(1))]
)
def test_any_real_number_is_a_reward_and_a_python_float(returned: Any) -> None:
    (reward,) = score(lambda view: returned)
    assert reward == Reward(1.0)
    assert type(reward.value) is float


def test_an_exception_is_invalid_with_its_text_and_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    def broken(view: ScoredView) -> float:
        raise KeyError("reference")

    with caplog.at_level(logging.WARNING):
        rewards = score(broken, view(), view(), view())
    assert {r.reason for r in rewards} == {"KeyError: 'reference'"}
    assert not any(r.valid for r in rewards)
    assert sum("Traceback" in record.getMessage() for record in caplog.records) == 1


def test_a_verifier_out_of_time_is_invalid_and_holds_up_no_other() -> None:
    release = threading.Event()

    def slow(view: ScoredView) -> float:
        if view.response_text == "hang":
            release.wait(5)
        return 1.0

    begun_s = time.monotonic()
    views = [view("hang"), *[view() for _ in range(6)]]
    worker = RewardWorker({"maths": lambda: slow}, n_threads=1, timeout_s=0.2)
    rewards = asyncio.run(worker.score_many(views))
    release.set()
    assert time.monotonic() - begun_s < 2
    assert rewards[0] == Reward.invalid("verifier timed out after 0.2 s")
    assert all(r.value == 1.0 for r in rewards[1:])
    assert worker.metrics()["threads_abandoned"] == 1


def test_an_unknown_domain_lists_the_known_ones() -> None:
    (reward,) = score(lambda view: 1.0, view(domain="code"))
    assert reward == Reward.invalid("no reward function for domain 'code'; known: maths")


def test_ten_thousand_rewards_leave_no_thread_behind() -> None:
    async def many() -> tuple[int, int]:
        worker = RewardWorker({"maths": lambda: lambda view: 1.0}, n_threads=2)
        await worker.score_many([view()] * 100)
        before = threading.active_count()
        for _ in range(99):
            await worker.score_many([view()] * 100)
        return before, threading.active_count()

    before, after = asyncio.run(many())
    assert after <= before


def client_of(*functions: Callable[[ScoredView], float], timeout_s: float = 5.0) -> RewardClient:
    workers = [
        LocalActor(RewardWorker({f"d{i}": lambda f=f: f}, timeout_s=60), f"reward-{i}")
        for i, f in enumerate(functions)
    ]
    return RewardClient(workers, timeout_s)


def test_responses_go_to_a_worker_that_knows_their_domain() -> None:
    async def story() -> list[Reward]:
        client = client_of(lambda view: 0.25, lambda view: 0.75)
        await client.start()
        return await asyncio.gather(*(client.score(view(domain=d)) for d in ("d1", "d0", "d1", "other")))

    rewards = asyncio.run(story())
    assert [r.value for r in rewards] == [0.75, 0.25, 0.75, None]
    assert "known: d0, d1" in rewards[3].reason


def test_a_worker_that_never_answers_gives_an_invalid_reward_after_three_attempts() -> None:
    async def story() -> Reward:
        client = client_of(lambda view: time.sleep(1.0) or 1.0, timeout_s=0.05)  # type: ignore[func-returns-value]
        await client.start()
        return await client.score(view(domain="d0"))

    reward = asyncio.run(story())
    assert reward.reason == "not scored in 3 attempts: reward-0 did not answer within 0.05 s"
