"""The demo of `grpo_qwen` with a language model as its reward: a judge in engines of its own.

A tiny judge, made and warmed up on first use (`recipes/judge_warmup.py`), scores what the tiny policy answers. Judge,
policy and trainer share the two devices. Held-out accuracy is by the true reward, so that a policy which learns to
please its judge is seen. `judge.model=` and `judge.endpoint=` name another judge, `data=` other questions.
"""

from __future__ import annotations

from pydantic import Field

from recipes import grpo_qwen
from recipes.running import Program, run_recipe
from roll_ray.judge_settings import JudgeSettings

MADE_JUDGE, JUDGED = "made", "judged"


class Settings(grpo_qwen.Settings):
    """The demo's values, with a judge on the first device."""

    judge: JudgeSettings = Field(
        default_factory=lambda: JudgeSettings(model=MADE_JUDGE, max_new_tokens=32),
        description="The judge; `made` as its model: the tiny one of `recipes/judge_warmup.py`.",
    )


def build(settings: Settings) -> Program:
    """The pipeline that these settings describe. Training prompts are judged, held-out ones have the true reward."""
    from dataclasses import replace

    from envs.judge import JudgeReward
    from envs.sorted_judge import judge_reward
    from recipes.judge_warmup import judge_model
    from recipes.pipeline import Pipeline

    demo = settings.data is None
    settings, task = grpo_qwen.with_task(settings)
    if settings.judge.model == MADE_JUDGE and settings.judge.in_the_run:
        judge = settings.judge.model_copy(update={"model": str(judge_model())})
        settings = settings.model_copy(update={"judge": judge})
    train = [replace(prompt, domain=JUDGED) for prompt in task.train]
    reward = judge_reward() if demo else JudgeReward()
    return Pipeline(settings, replace(task, train=train, rewards={**task.rewards, JUDGED: reward}))


if __name__ == "__main__":
    run_recipe(Settings, build)
