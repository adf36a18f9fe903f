"""Supervised warm-up: a model learns to answer before reinforcement learning goes on.

    python recipes/sft_warmup.py steps=120 out=models/warm
    python recipes/sft_warmup.py model=Qwen/Qwen2.5-0.5B data=answers.jsonl learning_rate=1e-5 out=models/warm

As it stands it makes the demo model: a tiny Qwen3, new, taught to sort letters for 120 steps, far enough to be
right now and then and no further. With `data`, rows of prompt and response, or of messages that end with
an assistant's, teach any model. The result is a Hugging Face folder with sft.json: settings, loss, accuracy.
"""

from __future__ import annotations

import hashlib
import json
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pydantic import Field

from recipes.made_models import is_made, made_once
from recipes.running import guarded
from roll_ray.home import models_dir
from roll_ray.settings import StrictModel
from roll_ray.settings_io import load_settings

NEW_TINY_MODEL = "tiny"
REPORT = "sft.json"


class Settings(StrictModel):
    """What decides the result; equal settings give equal models."""

    model: str = Field(
        NEW_TINY_MODEL, description="A model folder or hub name; `tiny`: a new tiny Qwen3 of the demo."
    )
    data: str | None = Field(
        None, description="Rows of prompt and response, or messages; none: sorted letters."
    )
    steps: int = Field(120, gt=0, description="Optimizer steps.")
    examples_per_step: int = Field(48, gt=0, description="Examples in the batch of one step.")
    learning_rate: float = Field(1e-3, gt=0, description="AdamW learning rate, after warm-up constant.")
    warmup_steps: int = Field(10, ge=0, description="Linear warm-up over so many steps.")
    max_prompt_tokens: int = Field(512, gt=0, description="Prompts longer than this are dropped and counted.")
    tokens_per_device: int = Field(4096, gt=0, description="At most so many tokens in one micro-batch.")
    seed: int = Field(0, ge=0, description="Seeds new weights and the order of the data.")
    out: Path | None = Field(None, description="Folder of the result; default: below $ROLL_RAY_HOME/models.")

    def record(self) -> dict[str, Any]:
        """What a made model is recognised by: all settings but the place."""
        return {"recipe": "sft_warmup", **self.model_dump(mode="json", exclude={"out"})}

    def folder(self) -> Path:
        """Where the model is, or will be."""
        if self.out is not None:
            return self.out.expanduser().absolute()
        name = "sort-letters" if self.data is None else Path(self.data).stem
        digest = hashlib.blake2b(
            json.dumps(self.record(), sort_keys=True).encode(), digest_size=4
        ).hexdigest()
        return models_dir() / f"{name}-{digest}"


def warm_up(settings: Settings) -> Path:
    """The folder of the warmed-up model; made now unless it is there with the same settings."""

    def fill(folder: Path) -> None:
        from recipes.sft import train

        with tempfile.TemporaryDirectory() as scratch:
            model = settings.model
            if model == NEW_TINY_MODEL:
                from recipes.tiny_models import make_tiny_qwen3

                model = str(make_tiny_qwen3(Path(scratch) / "new", settings.seed))
            report = train(settings, model, folder)
        (folder / REPORT).write_text(json.dumps({"settings": settings.record(), **report}, indent=1) + "\n")

    return made_once(settings.folder(), settings.record(), fill)


def read_report(folder: Path) -> dict[str, Any]:
    """What the warm-up wrote down: settings, loss, seconds, held-out accuracy (null for data of your own)."""
    return dict(json.loads((folder / REPORT).read_text()))


def main(words: Sequence[str]) -> int:
    if words and words[0] in ("-h", "--help"):
        print(__doc__)
        return 0
    settings = load_settings(Settings, words)  # type: ignore[type-var]
    there = is_made(settings.folder(), settings.record())
    folder = warm_up(settings)
    report = read_report(folder)
    accuracy = report["heldout_accuracy"]
    shown = "" if accuracy is None else f", held-out accuracy {accuracy:.3f} (greedy)"
    print(f"{'made before' if there else 'made'}: {folder} (loss {report['loss']:.3f}{shown})")
    return 0


if __name__ == "__main__":
    sys.exit(guarded(lambda: main(sys.argv[1:])))
