"""Synchronous training without the long tail: GRPO with RollPacker's tail batching (2509.21009).

The demo's task has a long tail: nine prompts of ten want a few letters, the tenth some fifty, and a synchronous step
waits for the longest. Here most steps do not: they launch a quarter more prompts and responses than they train, and
what is not among the first waits for a step of its own, in which all are long. Every token is trained under the weights
that wrote it. `scheduler=synchronous` is the same run without.
"""

from __future__ import annotations

from pathlib import Path

from pydantic import Field

from envs.sort_repeat import MAX_ANSWER_TOKENS
from recipes import grpo_qwen
from recipes.running import Program, run_recipe
from roll_ray.scheduler_settings import SchedulerName
from roll_ray.settings import EvaluationSettings, SamplingSettings

TAUGHT_MODEL = "taught"
WARMUP_STEPS, EXAMPLES_PER_STEP = 240, 48


class Settings(grpo_qwen.Settings):
    """The values of `grpo_qwen`'s demo, over a task with a long tail."""

    model: str = Field(
        TAUGHT_MODEL, description="A model folder or hub name; `taught`: a tiny Qwen3 warmed up on the task."
    )
    scheduler: SchedulerName = Field("tail_batching", description="Rollout scheduler.")
    sampling: SamplingSettings = Field(
        default_factory=lambda: SamplingSettings(max_new_tokens=MAX_ANSWER_TOKENS),
        description="Sampling of training rollouts.",
    )
    evaluation: EvaluationSettings = Field(
        default_factory=lambda: EvaluationSettings(
            every_steps=50, sampling=SamplingSettings(temperature=0.0, max_new_tokens=MAX_ANSWER_TOKENS)
        ),
        description="Held-out evaluation.",
    )


def build(settings: Settings) -> Program:
    """The pipeline that these settings describe."""
    from envs import sort_repeat
    from recipes.pipeline import Pipeline
    from recipes.sources import check_data
    from recipes.task import Task

    if settings.model == TAUGHT_MODEL:
        check_data(settings)
        settings = settings.model_copy(update={"model": str(taught())})
    if settings.data is not None:
        return Pipeline(*grpo_qwen.with_task(settings))
    task = Task(
        sort_repeat.training_prompts(seed=settings.seed),
        sort_repeat.heldout_prompts(),
        rewards={sort_repeat.DOMAIN: sort_repeat.reward},
    )
    return Pipeline(settings, task)


def taught() -> Path:
    """The tiny Qwen3 after a supervised warm-up on the task, made on first use."""
    from envs import sort_repeat
    from recipes import sft_warmup
    from recipes.taught_models import examples_file, taught_model

    examples = sort_repeat.training_prompts(WARMUP_STEPS * EXAMPLES_PER_STEP)
    file = examples_file(sort_repeat.DOMAIN, examples)
    return taught_model(
        sft_warmup.Settings(data=str(file), steps=WARMUP_STEPS, examples_per_step=EXAMPLES_PER_STEP)
    )


if __name__ == "__main__":
    run_recipe(Settings, build)
