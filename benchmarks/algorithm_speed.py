"""Milliseconds of each advantage estimator and of what goes with it, on one core, beside its target.

    python -m benchmarks.algorithm_speed [--samples 1024] [--tokens 8192] [--repeats 5]

All samples have the given length; an eighth of the tokens is no token of the policy's. Targets at the default size:
50 ms for what is computed from scalars, 400 ms for what goes over tokens. `loss_speed` measures the losses. Exit
code 1 where a target is missed.
"""

from __future__ import annotations

import os

os.environ.update(dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1"))

import argparse
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from roll_ray.algorithms.advantages import ESTIMATORS, AdvantageSettings, Normalisation, Outcomes, estimate
from roll_ray.algorithms.returns import Steps, gae, gigpo, returns_to_go, segment_returns, step_returns
from roll_ray.algorithms.shaping import repeated_ngram_share, soft_overlong
from roll_ray.algorithms.whitening import Moments, whiten

SCALARS_MS, TOKENS_MS = 50.0, 400.0
TURN_TOKENS = 512
Timed = tuple[str, Callable[[], Any], float]


def timed(n: int, length: int) -> Iterator[Timed]:
    random = np.random.default_rng(0)
    n_tokens = n * length
    offsets = np.arange(n + 1) * length
    # each turn begins with what the environment says
    mask_T = np.arange(n_tokens) % TURN_TOKENS >= TURN_TOKENS // 8
    x_T, values_T = (random.standard_normal(n_tokens, np.float32) for _ in range(2))
    rewards_B = random.random(n).astype(np.float32)
    groups_B = [("prompt", i // 8) for i in range(n)]
    tokens_B = np.add.reduceat(mask_T, offsets[:-1], dtype=np.int64)
    outcomes = Outcomes(rewards_B, groups_B, tokens_B, greedy_rewards_B=rewards_B)
    bounds = np.union1d(np.arange(0, n_tokens, TURN_TOKENS), offsets)
    n_steps = len(bounds) - 1
    steps = Steps(random.random(n_steps), bounds, random.integers(0, 50, n_steps).tolist())
    for name in ESTIMATORS:
        yield name, lambda name=name: estimate(name, outcomes, AdvantageSettings()), SCALARS_MS
    yield "soft overlong", lambda: soft_overlong(tokens_B, length, max(1, length // 4)), SCALARS_MS
    yield "return to go", lambda: returns_to_go(rewards_B, mask_T, offsets, 0.99), TOKENS_MS
    yield "return to go, KL", lambda: returns_to_go(rewards_B, mask_T, offsets, 1.0, x_T), TOKENS_MS
    yield "gae, tokens", lambda: gae(x_T, values_T, mask_T, offsets, 0.99, 0.95), TOKENS_MS
    everywhere_T = np.ones(n_tokens, np.bool_)
    yield "gae, no turns", lambda: gae(x_T, values_T, everywhere_T, offsets, 0.99, 0.95), TOKENS_MS
    yield "step returns, tokens", lambda: step_returns(steps, mask_T, offsets, 0.95), TOKENS_MS
    yield "segment returns, tokens", lambda: segment_returns(rewards_B, mask_T, offsets, 0.95), TOKENS_MS
    own = Normalisation("group", "group")
    yield (
        "gigpo, tokens",
        lambda: gigpo(rewards_B, groups_B, steps, mask_T, offsets, 0.95, 1.0, own),
        TOKENS_MS,
    )
    yield "whitening, tokens", lambda: whiten(x_T, Moments.of(x_T, mask_T)), TOKENS_MS
    words = random.integers(0, 1000, length).astype(np.int32)
    yield "repeated 4-grams, 1 sample", lambda: repeated_ngram_share(words, 4), SCALARS_MS


def best_ms(run: Callable[[], Any], repeats: int) -> float:
    times = []
    for _ in range(repeats):
        started = time.perf_counter()
        run()
        times.append(time.perf_counter() - started)
    return min(times) * 1e3


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--samples", type=int, default=1024)
    parser.add_argument("--tokens", type=int, default=8192, help="of each sample")
    parser.add_argument("--repeats", type=int, default=5, help="the best counts")
    options = parser.parse_args()
    print(f"{options.samples} samples x {options.tokens} tokens, one thread, numpy {np.__version__}")
    missed = []
    for name, run, target_ms in timed(options.samples, options.tokens):
        found_ms = best_ms(run, options.repeats)
        print(f"{name:32} {found_ms:8.1f} ms   target {target_ms:4.0f} ms", flush=True)
        missed += [name] if found_ms > target_ms else []
    print(f"missed: {', '.join(missed)}" if missed else "all within their targets")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
