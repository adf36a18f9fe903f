"""Tiny models that demos start from: made and taught by a warm-up recipe on first use, found again later."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

from recipes.made_models import is_made
from roll_ray.errors import RollRayError
from roll_ray.home import data_dir
from roll_ray.sample import Prompt


class Teaching(Protocol):
    """The settings of a warm-up: what it is recognised by, and where its result is."""

    steps: int

    def record(self) -> dict[str, Any]: ...

    def folder(self) -> Path: ...

    def model_dump(self, *, exclude_defaults: bool) -> dict[str, Any]: ...


def taught_model(settings: Teaching, warm_up: str = "sft_warmup") -> Path:
    """The folder of the warmed-up model. The recipe `warm_up` makes it in a process of its own, whose memory is free
    again."""
    folder = settings.folder()
    if not is_made(folder, settings.record()):
        print(f"making {folder.name}, once: {settings.steps} supervised steps", flush=True)
        words = [f"{name}={value}" for name, value in settings.model_dump(exclude_defaults=True).items()]
        done = subprocess.run([sys.executable, "-m", f"recipes.{warm_up}", *words], check=False)
        if done.returncode:
            raise RollRayError(
                f"the model {folder.name} could not be made",
                why=f"recipes/{warm_up}.py ended with exit code {done.returncode}; its words are above",
                next_step="mend the cause, or name another model with model=",
            )
    return folder


def examples_file(name: str, examples: Sequence[Prompt]) -> Path:
    """Prompts with the reference as the answer to learn, as rows for `sft_warmup`: below `$ROLL_RAY_HOME/data`."""
    folder = data_dir()
    folder.mkdir(parents=True, exist_ok=True)
    rows = [json.dumps({"prompt": p.text, "response": p.reference, "domain": p.domain}) for p in examples]
    file = folder / f"{name}.jsonl"
    with tempfile.NamedTemporaryFile("w", dir=folder, suffix=".part", delete=False, encoding="utf-8") as part:
        part.write("\n".join(rows) + "\n")
    os.replace(part.name, file)
    return file
