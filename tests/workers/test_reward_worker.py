"""A reward is a finite number or invalid with a reason; no fault of a verifier is ever a 0."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

from envs.reward_parts import AnyRewardFunction
from envs.task import ScoredView
from roll_ray.actors import LocalActor
from roll_ray.sample import Prompt, Reward
from workers.reward_client import RewardClient
from workers.reward_worker import RewardWorker


def view(text: str = "4", domain: str = "maths") -> ScoredView:
    return ScoredView(Prompt("p", text="2 + 2", domain=domain, reference="4"), text)


def score(function: AnyRewardFunction, *views: ScoredView, **kwargs: Any) -> list[Reward]:
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
    class Hanging(RewardWorker):
        async def score_many(self, views: Sequence[ScoredView]) -> list[Reward]:
            await asyncio.sleep(60)
            return []

        async def domains(self) -> list[str]:  # type: ignore[override]
            first, self.greeted = not self.greeted, True
            await asyncio.sleep(0 if first else 60)
            return ["maths"]

        greeted = False

    async def story() -> Reward:
        worker = Hanging({"maths": lambda: lambda view: 1.0})
        client = RewardClient([LocalActor(worker, "reward-0")], 0.05)
        await client.start()
        return await client.score(view())

    reward = asyncio.run(story())
    assert reward.reason == "not scored in 3 attempts: reward-0 did not answer within 0.05 s"


def test_a_worker_with_much_to_do_is_waited_for() -> None:
    async def story() -> list[Reward]:
        client = client_of(lambda view: time.sleep(0.04) or 1.0, timeout_s=0.02)  # type: ignore[func-returns-value]
        await client.start()
        return await asyncio.gather(*(client.score(view(domain="d0")) for _ in range(12)))

    assert [r.value for r in asyncio.run(story())] == [1.0] * 12


async def later(view: ScoredView) -> float:
    await asyncio.sleep(0.05)
    return 0.5


def test_an_async_function_is_awaited_many_at_once() -> None:
    begun_s = time.monotonic()
    rewards = score(later, *[view() for _ in range(32)], n_threads=2)
    assert [r.value for r in rewards] == [0.5] * 32
    assert time.monotonic() - begun_s < 0.5, "one after another takes 1.6 s"


def test_awaited_rewards_out_of_time_are_invalid_and_waiting_for_a_turn_does_not_count() -> None:
    async def hangs(view: ScoredView) -> float:
        await asyncio.sleep(60 if view.response_text == "hang" else 0.06)
        return 1.0

    async def story() -> list[Reward]:
        worker = RewardWorker({"maths": lambda: hangs}, n_threads=1, timeout_s=0.1)
        return await worker.score_many([view("hang"), *[view() for _ in range(40)]])

    rewards = asyncio.run(story())
    assert rewards[0] == Reward.invalid("verifier timed out after 0.1 s")
    assert all(r.value == 1.0 for r in rewards[1:])


@pytest.mark.parametrize("raised", [ValueError("no"), TimeoutError("the server")])
def test_what_an_async_function_raises_is_the_reason(raised: Exception) -> None:
    async def broken(view: ScoredView) -> float:
        raise raised

    (reward,) = score(broken)
    assert reward.reason == f"{type(raised).__name__}: {raised}"


def test_the_last_invalid_reward_can_be_shown_whole() -> None:
    async def story() -> tuple[str, str]:
        worker = RewardWorker({"maths": lambda: lambda view: float(view.response_text)})
        before = worker.invalid_example()
        await worker.score_many([view("4"), view("four")])
        return before, worker.invalid_example()

    before, after = asyncio.run(story())
    assert before == ""
    for shown in ("2 + 2", "four", "reference: 4", "invalid (ValueError: could not convert"):
        assert shown in after


def test_what_a_reward_function_learns_goes_from_one_worker_into_another() -> None:
    class Counting:
        def __init__(self):
            self.seen = 0

        def __call__(self, view):
            self.seen += 1
            return 1.0

        def learnt(self):
            return {"seen": self.seen}

        def learn(self, learnt):
            self.seen = max(self.seen, learnt["seen"])

    worker = RewardWorker({"maths": Counting, "plain": lambda: lambda view: 0.0})
    asyncio.run(worker.score_many([view(), view()]))
    assert worker.learnt() == {"maths": {"seen": 2}}
    other = RewardWorker({"maths": Counting})
    other.learn({**worker.learnt(), "elsewhere": {"seen": 9}})
    assert other.learnt() == worker.learnt()
