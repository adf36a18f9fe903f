"""The demo of `grpo_qwen`: its model, made and warmed up on first use, and its task."""

from __future__ import annotations

from pathlib import Path

from envs import sort_letters
from recipes import sft_warmup
from recipes.task import Task
from recipes.taught_models import taught_model
from roll_ray.settings import RunSettings


def demo_model() -> Path:
    """The folder of the warmed-up tiny Qwen3."""
    return taught_model(sft_warmup.Settings())


def sort_letters_task(settings: RunSettings) -> Task:
    """Ten thousand prompts to train on, 400 others to evaluate on, 1 for the exact answer."""
    return Task(
        sort_letters.training_prompts(seed=settings.seed),
        sort_letters.heldout_prompts(),
        rewards={sort_letters.DOMAIN: sort_letters.reward},
    )
