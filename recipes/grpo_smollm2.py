"""GRPO on a real pretrained model: SmolLM2-135M-Instruct learns to add one-digit numbers and say nothing else.

Some 15 minutes on two CPU cores, after `make smollm2` has fetched the model's package (93 MB). Asked "What is 3+4?
Answer with the number only.", the model starts out talking; the reward is 1 for the right number as the answer.
"""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from recipes.running import Program, run_recipe
from roll_ray.settings import EngineSettings, EvaluationSettings, RunSettings, SamplingSettings

PACKAGED_MODEL = "smollm2"


class Settings(RunSettings):
    """The settings of the curve in docs/smollm2.md."""

    model: str = Field(
        PACKAGED_MODEL,
        description="A model folder or hub name; `smollm2`: the packaged SmolLM2-135M-Instruct.",
    )
    prompts_per_step: int = Field(8, gt=0, description="P: prompts in the batch of one step.")
    samples_per_prompt: int = Field(8, gt=0, description="R: responses of each prompt.")
    max_steps: int = Field(40, gt=0, description="Training steps of the run.")
    learning_rate: float = Field(1e-5, ge=0, description="AdamW learning rate.")
    dtype: Literal["float32", "bfloat16"] = Field("bfloat16", description="Dtype of engine and forward pass.")
    max_prompt_tokens: int = Field(64, gt=0, description="Prompts longer than this are dropped and counted.")
    sampling: SamplingSettings = Field(
        default_factory=lambda: SamplingSettings(max_new_tokens=10),
        description="Sampling of training rollouts.",
    )
    evaluation: EvaluationSettings = Field(
        default_factory=lambda: EvaluationSettings(
            every_steps=10, sampling=SamplingSettings(temperature=0.0, max_new_tokens=10)
        ),
        description="Held-out evaluation.",
    )
    engine: EngineSettings = Field(
        default_factory=lambda: EngineSettings(kv_cache_mb=256), description="Rollout engines."
    )

    def problems(self) -> list[str]:
        """This recipe makes its prompts; data that it would pass over is refused."""
        named = {"data": self.data, "evaluation.data": self.evaluation.data}
        return super().problems() + [
            f"{name}={source} would not be read, this recipe makes its own prompts: leave it out, or run "
            "recipes/grpo_qwen.py with the folder that `python recipes/smollm2.py` prints as model="
            for name, source in named.items()
            if source is not None
        ]


def build(settings: Settings) -> Program:
    """The pipeline that these settings describe."""
    from envs import addition
    from recipes.pipeline import Pipeline
    from recipes.smollm2 import smollm2
    from recipes.task import Task

    if settings.model == PACKAGED_MODEL:
        settings = settings.model_copy(update={"model": str(smollm2())})
    train, heldout = addition.training_prompts(), addition.heldout_prompts()
    return Pipeline(settings, Task(train, heldout, rewards={addition.DOMAIN: addition.reward}))


if __name__ == "__main__":
    run_recipe(Settings, build)
