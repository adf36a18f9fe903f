"""The fit of the simulator's free parameters to the paper's 14B figures, in two stages, by search over a grid.

1. Lengths and engine overhead to the eight rollout times of Fig 11: for each mix of lengths the overhead is set so that
   the rollout without over-launch is met, then the mix with the least root mean square of log errors is taken.
2. Sandbox workers and the two constants of training to the four step times of Table 2 and Fig 10c.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Sequence
from dataclasses import replace

from recipes.simulate_output import ResultTable
from recipes.simulate_paper import (
    ABLATION,
    CUMULATIVE,
    ETA_ROLLOUT_S,
    FITTED,
    LONG_STEP_S,
    ROLLPACKER,
    SHORT_STEP_S,
    VERL,
    Fitted,
    paper_setup,
    rollouts_at,
)
from schedulers.simulator.records import mean

LONG_SHARES, LONG_SPREADS = (0.03, 0.035, 0.04), (6.0, 9.0, 13.0)
WORKERS, FLOPS_SHARES = (24, 32, 40, 50), (0.1, 0.15, 0.25, 0.4)
FIXED_S = (40.0, 50.0, 60.0, 70.0, 80.0, 100.0)
_14B = 1


def fit() -> list[ResultTable]:
    """Both stages; the tables show the best candidates first."""
    lengths = sorted(
        (_rollout_error(s, k) for s, k in itertools.product(LONG_SHARES, LONG_SPREADS)), key=lambda e: e[0]
    )
    best = lengths[0][1]
    steps = sorted(_step_errors(best), key=lambda e: e[0])
    return [
        _table("Stage 1: the eight rollout times of Fig 11, 14B", lengths),
        _table("Stage 2: the four step times of Table 2 and Fig 10c, 14B", steps[:8]),
    ]


def _table(title: str, candidates: Sequence[tuple[float, Fitted]]) -> ResultTable:
    rows = [
        (f"{error:.3f}", f"{f.long_share:g}", f"{f.long_spread:g}", f"{f.group_overhead_s * 1e3:.1f}",
         str(f.sandbox_workers), f"{f.training_fixed_s:g}", f"{f.training_flops_share:g}")
        for error, f in candidates
    ]  # fmt: skip
    columns = ("rms of log errors", "long share", "long spread", "group overhead ms",
               "sandbox workers", "training fixed s", "training FLOP share")  # fmt: skip
    return ResultTable(title, columns, rows)


def _rollout_error(long_share: float, long_spread: float) -> tuple[float, Fitted]:
    fitted = _with_overhead(replace(FITTED, long_share=long_share, long_spread=long_spread))
    pairs = []
    for (eta_prompts, eta_responses), published in ETA_ROLLOUT_S.items():
        records = rollouts_at(paper_setup("14B", fitted), eta_prompts, eta_responses, 18)
        pairs.append((mean(records, "rollout_s"), float(published[_14B])))
    return rms_log(pairs), fitted


def _with_overhead(fitted: Fitted) -> Fitted:
    """The overhead at which the rollout without over-launch is met: its time is linear in it."""
    setup = paper_setup("14B", fitted)
    records = rollouts_at(setup, 1, 1, 6)
    seconds, target = mean(records, "rollout_s"), ETA_ROLLOUT_S[1, 1][_14B]
    steps = mean(records, "longest_trained")
    return replace(fitted, group_overhead_s=fitted.group_overhead_s + (target - seconds) / steps)


def _step_errors(fitted: Fitted) -> Iterable[tuple[float, Fitted]]:
    final_s = (4 * SHORT_STEP_S["14B"] + LONG_STEP_S["14B"]) / 5
    base_s = final_s * ABLATION[ROLLPACKER.name][_14B]
    targets = [
        base_s,
        base_s / ABLATION["tail batching"][_14B],
        base_s / ABLATION["+ rewards"][_14B],
        final_s,
    ]
    systems = (VERL, CUMULATIVE[0], CUMULATIVE[1], ROLLPACKER)
    for workers, flops_share in itertools.product(WORKERS, FLOPS_SHARES):
        candidate = replace(
            fitted, sandbox_workers=workers, training_flops_share=flops_share, training_fixed_s=0.0
        )
        runs = [system.run(paper_setup("14B", candidate), 10) for system in systems]
        for fixed_s in FIXED_S:
            seconds = [mean(records, "step_s") + fixed_s for records in runs]
            yield (
                rms_log(list(zip(seconds, targets, strict=True))),
                replace(candidate, training_fixed_s=fixed_s),
            )


def rms_log(pairs: Sequence[tuple[float, float]]) -> float:
    """Root mean square of log(predicted / published)."""
    return math.sqrt(sum(math.log(a / b) ** 2 for a, b in pairs) / len(pairs))
