"""Lite PPO ("Part I: Tricks or Traps?", 2508.08221) on a Qwen-architecture model.

PPO's clipped loss without a critic and without a KL term, and two techniques on top: advantages are a reward
less the mean of its prompt's group over the standard deviation of the whole batch, and the loss is the mean
over all tokens of the batch. Nothing else.
"""

from __future__ import annotations

from pydantic import Field

from recipes import grpo_qwen
from recipes.running import Program, run_recipe
from roll_ray.algorithm_settings import EstimatorName


class Settings(grpo_qwen.Settings):
    """The demo of `grpo_qwen`, trained with Lite PPO."""

    adv_estimator: EstimatorName = Field(
        "lite_ppo", description="Mean of the group, standard deviation of the batch."
    )
    clip_high: float = Field(0.2, gt=0, description="As below: no clip-higher.")


def build(settings: Settings) -> Program:
    """The pipeline that these settings describe."""
    return grpo_qwen.build(settings)


if __name__ == "__main__":
    run_recipe(Settings, build)
