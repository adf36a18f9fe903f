"""Do our algorithms agree with those of the public verl wheel, and how fast are both?

    python -m benchmarks.algorithms_vs_verl [--batches 200] [--threads 1]

First table: 200 random batches a function, in which both mean the same. Losses are compared in value and gradient
(the gradient of the undivided sum, so that a long batch hides nothing). The difference is the largest over all
numbers, relative where they are above 1; the goal is 1e-5. Speeds are of one larger batch, losses forward and
backward; verl's tensors are padded, ours are flat. Second table: where the two mean different things, both answers
to a small input and who is right. verl is installed under the home folder at the first run (`verl_side` says what
is left out of it). Exit code 1 where a function misses the goal.
"""

from __future__ import annotations

import argparse
import sys
import time

import numpy as np
import torch

from benchmarks import verl_differences
from benchmarks.verl_cases import Case
from benchmarks.verl_rows import Arrays, Prepared, all_rows
from benchmarks.verl_side import VERSION, core_algos

GOAL = 1e-5


def largest_difference(ours: Arrays, theirs: Arrays) -> float:
    worst = 0.0
    for a, b in zip(ours, theirs, strict=True):
        difference = np.abs(np.asarray(a, np.float64) - b) / np.maximum(1.0, np.abs(b))
        worst = max(worst, float(np.max(difference, initial=0.0, where=~np.isnan(difference))))
        worst = float("nan") if np.isnan(difference).any() else worst
    return worst


def best_ms(run: Prepared) -> float:
    times = []
    for _ in range(3):
        started = time.perf_counter()
        run()
        times.append(time.perf_counter() - started)
    return min(times) * 1e3


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--batches", type=int, default=200, help="random batches a function")
    parser.add_argument("--threads", type=int, default=1)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    verl = core_algos()
    cases = [Case.random(seed, n_groups=4, tokens=(1, 40)) for seed in range(options.batches)]
    large = Case.random(1, n_groups=64, tokens=(1, 2048))
    size = f"{len(large.groups_B)} samples, {len(large.mask_T)} tokens"
    print(f"verl {VERSION}, torch {torch.__version__}, {options.batches} batches; speeds: {size}")
    print(f"{'function':36} {'largest difference':>18} {'ours ms':>9} {'verl ms':>9}  verdict")
    missed = 0
    for row in all_rows(verl):
        worst = max(largest_difference(row.ours(case)(), row.theirs(case)()) for case in cases)
        ours_ms, verl_ms = best_ms(row.ours(large)), best_ms(row.theirs(large))
        agrees = worst <= GOAL
        missed += not agrees
        verdict = "agree" if agrees else "DIFFER"
        print(f"{row.name:36} {worst:18.1e} {ours_ms:9.2f} {verl_ms:9.2f}  {verdict}", flush=True)
    print("\nWhere they mean different things")
    for difference in verl_differences.all_of(verl):
        print(
            f"- {difference.what}\n    ours: {difference.ours}\n    verl: {difference.verl}\n    {difference.verdict}"
        )
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
