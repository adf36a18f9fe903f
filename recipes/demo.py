"""The demo of `grpo_qwen`: its model, made and warmed up on first use, and its task."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from envs import sort_letters
from recipes import sft_warmup
from recipes.made_models import is_made
from recipes.task import Task
from roll_ray.errors import RollRayError
from roll_ray.settings import RunSettings


def demo_model() -> Path:
    """The folder of the warmed-up tiny Qwen3. It is made in a process of its own, whose memory is free again."""
    settings = sft_warmup.Settings()
    folder = settings.folder()
    if not is_made(folder, settings.record()):
        print(f"making the demo's model, once: {settings.steps} supervised steps", flush=True)
        done = subprocess.run([sys.executable, "-m", "recipes.sft_warmup"], check=False)
        if done.returncode:
            raise RollRayError(
                "the demo's model could not be made",
                why=f"recipes/sft_warmup.py ended with exit code {done.returncode}; its words are above",
                next_step="mend the cause, or name another model with model=",
            )
    return folder


def sort_letters_task(settings: RunSettings) -> Task:
    """Ten thousand prompts to train on, 400 others to evaluate on, 1 for the exact answer."""
    return Task(
        sort_letters.training_prompts(seed=settings.seed),
        sort_letters.heldout_prompts(),
        rewards={sort_letters.DOMAIN: sort_letters.reward},
    )
