"""A judge in the run is asked in tokens and answers in text; engines that die cost time, never a wrong score."""

from __future__ import annotations

import asyncio
import pickle
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from envs.judge import JudgeFailedError, JudgeReward
from envs.reward_parts import WeightedReward
from envs.task import ScoredView
from recipes.judges import judge_problems
from recipes.task import Task
from roll_ray.actors import LocalActor
from roll_ray.sample import Prompt
from roll_ray.settings import RunSettings
from tests.workers.rollout_bench import NumberTokenizer
from tests.workers.scripted_engine import MortalActor, ScriptedEngine, token_at
from workers.reward_judge import PoolJudge


class Tokenizer(NumberTokenizer):
    has_chat_template = False

    def end_token_ids(self) -> tuple[int, ...]:
        return (0,)


class ChatTokenizer(Tokenizer):
    has_chat_template = True

    def apply_chat_template(self, messages: Any) -> list[int]:
        return [99, *super().apply_chat_template(messages)]


def ask(
    story: Callable[[PoolJudge, list[MortalActor[ScriptedEngine]]], Awaitable[Any]],
    n_engines: int = 1,
    tokenizer: Any = None,
    timeout_s: float = 5.0,
) -> Any:
    async def whole() -> Any:
        engines = [
            MortalActor(lambda i=i: ScriptedEngine(f"judge-{i}", lambda request: 4, 2), f"judge-{i}")
            for i in range(n_engines)
        ]
        judge = PoolJudge("m", engines, max_new_tokens=9, timeout_s=timeout_s)
        judge._tokenizer = tokenizer or Tokenizer()
        try:
            return await story(judge, engines)
        finally:
            await judge.close()
            for engine in engines:
                engine.instance.stop()

    return asyncio.run(whole())


def answer_to(first: int, n_prompt_tokens: int) -> str:
    return " ".join(str(token_at(first, n_prompt_tokens + i)) for i in range(4))


def test_many_questions_at_once_are_each_answered_and_greedily() -> None:
    async def story(judge: PoolJudge, engines: list[MortalActor[ScriptedEngine]]) -> None:
        answers = await asyncio.gather(*(judge(f"{i} 2 3") for i in range(1, 20)))
        assert answers == [answer_to(i, 3) for i in range(1, 20)]
        asked = [request for engine in engines for request in engine.instance.submitted]
        assert {(r.sampling.temperature, r.max_new_tokens, r.stop_token_ids) for r in asked} == {
            (0.0, 9, (0,))
        }
        assert {len(engine.instance.submitted) > 0 for engine in engines} == {True}

    ask(story, n_engines=2)


def test_a_text_is_a_users_message_where_the_model_has_a_template() -> None:
    async def story(judge: PoolJudge, engines: list[MortalActor[ScriptedEngine]]) -> None:
        assert await judge("5 6") == answer_to(99, 3)

    ask(story, tokenizer=ChatTokenizer())


def test_a_judge_that_dies_is_waited_for() -> None:
    async def story(judge: PoolJudge, engines: list[MortalActor[ScriptedEngine]]) -> None:
        (engine,) = engines
        assert await judge("1 2") == answer_to(1, 2)
        engine.instance.hold = True
        waiting = asyncio.create_task(judge("3 4"))
        await asyncio.sleep(0.02)
        engine.kill()
        await asyncio.sleep(0.02)
        engine.restart()
        assert await waiting == answer_to(3, 2)

    ask(story)


def test_a_judge_that_stays_away_is_a_failed_call_that_names_it() -> None:
    async def story(judge: PoolJudge, engines: list[MortalActor[ScriptedEngine]]) -> None:
        engines[0].instance.hold = True
        with pytest.raises(JudgeFailedError, match=r"no answer within 0\.1 s from judge-0"):
            await judge("1 2")
        reward = await JudgeReward(judge, template="{answer}", attempts=2, pause_s=0.0)(
            ScoredView(Prompt("p", text="?"), "1 2")
        )
        assert reward.reason.startswith("judge failed: no answer within 0.1 s")

    ask(story, timeout_s=0.1)


def test_a_question_that_the_engine_refuses_is_not_asked_again() -> None:
    async def story(judge: PoolJudge, engines: list[MortalActor[ScriptedEngine]]) -> None:
        await judge("1 2")
        engines[0].instance.refuses = ValueError("the prompt has 900 tokens")
        with pytest.raises(JudgeFailedError, match="900 tokens") as caught:
            await judge("1 2")
        assert not caught.value.again

    ask(story)


def test_a_judge_travels_to_a_worker_before_and_after_it_was_asked() -> None:
    judge = PoolJudge("m", [], 9, 1.0)
    assert pickle.loads(pickle.dumps(judge)) == judge


def reward(view: ScoredView) -> float:
    return 1.0


@pytest.mark.parametrize(
    ("function", "judge", "problem"),
    [
        (reward, {}, ""),
        (JudgeReward(), {"model": "m"}, ""),
        (WeightedReward({"judge": (1.0, JudgeReward())}), {"model": "m"}, ""),
        (JudgeReward(), {}, "the reward of domain 'd' asks a judge, and judge.model is not set"),
        (WeightedReward({"judge": (1.0, JudgeReward())}), {}, "judge.model is not set"),
        (reward, {"model": "m"}, "no reward function asks a judge"),
    ],
)
def test_a_task_and_settings_that_disagree_about_a_judge_are_refused(
    function: Any, judge: dict[str, str], problem: str
) -> None:
    task = Task([Prompt("p", text="?", domain="d")], rewards={"d": function})
    problems = judge_problems(RunSettings(model="m", judge=judge), task)
    assert len(problems) == bool(problem)
    assert problem in "".join(problems)


def test_the_judge_of_the_settings_is_the_one_that_is_asked() -> None:
    from envs.judge_endpoint import EndpointJudge
    from recipes.judges import given_a_judge

    settings = RunSettings(model="m", judge={"model": "j", "endpoint": "http://h/v1", "timeout_s": 3})
    assert given_a_judge(JudgeReward(), settings, []).ask == EndpointJudge("j", "http://h/v1", timeout_s=3)
    engines = [LocalActor(ScriptedEngine("judge-0"), "judge-0")]
    settings = RunSettings(model="m", judge={"model": "j", "max_new_tokens": 7})
    assert given_a_judge(JudgeReward(), settings, engines).ask == PoolJudge("j", engines, 7, 15.0)
    assert given_a_judge(reward, settings, engines) is reward
