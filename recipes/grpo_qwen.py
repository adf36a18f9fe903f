"""GRPO (2402.03300) on a Qwen-architecture model.

Each step samples R answers to each of P prompts, scores every answer, turns the rewards of one prompt's
answers into advantages (r - mean) / std, and takes one PPO-clip step on all tokens that the policy wrote.
There is no critic: the siblings are the baseline.

As it stands it trains the demo, a tiny Qwen3 that learns to sort letters, on two CPU cores. `model=` and
`data=` make it a maths run: any Hugging Face causal model, JSONL, Parquet or hub data with answers.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, TypeVar

from pydantic import Field

from recipes.running import Program, run_recipe
from roll_ray.settings import EngineSettings, EvaluationSettings, RunSettings, SamplingSettings

if TYPE_CHECKING:
    from recipes.task import Task

S = TypeVar("S", bound=RunSettings)
DEMO_MODEL = "demo"


class Settings(RunSettings):
    """The demo's values; `roll-ray plan recipes/grpo_qwen.py` shows them all."""

    model: str = Field(
        DEMO_MODEL, description="A model folder or hub name; `demo`: the made and warmed-up tiny Qwen3."
    )
    prompts_per_step: int = Field(32, gt=0, description="P: prompts in the batch of one step.")
    samples_per_prompt: int = Field(8, gt=0, description="R: responses of each prompt.")
    max_steps: int = Field(300, gt=0, description="Training steps of the run.")
    learning_rate: float = Field(1e-4, ge=0, description="AdamW learning rate.")
    warmup_steps: int = Field(20, ge=0, description="Linear warm-up over so many optimizer steps.")
    lr_schedule: Literal["constant", "linear"] = Field(
        "linear",
        description="After warm-up: decay to 0 at the end of the run, so that it ends where it settles.",
    )
    clip_high: float = Field(0.28, gt=0, description="Clip-higher of DAPO (2503.14476).")
    max_prompt_tokens: int = Field(64, gt=0, description="Prompts longer than this are dropped and counted.")
    sampling: SamplingSettings = Field(
        default_factory=lambda: SamplingSettings(max_new_tokens=12),
        description="Sampling of training rollouts.",
    )
    evaluation: EvaluationSettings = Field(
        default_factory=lambda: EvaluationSettings(
            every_steps=50, sampling=SamplingSettings(temperature=0.0, max_new_tokens=12)
        ),
        description="Held-out evaluation.",
    )
    engine: EngineSettings = Field(
        default_factory=lambda: EngineSettings(max_running_requests=256), description="Rollout engines."
    )


def build(settings: Settings) -> Program:
    """The pipeline that these settings describe."""
    from recipes.pipeline import Pipeline

    return Pipeline(*with_task(settings))


def with_task(settings: S) -> tuple[S, Task]:
    """The settings with the model's folder, and what is trained on."""
    from envs.maths import score
    from recipes.demo import demo_model, sort_letters_task
    from recipes.prompts import prompts_of
    from recipes.sources import check_data
    from recipes.task import Task

    if settings.model == DEMO_MODEL:
        check_data(settings)
        settings = settings.model_copy(update={"model": str(demo_model())})
    if settings.data is None:
        return settings, sort_letters_task(settings)
    train, heldout = prompts_of(settings)
    return settings, Task(train, heldout, rewards={p.domain: score for p in train})


if __name__ == "__main__":
    run_recipe(Settings, build)
