"""Makes the model that `agentic_frozenlake` starts from: a tiny Qwen3 that has watched some walks over the ice.

    python recipes/lake_warmup.py

The walker knows the way and often strays. What the model learns is what a move is and a little of what a map says: each
walk is one trajectory, as an agent's is, with the moves as the policy's tokens. No held-out map is among them.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import random
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import Field

from recipes.made_models import made_once
from recipes.running import guarded
from roll_ray.home import models_dir
from roll_ray.sample import Prompt, Reward, Role, Sample, SamplingDistribution, TrajectoryBuilder
from roll_ray.settings import StrictModel
from roll_ray.settings_io import load_settings
from schedulers.protocol import SampleId, Visit

if TYPE_CHECKING:
    from envs.task import Tokenizer
    from roll_ray.batch import Batch

CONTEXT = 256
"""Tokens: 12 moves on the 4 x 4 lake, each after a map, are 216."""


class Settings(StrictModel):
    """What decides the model; equal settings give equal models."""

    steps: int = Field(100, gt=0, description="Optimizer steps.")
    examples_per_step: int = Field(
        32, gt=0, description="Walks in the batch of one step, each over another map."
    )
    skill: float = Field(0.8, ge=0, le=1, description="Share of moves along a shortest path; others are any.")
    learning_rate: float = Field(3e-3, gt=0, description="AdamW learning rate, after warm-up constant.")
    warmup_steps: int = Field(10, ge=0, description="Linear warm-up over so many steps.")
    tokens_per_device: int = Field(8192, gt=0, description="At most so many tokens in one micro-batch.")
    seed: int = Field(0, ge=0, description="Seeds new weights, maps and moves.")

    def record(self) -> dict[str, Any]:
        """What a made model is recognised by."""
        return {"recipe": "lake_warmup", **self.model_dump(mode="json")}

    def folder(self) -> Path:
        words = json.dumps(self.record(), sort_keys=True).encode()
        return models_dir() / f"lake-{hashlib.blake2b(words, digest_size=4).hexdigest()}"


def warm_up(settings: Settings) -> Path:
    """The folder of the model; made now unless it is there with the same settings."""

    def fill(folder: Path) -> None:
        from envs.frozen_lake import COMPACT_CHARACTERS
        from recipes.sft import teach
        from recipes.tiny_models import make_character_qwen3
        from workers.tokenizer import load_tokenizer

        with tempfile.TemporaryDirectory() as scratch:
            new = Path(scratch) / "new"
            make_character_qwen3(new, COMPACT_CHARACTERS, settings.seed, layers=3, context=CONTEXT)
            teach(settings, str(new), folder, batches(settings, load_tokenizer(str(new))))

    return made_once(settings.folder(), settings.record(), fill)


def batches(settings: Settings, tokenizer: Tokenizer) -> Iterator[Batch]:
    """One for each step."""
    from envs.frozen_lake import training_prompts
    from roll_ray.batch import Batch

    n, rng = settings.examples_per_step, random.Random(settings.seed)
    maps = training_prompts(settings.steps * n, settings.seed, compact=True)
    for begin in range(0, len(maps), n):
        yield Batch.of([walk(one, settings.skill, rng, tokenizer) for one in maps[begin : begin + n]])


def walk(one: Prompt, skill: float, rng: random.Random, tokenizer: Tokenizer) -> Sample:
    """A walk over one map as if the policy had taken it."""
    from envs.frozen_lake import FrozenLake, demonstrated_move
    from envs.scripted import play_scripted, text_of

    def move(seen: Any) -> str:
        return demonstrated_move(text_of(seen), rng, skill)

    walked, tokens = asyncio.run(play_scripted(FrozenLake(), one, move)), TrajectoryBuilder()
    for seen, moved in zip(walked.observations_N, walked.responses_N, strict=True):
        role = Role.ENVIRONMENT if len(tokens.tokens) else Role.PROMPT
        tokens.append_given(tokenizer.encode(text_of(seen)), role)
        letters = tokenizer.encode(moved)
        tokens.append_policy(letters, [0.0] * len(letters), [0] * len(letters))
    own: dict[str, Any] = {"attempt": 0, "finish_reason": "stop", "sampling": SamplingDistribution()}
    return Sample(id=SampleId(Visit(one.id, 0), 0), reward=Reward(1.0, "given"), **own, **tokens.arrays())


def main(words: Sequence[str]) -> int:
    print(warm_up(load_settings(Settings, words)))  # type: ignore[type-var]
    return 0


if __name__ == "__main__":
    sys.exit(guarded(lambda: main(sys.argv[1:])))
