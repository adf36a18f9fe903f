"""A model and a task with a long tail of lengths, for what is about stragglers."""

from __future__ import annotations

from pathlib import Path

from envs import sort_repeat
from recipes import sft_warmup
from recipes.task import Task
from recipes.taught_models import examples_file, taught_model
from roll_ray.settings import RunSettings

STEPS, EXAMPLES_PER_STEP = 200, 48


def long_tail_model() -> Path:
    """A tiny Qwen3 that was taught for 200 supervised steps to sort letters and repeat them."""
    examples = sort_repeat.training_prompts(STEPS * EXAMPLES_PER_STEP, seed=1)
    file = examples_file("sort-repeat", examples)
    return taught_model(sft_warmup.Settings(data=str(file), steps=STEPS, examples_per_step=EXAMPLES_PER_STEP))


def sort_repeat_task(settings: RunSettings) -> Task:
    """Ten thousand prompts to train on, 400 others to evaluate on, 1 for the exact answer."""
    return Task(
        sort_repeat.training_prompts(seed=settings.seed),
        sort_repeat.heldout_prompts(),
        rewards={sort_repeat.DOMAIN: sort_repeat.reward},
    )
