"""RollPacker's set-ups in the simulator, its published figures, and the constants fitted to one of them.

Figures: RollPacker (arXiv 2509.21009), section 6: speed-ups and Table 2 (ablation), Fig 10c (mean step seconds),
Fig 11 (rollout seconds an iteration, for eta), section 6.7 (scaling). Fitted, once, on the 14B figures
(`roll-ray simulate fit`): the six values of FITTED. Everything else is a data sheet, a model's configuration, or an
assumption written where it stands.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from recipes.simulate_output import ResultTable
from schedulers.protocol import Scheduler
from schedulers.simulator.profiles import KernelShares
from schedulers.simulator.records import StepRecord, mean
from schedulers.simulator.setup import Setup, default_rewards
from schedulers.simulator.workload import LengthMix
from schedulers.synchronous import Synchronous
from schedulers.tail_batching import TailBatching

MakeScheduler = Callable[[int, int], Scheduler]


@dataclass(frozen=True, slots=True)
class Fitted:
    """The free parameters of the simulator: the share of long responses and how far they belong to prompts, what a step
    of a tensor-parallel engine takes beside its kernels, sandbox workers, and the two constants of training."""

    long_share: float = 0.035
    long_spread: float = 9.0
    group_overhead_s: float = 5.2e-3
    sandbox_workers: int = 32
    training_fixed_s: float = 70.0
    training_flops_share: float = 0.4

    def setup(self, base: Setup) -> Setup:
        rewards = default_rewards()
        rewards["code"] = replace(rewards["code"], workers=self.sandbox_workers)
        lengths = replace(base.lengths, long_share=self.long_share, long_spread=self.long_spread)
        return replace(
            base,
            lengths=lengths,
            shares=KernelShares(group_overhead_s=self.group_overhead_s),
            rewards=rewards,
            training_fixed_s=self.training_fixed_s,
            training_flops_share=self.training_flops_share,
        )


FITTED = Fitted()
_UNFITTED = {
    "7B": Setup("qwen2.5-7b", "H800", 16, 1, lengths=LengthMix(8_192), training_replica_devices=2),
    "14B": Setup("qwen2.5-14b", "H800", 32, 2, lengths=LengthMix(16_384), training_replica_devices=8),
    "32B": Setup("qwen2.5-32b", "H800", 64, 2, lengths=LengthMix(32_768), training_replica_devices=16),
}
SIZES = tuple(_UNFITTED)


def paper_setup(size: str, fitted: Fitted = FITTED) -> Setup:
    """The paper's 7B / 8k / 16, 14B / 16k / 32 or 32B / 32k / 64 H800, with P 128 and R 8."""
    return fitted.setup(_UNFITTED[size])


def tail_batching(eta_prompts: float = 1.25, eta_responses: float = 1.25) -> MakeScheduler:
    return lambda prompts, samples: TailBatching(prompts, samples, eta_prompts, eta_responses)


# --- what was published ---------------------------------------------------------------------------

OVER_VERL = {"7B": 2.03, "14B": 2.22, "32B": 2.56}
OVER_RLHFUSE = {"7B": 1.14, "14B": 1.68, "32B": 2.24}
ABLATION = {
    "tail batching": (1.30, 1.48, 2.21),
    "+ rewards": (2.01, 1.99, 2.48),
    "+ planner": (2.01, 2.02, 2.52),
    "+ stream training": (2.03, 2.22, 2.56),
}
SHORT_STEP_S = {"7B": 106, "14B": 134, "32B": 261}
LONG_STEP_S = {"7B": 129, "14B": 302, "32B": 771}
ETA_ROLLOUT_S: dict[tuple[float, float], tuple[int, int, int]] = {
    (1, 1): (82, 277, 673),
    (1, 1.125): (77, 260, 658),
    (1, 1.25): (71, 232, 655),
    (1, 1.5): (54, 115, 265),
    (1.125, 1): (77, 244, 636),
    (1.25, 1): (72, 169, 259),
    (1.5, 1): (60, 143, 279),
    (1.25, 1.25): (47, 88, 170),
}
SCALING_SAMPLES = {32: (1.0, 2.22), 64: (1.42, 3.37), 128: (2.18, 4.81)}
"""Devices (batch 128, 256, 512) to samples a second of veRL and RollPacker, veRL on 32 being 1."""


# --- running them ---------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class System:
    """A row of the ablation: a scheduler, and which of the other mechanisms are on."""

    name: str
    scheduler: MakeScheduler
    rewards_after_rollout: bool = False
    adaptive_timeouts: bool = False
    elastic: bool = False
    stream: bool = False

    def run(self, setup: Setup, steps: int) -> list[StepRecord]:
        simulation = setup.simulation(
            self.scheduler,
            rewards_after_rollout=self.rewards_after_rollout,
            adaptive_timeouts=self.adaptive_timeouts,
            elastic=self.elastic,
            stream=self.stream,
        )
        return simulation.run(steps)


