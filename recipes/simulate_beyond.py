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
from schedulers.simulator.records import mean
from schedulers.simulator.setup import Setup
from schedulers.tail_batching import over_launched

SEEDS = 10
STEPS = 45
"""Whole periods of both rules: nine of four short and one long round, five of six short, two middle and one long."""
PAPERS = System("TailBatching", tail_batching(), adaptive_timeouts=True)
LADDER = System("LadderBatching", LadderBatching, adaptive_timeouts=True)


@dataclass(frozen=True, slots=True)
class Pair:
    """Seconds of rollout a step of both rules; mean length of what each trains over what the policy writes; bounds, for
    rules that choose among as many responses as TailBatching launches and for rules that keep whatever is written."""

    papers_s: float
    ladder_s: float
    papers_kept: float
    ladder_kept: float
    bound_s: float
    unchosen_bound_s: float

    @property
    def gain(self) -> float:
        return self.papers_s / self.ladder_s


def beyond(seeds: int = SEEDS) -> list[ResultTable]:
    """Both rules and the bounds over `seeds` seeds of prompts and lengths, on the paper's three set-ups."""
    rows = []
    for size in SIZES:
        pairs = [compare(replace(paper_setup(size), seed=seed)) for seed in range(seeds)]
        gains = [pair.gain for pair in pairs]
        rows.append(
            (
                size,
                f"{fmean(pair.papers_s for pair in pairs):.0f}",
                f"{fmean(pair.ladder_s for pair in pairs):.0f}",
                f"{fmean(gains):.2f} ({min(gains):.2f} to {max(gains):.2f})",
                f"{sum(gain > 1 for gain in gains)} of {seeds}",
                f"{fmean(pair.papers_kept for pair in pairs):.2f}",
                f"{fmean(pair.ladder_kept for pair in pairs):.2f}",
                f"{fmean(pair.bound_s for pair in pairs):.0f}",
                f"{fmean(pair.unchosen_bound_s for pair in pairs):.0f}",
            )
        )
    columns = ("set-up", "TailBatching s", "LadderBatching s", "gain (range)", "faster", "kept", "kept by the ladder",
               "bound s", "bound without choice s")  # fmt: skip
    notes = (
        f"rollout seconds a step, means of {STEPS} steps and {seeds} seeds, eta 1.25 and 1.25 against 1.5 and 1.25",
        "kept: mean length of what is trained over that of what the policy writes; 1 is no bias towards short ones",
        "bounds: lengths known in advance, prompts batched by their longest response; "
        "the 8 shortest of two launches of 10, and 8 of 8",
    )
    return [ResultTable("Beyond the paper's rule: rollout time (simulated)", columns, rows, notes)]


def compare(setup: Setup) -> Pair:
    papers, ladder = PAPERS.run(setup, STEPS), LADDER.run(setup, STEPS)
    samples, workload = setup.samples_per_prompt, setup.workload()
    visits = [visit for visit, _ in workload.take(STEPS * setup.prompts_per_step)]
    written = [kept_lengths(workload, visit, samples, samples) for visit in visits]
    chosen = [
        kept_lengths(workload, visit, over_launched(samples, 1.25), samples, attempts=2) for visit in visits
    ]
    policy_mean = fmean(n for lengths in written for n in lengths)
    return Pair(
        mean(papers, "rollout_s"),
        mean(ladder, "rollout_s"),
        mean(papers, "kept_mean") / policy_mean,
        mean(ladder, "kept_mean") / policy_mean,
        _bound_s(setup, chosen),
        _bound_s(setup, written),
    )


def _bound_s(setup: Setup, lengths: list[list[int]]) -> float:
    """A step, in the mean."""
    engines = setup.engines()(setup.tensor_parallel)
    prompt_tokens = setup.workload().prompt_tokens
    return rollout_bound_s(lengths, prompt_tokens, setup.prompts_per_step, engines) / STEPS
