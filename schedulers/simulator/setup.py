"""A set-up to simulate, as plain numbers: what runs on what, and the constants of its models."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from schedulers.protocol import Scheduler
from schedulers.reward_timeouts import RewardTimeouts
from schedulers.simulator.engine import SimulatedEngine
from schedulers.simulator.fleet import BuildEngines, Fleet
from schedulers.simulator.profiles import HARDWARE, MODELS, KernelShares, kv_capacity_tokens, step_costs
from schedulers.simulator.rewards import RewardCosts, RewardPools
from schedulers.simulator.simulation import Simulation
from schedulers.simulator.step_time import StepCosts
from schedulers.simulator.streaming import Streaming
from schedulers.simulator.training import TrainingCosts
from schedulers.simulator.workload import LengthMix, Ramp, Workload
from schedulers.stream_trigger import EngineSeat, StreamTrigger
from schedulers.tensor_parallel_planner import TensorParallelPlanner


def default_rewards() -> dict[str, RewardCosts]:
    """Rules, sandbox and judge after RollPacker's section 4.3: 5 % of programs run into their 30 s."""
    return {
        "math": RewardCosts("rule", workers=16, base_s=0.02),
        "code": RewardCosts("sandbox", workers=32, base_s=2.0, sigma=0.8, limit_s=30.0, stuck_share=0.05),
        "qa": RewardCosts("judge", workers=8, base_s=0.2, token_s=1e-4),
    }


@dataclass(frozen=True, slots=True)
class MeasuredEngine:
    """An engine whose costs were measured instead of derived from a profile."""

    costs: StepCosts
    kv_capacity_tokens: int


@dataclass(frozen=True, slots=True)
class Setup:
    """`devices` hold rollout and training in turns. Domains are those of `rewards`, in equal shares."""

    model: str = "qwen2.5-14b"
    hardware: str = "H800"
    devices: int = 32
    tensor_parallel: int = 2
    prompts_per_step: int = 128
    samples_per_prompt: int = 8
    lengths: LengthMix = field(default_factory=LengthMix)
    ramp: Ramp | None = None
    shares: KernelShares = field(default_factory=KernelShares)
    measured: MeasuredEngine | None = None
    max_running: int = 256
    rewards: Mapping[str, RewardCosts] = field(default_factory=default_rewards)
    training_flops_share: float = 0.2
    training_fixed_s: float = 10.0
    training_replica_devices: int = 8
    update_s: float = 5.0
    switch_s: float = 2.0
    seed: int = 0

    def engines(self) -> BuildEngines:
        """Replicas for all devices at a degree. Raises ValueError for a degree that the node or the devices have no
        place for, or whose memory is too small."""
        hardware, model = HARDWARE[self.hardware], MODELS[self.model]

        def build(degree: int) -> list[SimulatedEngine]:
            if degree > hardware.devices_per_node or self.devices % degree:
                raise ValueError(
                    f"a tensor-parallel degree of {degree} does not fit {self.devices} devices, "
                    f"{hardware.devices_per_node} a node"
                )
            if self.measured is not None:
                costs, capacity = self.measured.costs, self.measured.kv_capacity_tokens
            else:
                costs = step_costs(model, hardware, degree, self.shares)
                capacity = kv_capacity_tokens(model, hardware, degree, self.shares)
            return [
                SimulatedEngine(f"engine-{i:05d}", costs, capacity, self.max_running, degree)
                for i in range(self.devices // degree)
            ]

        return build

    def _lowest_degree(self) -> int:
        """The smallest at which the model fits a device."""
        build, degree = self.engines(), self.tensor_parallel
        while degree % 2 == 0:
            try:
                build(degree // 2)
            except ValueError:
                break
            degree //= 2
        return degree

    def training(self) -> TrainingCosts:
        return TrainingCosts.of(
            MODELS[self.model],
            HARDWARE[self.hardware],
            self.training_flops_share,
            self.training_fixed_s,
            self.update_s,
        )

    def _streaming(self) -> Streaming:
        size = self.training_replica_devices
        groups = [range(first, first + size) for first in range(0, self.devices, size)]

        def trigger(engines: Sequence[SimulatedEngine]) -> StreamTrigger:
            seats, first = [], 0
            for engine in engines:
                devices = tuple(range(first, first + engine.devices))
                seats.append(EngineSeat(engine.name, devices, engine.kv_capacity_tokens))
                first += engine.devices
            return StreamTrigger(seats, groups, self.lengths.longest_tokens)

        return Streaming(trigger, self.training(), self.samples_per_prompt, self.switch_s)

    def workload(self) -> Workload:
        return Workload(self.lengths, dict.fromkeys(self.rewards, 1.0), self.seed, ramp=self.ramp)

    def simulation(
        self,
        scheduler: Callable[[int, int], Scheduler],
        *,
        rewards_after_rollout: bool = False,
        adaptive_timeouts: bool = False,
        stream: bool = False,
        elastic: bool = False,
        trace_resolution_s: float | None = None,
    ) -> Simulation:
        """`scheduler` makes one from prompts a step and samples a prompt. `elastic`: the tensor-parallel planner
        chooses the degree, beginning with that of the set-up."""
        planner = TensorParallelPlanner(
            HARDWARE[self.hardware].devices_per_node,
            self.tensor_parallel,
            self.switch_s,
            lowest_degree=self._lowest_degree(),
        )
        return Simulation(
            scheduler(self.prompts_per_step, self.samples_per_prompt),
            self.workload(),
            Fleet(self.engines(), self.tensor_parallel),
            RewardPools(self.rewards, self.seed, RewardTimeouts() if adaptive_timeouts else None),
            self.training(),
            prompts_per_step=self.prompts_per_step,
            samples_per_prompt=self.samples_per_prompt,
            rewards_after_rollout=rewards_after_rollout,
            streaming=self._streaming() if stream else None,
            planner=planner if elastic else None,
            switch_s=self.switch_s,
            seed=self.seed,
            trace_resolution_s=trace_resolution_s,
        )
