"""`roll-ray simulate`: a set-up of one's own in virtual time, or one of the experiments of docs/rollpacker.md.

Loads neither torch nor Ray: the scheduler objects of a live run work with models of engines, rewards and training.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path

from pydantic import Field
from rich.console import Console

from recipes import simulate_beyond, simulate_fit, simulate_paper, simulate_planner
from recipes.simulate_output import ResultTable, show, steps_table, write_plot, write_tables, write_timeline
from roll_ray.algorithm_settings import StrictModel
from roll_ray.errors import RollRayError
from roll_ray.scheduler_settings import SchedulerName, TailBatchingSettings
from roll_ray.settings_io import load_settings
from schedulers.protocol import Scheduler
from schedulers.simulator.profiles import HARDWARE, MODELS
from schedulers.simulator.setup import MeasuredEngine, Setup
from schedulers.simulator.simulation import Simulation, SimulationStopped
from schedulers.simulator.step_time import StepCosts
from schedulers.simulator.workload import LengthMix
from schedulers.synchronous import Synchronous
from schedulers.tail_batching import TailBatching

EXPERIMENTS: dict[str, Callable[[], list[ResultTable]]] = {
    "paper": simulate_paper.speedups,
    "sensitivity": simulate_paper.sensitivity,
    "scaling": simulate_paper.scaling,
    "planner": simulate_planner.planner,
    "beyond": simulate_beyond.beyond,
    "fit": simulate_fit.fit,
}
"""Those of the paper's set-ups; `run` is not among them."""


class LengthSettings(StrictModel):
    """How long responses are (schedulers.simulator.workload.LengthMix)."""

    longest_tokens: int = Field(16_384, gt=0, description="Token limit of a response.")
    median_tokens: float = Field(
        550.0, gt=0, description="Median of ordinary responses, which are lognormal."
    )
    sigma: float = Field(0.73, ge=0, description="Standard deviation of their log.")
    prompt_share: float = Field(
        0.5, ge=0, le=1, description="Share of that variance which belongs to the prompt."
    )
    long_share: float = Field(
        0.03, ge=0, le=1, description="Share of responses in the upper half of the limit."
    )
    long_spread: float = Field(
        9.0, gt=0, description="Near 0 a prompt is always or never long, towards infinity prompts are alike."
    )


class EngineSettings(StrictModel):
    """Costs of an engine that were measured, in seconds, in place of those that the profiles give."""

    base_s: float | None = Field(
        None, gt=0, description="A decoding step of its own; with it the others count."
    )
    request_s: float = Field(0.0, ge=0, description="More for each running request.")
    context_token_s: float = Field(0.0, ge=0, description="More for each token of context.")
    prefill_token_s: float = Field(0.0, ge=0, description="Each token of a prompt.")
    kv_tokens: int = Field(1_000_000, gt=0, description="Tokens that the KV cache holds.")

    def measured(self) -> MeasuredEngine | None:
        if self.base_s is None:
            return None
        costs = StepCosts(self.base_s, self.request_s, self.context_token_s, self.prefill_token_s)
        return MeasuredEngine(costs, self.kv_tokens)


