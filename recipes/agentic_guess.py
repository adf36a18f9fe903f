"""An agent of many turns: it guesses a number from 1 to 15 in four turns and learns to bisect.

A tiny Qwen3 with random weights says one letter a turn, the environment answers `<`, `>` or `=`, and the reward is 1
for the number found. Whoever guesses blindly wins 4 games of 15; only bisection always wins. Nobody shows it: GRPO
(2402.03300) over whole episodes, group mean with the batch's standard deviation, loss on the agent's own letters.
"""

from __future__ import annotations

from pydantic import Field

from envs.guess_number import COMPACT_CHARACTERS, HIGHEST, MAX_TURNS
from recipes.running import Program, run_recipe
from roll_ray.algorithm_settings import EstimatorName
from roll_ray.settings import EngineSettings, EvaluationSettings, RunSettings, SamplingSettings

NEW_MODEL = "new"


class Settings(RunSettings):
    """16 numbers x 16 games a step: a few minutes on two CPU cores."""

    reported = frozenset({"steps", "states"})

    model: str = Field(
        NEW_MODEL, description="A model folder or hub name; `new`: a tiny Qwen3 with random weights."
    )
    highest: int = Field(HIGHEST, gt=1, le=HIGHEST, description="The numbers are 1 to this.")
    max_turns: int | None = Field(MAX_TURNS, gt=0, description="Guesses of a game.")
    prompts_per_step: int = Field(16, gt=0, description="P: games in the batch of one step.")
    samples_per_prompt: int = Field(16, gt=0, description="R: episodes of each game.")
    max_steps: int = Field(1200, gt=0, description="Training steps of the run.")
    learning_rate: float = Field(1e-3, ge=0, description="AdamW learning rate.")
    adv_estimator: EstimatorName = Field(
        "lite_ppo", description="Group mean, batch standard deviation (2508.08221)."
    )
    entropy_coefficient: float = Field(0.003, ge=0, description="Weight of the policy's entropy.")
    max_prompt_tokens: int = Field(8, gt=0, description="Prompts longer than this are dropped and counted.")
    sampling: SamplingSettings = Field(
        default_factory=lambda: SamplingSettings(max_new_tokens=1), description="One letter a turn."
    )
    evaluation: EvaluationSettings = Field(
        default_factory=lambda: EvaluationSettings(
            every_steps=200, sampling=SamplingSettings(temperature=0.0, max_new_tokens=1)
        ),
        description="The likeliest letters on each number once.",
    )
    engine: EngineSettings = Field(
        default_factory=lambda: EngineSettings(max_model_len=64, kv_cache_mb=16),
        description="Rollout engines.",
    )
    checkpoint_every_steps: int = Field(200, ge=0, description="Checkpoint interval; 0: only at the end.")

    def problems(self) -> list[str]:
        return super().problems() + self.unread_data("write a recipe of your own (docs/environments.md)")


def build(settings: Settings) -> Program:
    """The pipeline that these settings describe."""
    from envs.guess_number import DOMAIN, GuessNumber, prompts
    from recipes.pipeline import Pipeline
    from recipes.task import Task
    from recipes.tiny_models import make_character_qwen3
    from roll_ray.home import models_dir

    compact = settings.model == NEW_MODEL
    if compact:
        folder = models_dir() / f"guess-{settings.seed}"
        made = make_character_qwen3(folder, COMPACT_CHARACTERS, settings.seed, context=64)
        settings = settings.model_copy(update={"model": str(made)})
    games = prompts(settings.highest, settings.max_turns or MAX_TURNS, compact=compact)
    return Pipeline(settings, Task(games, games, environments={DOMAIN: GuessNumber}))


if __name__ == "__main__":
    run_recipe(Settings, build)
