"""Makes the model that `agentic_frozenlake` starts from: a tiny Qwen3 that watched a walker who often errs.

    python recipes/lake_warmup.py

It learns what a move is and a little of what a map says, from whole walks: each row is all that was seen and done so
far, answered by the next move. No map of the held-out ones is among them.
"""

from __future__ import annotations

import asyncio
import random
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from pydantic import Field

from recipes.running import guarded
from roll_ray.sample import Prompt
from roll_ray.settings import StrictModel
from roll_ray.settings_io import load_settings

CONTEXT = 256
"""Tokens: 12 moves of the 4 x 4 lake, each with the map before it, are 216."""


class Settings(StrictModel):
    """What decides the model; equal settings give equal models."""

    walks: int = Field(1500, gt=0, description="Maps, each walked over once.")
    skill: float = Field(
        0.5, ge=0, le=1, description="Share of moves along a shortest path; others are random."
    )
    steps: int = Field(150, gt=0, description="Optimizer steps.")
    examples_per_step: int = Field(48, gt=0, description="Moves in the batch of one step.")
    seed: int = Field(0, ge=0, description="Seeds new weights, maps and moves.")


def warmed_up(settings: Settings) -> Path:
    """The folder of the model, made on first use."""
    from envs.frozen_lake import COMPACT_CHARACTERS, training_prompts
    from recipes import sft_warmup
    from recipes.taught_models import examples_file, taught_model
    from recipes.tiny_models import make_character_qwen3
    from roll_ray.home import models_dir

    new = make_character_qwen3(
        models_dir() / f"lake-new-{settings.seed}",
        COMPACT_CHARACTERS,
        settings.seed,
        layers=3,
        context=CONTEXT,
    )
    maps = training_prompts(settings.walks, settings.seed, compact=True)
    name = f"lake-walks-{settings.walks}-{settings.skill}-{settings.seed}"
    file = examples_file(name, list(moves(maps, settings.skill, settings.seed)))
    told = settings.model_dump(include={"steps", "examples_per_step", "seed"})
    return taught_model(sft_warmup.Settings(model=str(new), data=str(file), **told))


def moves(maps: Sequence[Prompt], skill: float, seed: int) -> Iterator[Prompt]:
    """A prompt for each move of a walk over each map: what was seen and done before, and the move as the answer."""
    from envs.frozen_lake import FrozenLake, demonstrated_move
    from envs.scripted import play_scripted, text_of

    rng = random.Random(seed)
    for one in maps:
        walk = asyncio.run(
            play_scripted(FrozenLake(), one, lambda seen: demonstrated_move(text_of(seen), rng, skill))
        )
        so_far = ""
        for i, (seen, move) in enumerate(zip(walk.observations_N, walk.responses_N, strict=True)):
            so_far += text_of(seen)
            yield Prompt(f"{one.id}/{i}", text=so_far, domain=one.domain, reference=move)
            so_far += move


def main(words: Sequence[str]) -> int:
    print(warmed_up(load_settings(Settings, words)))  # type: ignore[type-var]
    return 0


if __name__ == "__main__":
    sys.exit(guarded(lambda: main(sys.argv[1:])))
