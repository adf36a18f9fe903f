"""Ten thousand mixed rewards leave nothing behind: no process, no thread, no open file, no memory (case 18)."""

from __future__ import annotations

import asyncio
import os
import resource
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from typing import Any, TypeVar

from envs.judge import JudgeReward
from envs.maths import MathsVerifier
from envs.reward_parts import AnyRewardFunction, OverlongCharacters, RepeatedWords, WeightedReward
from envs.task import ScoredView
from envs.tool_calls import ToolCallValidity
from roll_ray.actors import LocalActor
from roll_ray.sample import Prompt, Reward
from tests.envs.sandbox_needed import bubblewrap  # noqa: F401
from workers.reward_client import RewardClient
from workers.reward_worker import RewardWorker

T = TypeVar("T")
N_REWARDS = 10_000
IN_FLIGHT = 250
MEMORY_MB = 12.0


@dataclass(frozen=True)
class Held:
    """What this process holds; memory in MB."""

    children: int
    threads: int
    files: int
    memory_mb: float

    @staticmethod
    def now() -> Held:
        children = sum(len(p.read_text().split()) for p in Path("/proc/self/task").glob("*/children"))
        pages = int(Path("/proc/self/statm").read_text().split()[1])
        memory_mb = pages * resource.getpagesize() / 1e6
        return Held(children, threading.active_count(), len(os.listdir("/proc/self/fd")), memory_mb)


def plain(view: ScoredView) -> float:
    if view.response_text.endswith("7"):
        raise ValueError("this function does not like sevens")
    return len(view.response_text) / 10


async def a_judge(text: str) -> str:
    await asyncio.sleep(0)
    return ("Score: 8/10", "fine", "[[3]]", '{"score": 0.5}')[hash(text) % 4]


FUNCTIONS: dict[str, AnyRewardFunction] = {
    "maths": MathsVerifier(),
    "plain": plain,
    "judged": JudgeReward(a_judge, pause_s=0.0),
    "weighted": WeightedReward(
        {
            "correct": (1.0, MathsVerifier()),
            "short": (0.1, OverlongCharacters(50, 10)),
            "repeats": (0.1, RepeatedWords(2)),
            "tools": (0.1, ToolCallValidity({})),
            "judge": (0.5, JudgeReward(a_judge, pause_s=0.0)),
        }
    ),
}


def view_of(i: int) -> ScoredView:
    domain = sorted(FUNCTIONS)[i % len(FUNCTIONS)]
    answer = (
        rf"so it is \boxed{{{i % 50}}}",
        rf"\boxed{{\sqrt{{{i % 9}}}}}" if i // 16 % 8 == 0 else rf"\boxed{{\frac{{{i % 9}}}{{2}}}}",
        f"no box, {i}",
        "<think>",
    )[i // 4 % 4]
    return ScoredView(Prompt(f"p{i}", text="?", domain=domain, reference=str(i % 50)), answer)


async def score(client: RewardClient, begin: int, end: int) -> list[Reward]:
    rewards: list[Reward] = []
    for first in range(begin, end, IN_FLIGHT):
        views = [view_of(i) for i in range(first, min(end, first + IN_FLIGHT))]
        rewards += await asyncio.gather(*(client.score(view) for view in views))
    return rewards


async def held_at_rest(client: RewardClient) -> Held:
    """With the helper that compares formulas running: on a busy machine it may just have been ended for its time."""
    roots = [v for v in map(view_of, range(400)) if v.domain == "maths" and "sqrt" in v.response_text]
    assert roots
    for view in roots:
        await client.score(view)
    return Held.now()


def alone(story: Callable[[], Coroutine[Any, Any, T]]) -> T:
    """The story in a process of its own: what other tests leave in this one comes and goes."""
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        return pool.submit(_told, story).result()


def _told(story: Callable[[], Coroutine[Any, Any, T]]) -> T:
    return asyncio.run(story())


async def mixed_rewards() -> tuple[Held, Held, list[Reward]]:
    workers = [RewardWorker({d: lambda f=f: f for d, f in FUNCTIONS.items()}, 2) for _ in range(2)]
    client = RewardClient([LocalActor(w, f"reward-{i}") for i, w in enumerate(workers)], 60.0)
    await client.start()
    await score(client, 0, N_REWARDS // 5)  # caches and pools are filled
    before = await held_at_rest(client)
    rewards = await score(client, 0, N_REWARDS)
    after = await held_at_rest(client)
    await client.close()
    return before, after, rewards


def test_ten_thousand_mixed_rewards_leave_nothing_behind() -> None:
    before, after, rewards = alone(mixed_rewards)
    assert len(rewards) == N_REWARDS
    assert 0.3 < sum(r.valid for r in rewards) / N_REWARDS < 0.95, "both kinds of verdict are among them"
    assert before.children >= 1, "the helper that compares formulas is counted"
    assert (after.children, after.threads, after.files) == (before.children, before.threads, before.files)
    assert after.memory_mb - before.memory_mb < MEMORY_MB, f"{before} -> {after}"


PROGRAMS = (
    "print(sum(map(int, input().split())))",
    "print(7)",
    "print(1)",
    "raise SystemExit(3)",
    "import os; os.fork()",
)


async def code_rewards() -> tuple[Held, Held, list[Reward]]:
    from envs.code import CodeVerifier

    def view(i: int) -> ScoredView:
        info = {"tests": [{"stdin": "3 4\n", "expected_stdout": "7\n"}]}
        prompt = Prompt(f"c{i}", text="?", domain="code", info=info)
        return ScoredView(prompt, f"```python\n{PROGRAMS[i % 5]}\n```")

    worker = RewardWorker({"code": CodeVerifier}, 2)
    await worker.score_many([view(i) for i in range(20)])
    before = Held.now()
    rewards = await worker.score_many([view(i) for i in range(100)])
    return before, Held.now(), rewards


def test_code_rewards_keep_one_sandbox_a_thread_and_nothing_else(bubblewrap: None) -> None:  # noqa: F811
    before, after, rewards = alone(code_rewards)
    assert [r.value for r in rewards[:3]] == [1.0, 1.0, 0.0], [r.reason for r in rewards[:3]]
    assert (after.threads, after.files) == (before.threads, before.files)
    assert after.children <= before.children
    assert after.memory_mb - before.memory_mb < MEMORY_MB
