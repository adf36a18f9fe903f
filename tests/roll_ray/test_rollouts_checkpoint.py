"""What a checkpoint holds of live rollouts comes back: data order, the manager, prompts of deferred visits, rewards."""

from __future__ import annotations

import asyncio
from typing import Any

from roll_ray.actors import LocalActor
from roll_ray.data_stream import PromptStream
from roll_ray.rollouts import LiveRollouts
from roll_ray.sample import Prompt
from schedulers.protocol import Visit

PROMPTS = [Prompt(f"p{i}", text=str(i)) for i in range(5)]


class Manager:
    """Holds one deferred visit and knows no prompts."""

    def __init__(self) -> None:
        self.deferred: list[Visit] = []
        self.books: list[Any] = []

    async def state(self) -> dict[str, Any]:
        return {"deferred": [list(v) for v in self.deferred]}

    async def restore(self, state: dict[str, Any]) -> list[Visit]:
        self.deferred = [Visit(*v) for v in state["deferred"]]
        return self.deferred

    async def renew_prompts(self, visits: list[Visit], prompts_ref: Any) -> None:
        self.books.append((visits, prompts_ref))

    async def metrics(self) -> dict[str, float]:
        return {}


class Reward:
    def __init__(self, learnt: dict[str, Any]) -> None:
        self.known = [learnt] if learnt else []

    def learnt(self) -> dict[str, Any]:
        return self.known[0] if self.known else {}

    def learn(self, learnt: dict[str, Any]) -> None:
        self.known.append(learnt)


class Here:
    def put(self, value: Any) -> Any:
        return value


def rollouts(manager: Manager, rewards: list[Reward]) -> LiveRollouts:
    async def nothing() -> str:
        return ""

    return LiveRollouts(
        manager=LocalActor(manager, "manager"),  # type: ignore[arg-type]
        stores={},
        rewards=[LocalActor(reward, f"reward-{i}") for i, reward in enumerate(rewards)],  # type: ignore[misc]
        prompts=PromptStream(PROMPTS, seed=0),
        objects=Here(),
        mini_batches=1,
        ranks=1,
        say_waiting=print,
        example=nothing,
    )


def test_a_restored_run_has_the_queue_with_its_prompts_and_what_the_rewards_learnt() -> None:
    async def story() -> None:
        before = rollouts(Manager(), [Reward({"code": 1}), Reward({}), Reward({"code": 2})])
        drawn = before.prompts.draw(3)
        before.manager.instance.deferred = [drawn[1][0]]  # type: ignore[attr-defined]
        state = await before.state()
        manager, rewards = Manager(), [Reward({}), Reward({})]
        after = rollouts(manager, rewards)
        await after.restore(state)
        visit, prompt = drawn[1]
        assert manager.books == [([visit], [{prompt.id: prompt}])]
        assert [reward.known for reward in rewards] == [[{"code": 1}, {"code": 2}]] * 2
        assert after.prompts.draw(1) == before.prompts.draw(1)

    asyncio.run(story())
