"""Does it learn as TRL's GRPOTrainer does? The letter-a toy, the same model, data and settings on both sides.

    python -m benchmarks.learning_vs_trl [--seeds 5] [--steps 60] [--out results.json]

For each learning rate: mean reward by step of our seeds and the minimum-to-maximum band of TRL's seeds, both
smoothed over 5 steps, and the share of steps on which our mean lies inside the band (goal: 0.9).
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from pathlib import Path

import numpy as np
import numpy.typing as npt

from benchmarks import trl_side
from benchmarks.our_side import rows_of_run
from envs import letter_a
from recipes.task import Task
from recipes.tiny_models import make_letter_a_qwen2

LEARNING_RATES = ("1e-2", "1e-3")
WINDOW = 5


def ours(model: Path, seed: int, learning_rate: str, steps: int) -> list[float]:
    words = [
        f"model={model}",
        f"seed={seed}",
        f"learning_rate={learning_rate}",
        f"max_steps={steps}",
        "prompts_per_step=1",
        "samples_per_prompt=8",
        "sampling.max_new_tokens=16",
        "lr_schedule=linear",
        "normalisation.eps=1e-4",
    ]
    return [
        row["reward_mean"]
        for row in rows_of_run(Task(letter_a.prompts(64), rewards={letter_a.DOMAIN: letter_a.reward}), words)
    ]


def theirs(model: Path, seed: int, learning_rate: str, steps: int) -> list[float]:
    return list(trl_side.run(["learning", str(model), str(seed), learning_rate, str(steps)], 1)["rewards"])


def smoothed(rewards_S_T: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """Mean over the last `WINDOW` steps (fewer at the start), along the last axis."""
    sums = np.cumsum(rewards_S_T, axis=-1)
    shifted = np.concatenate([np.zeros_like(sums[..., :WINDOW]), sums[..., :-WINDOW]], axis=-1)
    counts = np.minimum(np.arange(1, sums.shape[-1] + 1), WINDOW)
    return (sums - shifted) / counts


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    results = {}
    with tempfile.TemporaryDirectory() as folder:
        model = make_letter_a_qwen2(Path(folder) / "letter-a")
        for learning_rate in LEARNING_RATES:
            runs: dict[str, npt.NDArray[np.float64]] = {}
            for name, side in (("trl", theirs), ("roll-ray", ours)):
                began_s = time.perf_counter()
                curves = [
                    side(model, seed, learning_rate, arguments.steps) for seed in range(arguments.seeds)
                ]
                runs[name] = smoothed(np.asarray(curves))
                took_s = (time.perf_counter() - began_s) / arguments.seeds
                print(
                    f"learning rate {learning_rate}: {name}, {took_s:.0f} s a seed, start included",
                    flush=True,
                )
            low, high = runs["trl"].min(axis=0), runs["trl"].max(axis=0)
            mean = runs["roll-ray"].mean(axis=0)
            inside = float(((mean >= low) & (mean <= high)).mean())
            print("  step   TRL lowest   TRL highest   ours, mean")
            for t in range(4, arguments.steps, 5):
                print(f"  {t + 1:4d}   {low[t]:10.3f}   {high[t]:11.3f}   {mean[t]:10.3f}")
            print(f"  our mean is inside TRL's band on {inside:.0%} of the steps (goal: 90%)", flush=True)
            results[learning_rate] = {"inside": inside, **{k: v.tolist() for k, v in runs.items()}}
    if arguments.out is not None:
        arguments.out.write_text(json.dumps(results))


if __name__ == "__main__":
    main()
