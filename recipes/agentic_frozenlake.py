"""An agent of many turns walks over FrozenLake: it reads a map, moves, reads the next one, up to twelve times.

A tiny Qwen3 that has watched some walks (`lake_warmup`) says one of L, D, R, U a turn; the environment
answers with the map and the walker on it, and the reward is 1 at the goal. Walks come by the same places again
and again, so advantages compare turns that were played from the same map and place (GiGPO, 2505.10978).
"""

from __future__ import annotations

from pydantic import Field

from recipes.lake_warmup import CONTEXT
from recipes.running import Program, run_recipe
from roll_ray.algorithm_settings import EstimatorName
from roll_ray.settings import EngineSettings, EvaluationSettings, RunSettings, SamplingSettings

WARMED_UP = "warmed up"


class Settings(RunSettings):
    """16 maps x 8 walks a step; 256 maps that no training has seen are walked over greedily."""

    reported = frozenset({"steps", "states"})

    model: str = Field(
        WARMED_UP,
        description="A model folder or hub name; `warmed up`: the tiny Qwen3 of lake_warmup, made once.",
    )
    maps: int = Field(2000, gt=0, description="Maps to train on.")
    slippery: bool = Field(False, description="Two thirds of the moves slip to a side.")
    prompts_per_step: int = Field(16, gt=0, description="P: maps in the batch of one step.")
    samples_per_prompt: int = Field(8, gt=0, description="R: walks over each map.")
    max_steps: int = Field(120, gt=0, description="Training steps of the run.")
    learning_rate: float = Field(1e-3, ge=0, description="AdamW learning rate.")
    adv_estimator: EstimatorName = Field("gigpo", description="Advantages of turns (2505.10978).")
    gamma: float = Field(0.95, gt=0, le=1, description="Discount of a later turn's reward.")
    max_prompt_tokens: int = Field(32, gt=0, description="Prompts longer than this are dropped and counted.")
    tokens_per_device: int = Field(16384, gt=0, description="At most so many tokens in one micro-batch.")
    sampling: SamplingSettings = Field(
        default_factory=lambda: SamplingSettings(max_new_tokens=1), description="One letter a turn."
    )
    evaluation: EvaluationSettings = Field(
        default_factory=lambda: EvaluationSettings(
            every_steps=40, sampling=SamplingSettings(temperature=0.0, max_new_tokens=1)
        ),
        description="The likeliest moves on the held-out maps.",
    )
    engine: EngineSettings = Field(
        default_factory=lambda: EngineSettings(max_model_len=CONTEXT, kv_cache_mb=64),
        description="Rollout engines.",
    )

    def problems(self) -> list[str]:
        return super().problems() + self.unread_data("write a recipe of your own (docs/environments.md)")


def build(settings: Settings) -> Program:
    """The pipeline that these settings describe."""
    from envs.frozen_lake import DOMAIN, FrozenLake, heldout_prompts, training_prompts
    from recipes import lake_warmup
    from recipes.pipeline import Pipeline
    from recipes.task import Task
    from recipes.taught_models import taught_model

    compact = settings.model == WARMED_UP
    if compact:
        made = taught_model(lake_warmup.Settings(seed=settings.seed), "lake_warmup")
        settings = settings.model_copy(update={"model": str(made)})
    train = training_prompts(settings.maps, settings.seed, slippery=settings.slippery, compact=compact)
    heldout = heldout_prompts(slippery=settings.slippery, compact=compact)
    return Pipeline(settings, Task(train, heldout, environments={DOMAIN: FrozenLake}))


if __name__ == "__main__":
    run_recipe(Settings, build)
