"""Two tasks at once, each with its own reward: GRPO on a mix of domains.

The demo's tiny Qwen3, warmed up on both tasks, learns to sort letters and to reverse them. Half of the prompts of a
step are of each domain (`domain_weights`), a prompt's domain picks its reward worker, and reward, accuracy and
lengths are told of each: `reward_mean/sort_letters`, `heldout_accuracy/reverse_letters`.
"""

from __future__ import annotations

from pathlib import Path

from pydantic import Field

from recipes import grpo_qwen
from recipes.running import Program, run_recipe
from roll_ray.settings import Weight

MIXED_MODEL = "mixed"
WARMUP_STEPS, EXAMPLES_PER_STEP = 240, 48


class Settings(grpo_qwen.Settings):
    """The values of `grpo_qwen`'s demo, over two domains."""

    model: str = Field(
        MIXED_MODEL, description="A model folder or hub name; `mixed`: a tiny Qwen3 warmed up on both tasks."
    )
    domain_weights: dict[str, Weight] = Field(
        default_factory=lambda: {"sort_letters": 1.0, "reverse_letters": 1.0},
        description="How the two domains are mixed.",
    )

    def problems(self) -> list[str]:
        """This recipe makes its prompts; data that it would pass over is refused."""
        named = {"data": self.data, "evaluation.data": self.evaluation.data}
        return super().problems() + [
            f"{name}={source} would not be read, this recipe makes its own prompts: leave it out, or write a recipe "
            "with a reward for each domain of your data (docs/rewards.md)"
            for name, source in named.items()
            if source is not None
        ]


def build(settings: Settings) -> Program:
    """The pipeline that these settings describe."""
    from envs import reverse_letters, sort_letters
    from recipes.pipeline import Pipeline
    from recipes.task import Task

    if settings.model == MIXED_MODEL:
        settings = settings.model_copy(update={"model": str(mixed_model())})
    tasks = (sort_letters, reverse_letters)
    task = Task(
        train=[prompt for t in tasks for prompt in t.training_prompts(seed=settings.seed)],
        heldout=[prompt for t in tasks for prompt in t.heldout_prompts()],
        rewards={t.DOMAIN: t.reward for t in tasks},
    )
    return Pipeline(settings, task)


def mixed_model() -> Path:
    """The tiny Qwen3 after a supervised warm-up on both tasks in equal parts, made on first use."""
    from envs import reverse_letters, sort_letters
    from recipes import sft_warmup
    from recipes.taught_models import examples_file, taught_model

    n = WARMUP_STEPS * EXAMPLES_PER_STEP // 2
    examples = [*sort_letters.training_prompts(n), *reverse_letters.training_prompts(n)]
    file = examples_file("sort-and-reverse", examples)
    return taught_model(
        sft_warmup.Settings(data=str(file), steps=WARMUP_STEPS, examples_per_step=EXAMPLES_PER_STEP)
    )


if __name__ == "__main__":
    run_recipe(Settings, build)
