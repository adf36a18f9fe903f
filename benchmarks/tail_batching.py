"""Tail batching against synchronous rollouts, live: the same model, task and seed, so the same prompts in order.

    python -m benchmarks.tail_batching [--steps 40] [--seeds 3]

Each pair runs recipes/rollpacker.py twice, one after the other, and compares the rollout time of all its steps and the
held-out accuracy at the end. The tail is made by the task: a tenth of the prompts asks for eight or nine times the
letters. A tail batch has four short rounds to one long one, so `--steps` should be a multiple of five.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from roll_ray.tracking.run_folder import read_metrics

RECIPE = Path(__file__).resolve().parents[1] / "recipes" / "rollpacker.py"
WARM_UP_STEPS = 1
"""The first step compiles and loads what later ones find."""


@dataclass(frozen=True, slots=True)
class Run:
    """What one run came to: seconds of all steps after the first, policy tokens, accuracy at the end."""

    rollout_s: float
    step_s: float
    tokens_max_mean: float
    accuracy: float


def run(scheduler: str, seed: int, steps: int, folder: Path) -> Run:
    place = folder / f"{scheduler}-{seed}"
    words = [f"scheduler={scheduler}", f"seed={seed}", f"max_steps={steps}", f"run_dir={place}"]
    words += [f"evaluation.every_steps={steps}", "checkpoint_every_steps=0"]
    subprocess.run([sys.executable, str(RECIPE), *words], check=True, stdout=subprocess.DEVNULL)
    rows = [row for row in read_metrics(place) if row["step"] > WARM_UP_STEPS]
    return Run(
        sum(row["rollout_s"] for row in rows),
        sum(row["step_s"] for row in rows),
        statistics.fmean(row["response_tokens_max"] for row in rows),
        rows[-1]["heldout_accuracy"],
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--seeds", type=int, default=3)
    arguments = parser.parse_args()
    ratios = []
    with tempfile.TemporaryDirectory() as name:
        for seed in range(arguments.seeds):
            pair = {s: run(s, seed, arguments.steps, Path(name)) for s in ("synchronous", "tail_batching")}
            before, after = pair["synchronous"], pair["tail_batching"]
            ratios.append(before.rollout_s / after.rollout_s)
            print(
                f"seed {seed}: rollout {ratios[-1]:.2f} x, step {before.step_s / after.step_s:.2f} x shorter"
            )
            for scheduler, done in pair.items():
                print(
                    f"  {scheduler:<14} rollout {done.rollout_s:6.1f} s, steps {done.step_s:6.1f} s, longest response "
                    f"of a step {done.tokens_max_mean:4.1f} tokens in the mean, held-out accuracy {done.accuracy:.3f}",
                    flush=True,
                )
    print(f"median of {len(ratios)} pairs: rollout {statistics.median(ratios):.2f} x shorter")


if __name__ == "__main__":
    main()
