"""Our side of the comparisons: a whole run of the pipeline, and what it wrote down."""

from __future__ import annotations

import asyncio
import contextlib
import io
import json
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from recipes.pipeline import Pipeline
from recipes.task import Task
from roll_ray.settings import RunSettings
from roll_ray.settings_io import read_settings


def rows_of_run(task: Task, words: Sequence[str]) -> list[dict[str, Any]]:
    """Run to the end with these settings, quietly; the lines of metrics.jsonl, a training step each."""
    settings = read_settings(RunSettings, [*words, "evaluation.every_steps=0", "checkpoint_every_steps=0"])
    with tempfile.TemporaryDirectory() as folder:
        run_dir = Path(folder) / "run"
        settings = settings.model_copy(update={"run_dir": run_dir, "run_name": Path(folder).name})
        said = io.StringIO()
        with contextlib.redirect_stdout(said):
            asyncio.run(Pipeline(settings, task).run())
        return [json.loads(line) for line in (run_dir / "metrics.jsonl").read_text().splitlines()]
