"""The tensor-parallel planner where lengths grow: RollPacker's section 6.4 in the simulator.

14B on 16 H800 with lengths ramped from 8k to 32k, one engine a device at first. The paper does not
give its lengths; with those of its math data nothing is ever preempted here, so they are those of a reasoning model: a
median of a quarter of the limit.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import replace

from recipes.simulate_output import ResultTable
from recipes.simulate_paper import paper_setup, tail_batching
from schedulers.simulator.records import StepRecord, mean
from schedulers.simulator.setup import Setup
from schedulers.simulator.workload import LengthMix, Ramp

MEAN_GAIN = 1.9
"""Over a fixed degree of 1 (section 6.4); the degree became 2 at step 3 and 4 at step 8."""
STEPS = 25


def planner() -> list[ResultTable]:
    """Degrees and rollout seconds of the planner beside fixed degrees, and its gain over degree 1."""
    runs = {f"fixed {degree}": _run(degree, elastic=False) for degree in (1, 2, 4)}
    runs["planner"] = _run(1, elastic=True)
    fixed = mean(runs["fixed 1"], "rollout_s")
    rows = [
        (
            name,
            f"{mean(records, 'rollout_s'):.0f}",
            f"{fixed / mean(records, 'rollout_s'):.2f}",
            f"{_mean_gain(runs['fixed 1'], records):.2f}",
            f"{mean(records, 'preemptions'):.0f}",
            _switches(records),
        )
        for name, records in runs.items()
    ]
    columns = (
        "degree",
        "rollout s a step",
        "gain in all",
        "mean gain a step",
        "preemptions a step",
        "changes",
    )
    note = f"paper: mean gain {MEAN_GAIN} over fixed 1, degree 2 from step 3 and 4 from step 8"
    return [
        ResultTable("Planner: 14B on 16 H800, lengths ramped 8k to 32k (simulated)", columns, rows, (note,))
    ]


def ramped() -> Setup:
    lengths = LengthMix(longest_tokens=8_192, median_tokens=2_048, long_share=0.03, long_spread=9.0)
    return replace(
        paper_setup("14B"), devices=16, tensor_parallel=1, lengths=lengths, ramp=Ramp(1_024, 32_768)
    )


def _run(degree: int, elastic: bool) -> list[StepRecord]:
    setup = replace(ramped(), tensor_parallel=degree)
    return setup.simulation(tail_batching(), adaptive_timeouts=True, elastic=elastic).run(STEPS)


def _mean_gain(fixed: Sequence[StepRecord], records: Sequence[StepRecord]) -> float:
    """Steps see the same prompts only as long as the rule defers the same ones; their kinds always agree."""
    return sum(f.rollout_s / r.rollout_s for f, r in zip(fixed, records, strict=True)) / len(fixed)


def _switches(records: Sequence[StepRecord]) -> str:
    changes = [f"{records[0].degree}"]
    changes += [
        f"{now.degree} at step {now.step}"
        for before, now in itertools.pairwise(records)
        if now.degree != before.degree
    ]
    return ", ".join(changes)