VERL = System("rewards after the rollout", Synchronous, rewards_after_rollout=True)
STRONG = System("Synchronous, stream training", Synchronous, adaptive_timeouts=True, stream=True)
CUMULATIVE = (
    System("tail batching", tail_batching(), rewards_after_rollout=True),
    System("+ rewards", tail_batching(), adaptive_timeouts=True),
    System("+ planner", tail_batching(), adaptive_timeouts=True, elastic=True),
    System("+ stream training", tail_batching(), adaptive_timeouts=True, elastic=True, stream=True),
)
ROLLPACKER = CUMULATIVE[-1]


def against(predicted: float, published: float) -> tuple[str, str, str]:
    """Prediction, figure, error."""
    digits = 2 if published < 10 else 0
    return f"{predicted:.{digits}f}", f"{published:.{digits}f}", f"{predicted / published - 1:+.0%}"


def speedups(periods: int = 4) -> list[ResultTable]:
    """(a) and (b), the ablation and step times, on the three set-ups."""
    steps = 5 * periods
    runs = {size: _runs_of(size, steps) for size in SIZES}
    rows, ablation = [], []
    for size, by_name in runs.items():
        fitted = "fitted" if size == "14B" else "predicted"
        final = mean(by_name[ROLLPACKER.name], "step_s")
        a = mean(by_name[VERL.name], "step_s") / final
        b = mean(by_name[STRONG.name], "step_s") / final
        rows.append((f"{size}: (a) over rewards after the rollout", fitted, *against(a, OVER_VERL[size])))
        rows.append((f"{size}: (b) over Synchronous with streaming", fitted, *against(b, OVER_RLHFUSE[size])))
    for size, by_name in runs.items():
        fitted = "fitted" if size == "14B" else "predicted"
        for kind, target in (("short", SHORT_STEP_S[size]), ("long", LONG_STEP_S[size])):
            seconds = mean(by_name[ROLLPACKER.name], "step_s", kind)
            rows.append((f"{size}: {kind} step, s", fitted, *against(seconds, target)))
    for system in CUMULATIVE:
        cells = []
        for size, published in zip(SIZES, ABLATION[system.name], strict=True):
            base = mean(runs[size][VERL.name], "step_s")
            cells.append(" / ".join(against(base / mean(runs[size][system.name], "step_s"), published)))
        ablation.append((system.name, *cells))
    return [
        ResultTable("Speed-ups and step times (simulated)", ("figure", "", "here", "paper", "error"), rows),
        ResultTable(
            "Ablation: speed-up over rewards after the rollout (simulated / paper / error)",
            ("cumulative", *SIZES),
            ablation,
        ),
    ]


def _runs_of(size: str, steps: int) -> dict[str, list[StepRecord]]:
    setup = paper_setup(size)
    return {system.name: system.run(setup, steps) for system in (VERL, STRONG, *CUMULATIVE)}


def steps_of_periods(eta_prompts: float, at_least: int) -> int:
    """Whole periods of short and long rounds: 1 long after 1 / (eta - 1) short ones."""
    period = 1 if eta_prompts == 1 else round(1 / (eta_prompts - 1)) + 1
    return period * -(-at_least // period)


def sensitivity(at_least: int = 18) -> list[ResultTable]:
    """Fig 11: mean rollout seconds over full periods."""
    rows = []
    for (eta_prompts, eta_responses), published in ETA_ROLLOUT_S.items():
        cells = []
        for size, seconds in zip(SIZES, published, strict=True):
            records = rollouts_at(paper_setup(size), eta_prompts, eta_responses, at_least)
            cells.append(" / ".join(against(mean(records, "rollout_s"), seconds)))
        rows.append((f"{eta_prompts:g}, {eta_responses:g}", *cells))
    return [
        ResultTable(
            "Rollout seconds a step over eta (simulated / paper / error)",
            ("eta prompts, responses", *SIZES),
            rows,
        )
    ]


def rollouts_at(
    setup: Setup, eta_prompts: float, eta_responses: float, at_least: int
) -> Sequence[StepRecord]:
    system = System("", tail_batching(eta_prompts, eta_responses), adaptive_timeouts=True)
    return system.run(setup, steps_of_periods(eta_prompts, at_least))


def scaling(periods: int = 2) -> list[ResultTable]:
    """14B / 16k with a batch of 128, 256, 512 prompts on 32, 64, 128 devices: samples a second."""
    rates: dict[int, tuple[float, float]] = {}
    for devices in SCALING_SAMPLES:
        setup = replace(paper_setup("14B"), devices=devices, prompts_per_step=4 * devices)
        pair = [mean(system.run(setup, 5 * periods), "step_s") for system in (VERL, ROLLPACKER)]
        samples = setup.prompts_per_step * setup.samples_per_prompt
        rates[devices] = (samples / pair[0], samples / pair[1])
    unit = rates[32][0]
    rows = [
        (
            f"{devices} devices, batch {4 * devices}",
            " / ".join(against(rates[devices][0] / unit, published[0])),
            " / ".join(against(rates[devices][1] / unit, published[1])),
        )
        for devices, published in SCALING_SAMPLES.items()
    ]
    columns = ("14B / 16k", "rewards after the rollout", "RollPacker")
    return [ResultTable("Scaling: samples a second, relative (simulated / paper / error)", columns, rows)]