class SimulationSettings(StrictModel):
    """What to simulate. Names that a recipe's settings have too mean the same."""

    scheduler: SchedulerName = Field("tail_batching", description="The rollout scheduler.")
    tail_batching: TailBatchingSettings = Field(default_factory=TailBatchingSettings)
    model: str = Field("qwen2.5-14b", description=f"One of {', '.join(MODELS)}.")
    hardware: str = Field("H800", description=f"One of {', '.join(HARDWARE)}.")
    devices: int = Field(32, gt=0, description="Devices, which hold rollout and training in turns.")
    tensor_parallel: int = Field(2, gt=0, description="Devices of an engine.")
    engine: EngineSettings = Field(default_factory=EngineSettings)
    max_running: int = Field(256, gt=0, description="Requests that an engine runs at once.")
    prompts_per_step: int = Field(128, gt=0, description="Prompts of a batch.")
    samples_per_prompt: int = Field(8, gt=0, description="Responses of each prompt.")
    lengths: LengthSettings = Field(default_factory=LengthSettings)
    steps: int = Field(10, gt=0, description="Steps to simulate.")
    seed: int = Field(0, ge=0, description="Draws prompts, lengths and rewards.")
    rewards_after_rollout: bool = Field(False, description="Score a batch only when it is generated.")
    adaptive_timeouts: bool = Field(True, description="Time-outs of programs adapt to correct runs.")
    elastic_tensor_parallel: bool = Field(False, description="The degree follows preemptions.")
    stream_training: bool = Field(
        False, description="Half the engines are freed to train during the rollout."
    )
    training_replica_devices: int = Field(8, gt=0, description="Devices of one training replica (streaming).")
    training_flops_share: float = Field(
        simulate_paper.FITTED.training_flops_share,
        gt=0,
        le=1,
        description="Share of peak FLOP/s in training.",
    )
    training_fixed_s: float = Field(
        simulate_paper.FITTED.training_fixed_s,
        ge=0,
        description="Seconds of a training step beside its tokens.",
    )
    update_s: float = Field(5.0, ge=0, description="Seconds until the engines have new weights.")
    out: Path = Field(Path("simulation"), description="Folder for table, timeline and plot.")

    def setup(self) -> Setup:
        fitted = simulate_paper.FITTED.setup(Setup())
        return Setup(
            model=_known("model", self.model, MODELS),
            hardware=_known("hardware", self.hardware, HARDWARE),
            devices=self.devices,
            tensor_parallel=self.tensor_parallel,
            prompts_per_step=self.prompts_per_step,
            samples_per_prompt=self.samples_per_prompt,
            lengths=LengthMix(**self.lengths.model_dump()),
            shares=fitted.shares,
            measured=self.engine.measured(),
            max_running=self.max_running,
            rewards=fitted.rewards,
            training_flops_share=self.training_flops_share,
            training_fixed_s=self.training_fixed_s,
            training_replica_devices=self.training_replica_devices,
            update_s=self.update_s,
            seed=self.seed,
        )

    def make_scheduler(self, prompts: int, samples: int) -> Scheduler:
        if self.scheduler == "synchronous":
            return Synchronous(prompts, samples)
        etas = self.tail_batching
        return TailBatching(prompts, samples, etas.eta_prompts, etas.eta_responses)

    def simulation(self) -> Simulation:
        return self.setup().simulation(
            self.make_scheduler,
            rewards_after_rollout=self.rewards_after_rollout,
            adaptive_timeouts=self.adaptive_timeouts,
            elastic=self.elastic_tensor_parallel,
            stream=self.stream_training,
            trace_resolution_s=1.0,
        )


def _known(setting: str, name: str, known: dict[str, object] | dict) -> str:  # type: ignore[type-arg]
    if name not in known:
        raise RollRayError(f"{setting}={name} has no profile", next_step=f"name one of {', '.join(known)}")
    return name


def simulate(words: Sequence[str]) -> int:
    """`simulate NAME` prints an experiment; `simulate name=value ...` a simulation of these settings."""
    console = Console()
    if words and "=" not in words[0] and not words[0].startswith("@"):
        return _experiment(words[0], words[1:], console)
    settings = load_settings(SimulationSettings, words)  # type: ignore[type-var]  # not a run's settings
    began_s = time.perf_counter()
    try:
        simulation = settings.simulation()
        records = simulation.run(settings.steps)
    except (ValueError, SimulationStopped) as error:
        raise RollRayError("the simulation cannot go on", why=str(error)) from error
    wall_s = time.perf_counter() - began_s
    devices = simulation.fleet.devices
    title = f"{settings.model} on {devices} {settings.hardware}, {settings.scheduler} (simulated)"
    table = steps_table(title, records, devices)
    show([table], console)
    settings.out.mkdir(parents=True, exist_ok=True)
    paths = [
        write_tables(settings.out / "steps.md", [table]),
        write_timeline(settings.out / "timeline.json", records, simulation.trace),
        write_plot(settings.out / "utilisation.html", simulation.trace, devices, title),
    ]
    n_events = simulation.n_events + simulation.fleet.n_wakes
    console.print(f"{n_events:,} events in {wall_s:.1f} s, {n_events / wall_s:,.0f} a second")
    console.print(f"written: {', '.join(map(str, paths))}", highlight=False, soft_wrap=True)
    return 0


def _experiment(name: str, rest: Sequence[str], console: Console) -> int:
    if name not in EXPERIMENTS or rest:
        raise RollRayError(
            f"simulate {' '.join([name, *rest])} is not known",
            why="an experiment is named alone; a simulation of your own takes name=value words",
            next_step=f"name one of {', '.join(EXPERIMENTS)}, or write for example devices=64 scheduler=synchronous",
        )
    began_s = time.perf_counter()
    show(EXPERIMENTS[name](), console)
    console.print(f"{time.perf_counter() - began_s:.0f} s")
    return 0
