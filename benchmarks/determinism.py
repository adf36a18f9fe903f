"""Is a live run with `deterministic=true` the same run each time? The demo, several times, compared to the last bit.

    python -m benchmarks.determinism [--repeats 3] [--steps 10]

Says up to which step tokens, log-probabilities and losses of the repeats are equal.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import io
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from recipes.demo import demo_model, sort_letters_task
from recipes.grpo_qwen import Settings
from recipes.pipeline import Pipeline
from roll_ray.batch import Batch
from roll_ray.recording import load_batch
from roll_ray.settings_io import read_settings
from roll_ray.tracking.run_folder import read_metrics


def recorded_run(folder: Path, model: Path, steps: int) -> list[tuple[Batch, dict[str, Any]]]:
    """Each step's batch, sorted by sample id, and its line of metrics."""
    words = [
        f"model={model}",
        f"max_steps={steps}",
        "deterministic=true",
        f"record={folder / 'record'}",
        "evaluation.every_steps=0",
        "checkpoint_every_steps=0",
    ]
    settings = read_settings(Settings, words)
    run_dir = folder / "run"
    settings = settings.model_copy(
        update={"run_dir": run_dir, "run_name": f"{folder.parent.name}-{folder.name}"}
    )
    with contextlib.redirect_stdout(io.StringIO()):
        asyncio.run(Pipeline(settings, sort_letters_task(settings)).run())
    steps_run = []
    for row in read_metrics(run_dir):
        files = sorted((folder / "record" / f"step-{row['step']:06d}").glob("*.npz"))
        whole = Batch.concatenate([load_batch(file) for file in files])
        order = sorted(range(len(whole)), key=lambda i: whole.ids[i])
        steps_run.append((whole.select(order), row))
    return steps_run


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--steps", type=int, default=10)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        runs = [
            recorded_run(Path(folder) / str(i), demo_model(), arguments.steps)
            for i in range(arguments.repeats)
        ]
    for i, run in enumerate(runs[1:], 2):
        print(f"repeat {i} against repeat 1: {_compared(runs[0], run)}")


def _compared(first: list[tuple[Batch, dict[str, Any]]], other: list[tuple[Batch, dict[str, Any]]]) -> str:
    for (a, row_a), (b, row_b) in zip(first, other, strict=True):
        step = row_a["step"]
        if a.ids != b.ids:
            return f"other prompts in step {step}"
        if not np.array_equal(a.tokens_T, b.tokens_T):
            at = next(
                i for i in range(len(a)) if not np.array_equal(*(x.tokens_T[x.token_span(i)] for x in (a, b)))
            )
            return f"first other token in step {step}, sample {a.ids[at]}"
        if not np.array_equal(a.logprobs_T, b.logprobs_T):
            worst = np.abs(a.logprobs_T - b.logprobs_T).max()
            return f"equal tokens, log-probabilities differ by {worst:.1e} in step {step}"
        if row_a["loss"] != row_b["loss"] or row_a["grad_norm"] != row_b["grad_norm"]:
            return f"equal batches, loss differs by {abs(row_a['loss'] - row_b['loss']):.1e} in step {step}"
    return f"bit-equal tokens, log-probabilities, losses and gradient norms over {len(first)} steps"


if __name__ == "__main__":
    main()
