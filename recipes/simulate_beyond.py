"""A rule that beats the paper's in the simulator and stays on-policy, and the bound that no rule can beat.

`LadderBatching` against RollPacker's `TailBatching`, on the same prompts and lengths, and both against the least that
any rule needs which trains each prompt once on whole responses of one weight version (schedulers.simulator.bound).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from statistics import fmean

from recipes.simulate_output import ResultTable
from recipes.simulate_paper import SIZES, System, paper_setup, tail_batching
from schedulers.ladder_batching import LadderBatching
from schedulers.simulator.bound import kept_lengths, rollout_bound_s
from schedulers.simulator.records import StepRecord, mean
from schedulers.simulator.setup import Setup
from schedulers.tail_batching import over_launched

SEEDS = 10
STEPS = 45
"""Whole periods of both rules: nine of four short and one long round, five of six short, two middle and one long."""
PAPERS = System("TailBatching", tail_batching(), adaptive_timeouts=True)
LADDER = System("LadderBatching", LadderBatching, adaptive_timeouts=True)


@dataclass(frozen=True, slots=True)
class Pair:
    """Seconds of rollout in all, of both rules and of the bound, and what is kept against what is launched."""

    papers_s: float
    ladder_s: float
    bound_s: float
    papers_kept: float
    ladder_kept: float

    @property
    def gain(self) -> float:
        return self.papers_s / self.ladder_s


def beyond(seeds: int = SEEDS) -> list[ResultTable]:
    """Both rules and the bound over `seeds` seeds of prompts and lengths, on the paper's three set-ups."""
    rows = []
    for size in SIZES:
        pairs = [compare(replace(paper_setup(size), seed=seed)) for seed in range(seeds)]
        gains = [pair.gain for pair in pairs]
        rows.append(
            (
                size,
                f"{fmean(pair.papers_s for pair in pairs) / STEPS:.0f}",
                f"{fmean(pair.ladder_s for pair in pairs) / STEPS:.0f}",
                f"{fmean(gains):.2f} ({min(gains):.2f} to {max(gains):.2f})",
                f"{sum(gain > 1 for gain in gains)} of {seeds}",
                f"{fmean(pair.bound_s for pair in pairs) / STEPS:.0f}",
                f"{fmean(pair.papers_kept for pair in pairs):.2f}",
                f"{fmean(pair.ladder_kept for pair in pairs):.2f}",
            )
        )
    columns = ("set-up", "TailBatching s", "LadderBatching s", "gain (range)", "faster", "bound s", "kept / launched",
               "of the ladder")  # fmt: skip
    notes = (
        f"rollout seconds a step, means of {STEPS} steps and {seeds} seeds, eta 1.25 and 1.25 against 1.5 and 1.125",
        "kept / launched: mean length of the responses trained against launched; 1 is no bias towards short ones",
        "bound: prompts in order of their longest response, lengths known, each launched as often as TailBatching may",
    )
    return [ResultTable("Beyond the paper's rule: rollout time (simulated)", columns, rows, notes)]


def compare(setup: Setup) -> Pair:
    papers, ladder = PAPERS.run(setup, STEPS), LADDER.run(setup, STEPS)
    return Pair(
        _rollout_s(papers),
        _rollout_s(ladder),
        bound_s(setup),
        _kept_of_launched(papers),
        _kept_of_launched(ladder),
    )


def bound_s(setup: Setup) -> float:
    """Of as many steps, for the first P prompts of each: a launch in a short round and one in a long round each."""
    workload, samples = setup.workload(), setup.samples_per_prompt
    launched = over_launched(samples, 1.25)
    visits = [visit for visit, _ in workload.take(STEPS * setup.prompts_per_step)]
    lengths = [kept_lengths(workload, visit, launched, samples, attempts=2) for visit in visits]
    engines = setup.engines()(setup.tensor_parallel)
    return rollout_bound_s(lengths, workload.prompt_tokens, setup.prompts_per_step, engines)


def _rollout_s(records: list[StepRecord]) -> float:
    return sum(r.rollout_s for r in records)


def _kept_of_launched(records: list[StepRecord]) -> float:
    return mean(records, "kept_mean") / mean(records, "launched_mean")
