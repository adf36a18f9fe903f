"""The workers of a run, hired on a cluster and let go at the end: engines, trainer ranks, runners, stores,
reward workers, the rollout manager. Each is a plain class made a Ray actor with a readable name.
"""

from __future__ import annotations

import asyncio
import contextlib
import uuid
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

from envs.reward_parts import AnyRewardFunction
from recipes.engine_house import EngineHouse, context_of, engine_house, worker_environment
from recipes.judges import given_a_judge, judge_engines, keep_up
from recipes.rules import Rules
from recipes.task import Task
from roll_ray.actors import ActorUnavailable, Pool
from roll_ray.algorithms.shaping import Shaping
from roll_ray.cluster.actors import RayActor, beside_the_driver, host, kill, names_free
from roll_ray.cluster.session import Session
from roll_ray.errors import RollRayError, WorkerDiedError
from roll_ray.interruption import cancelled
from roll_ray.placement import place
from roll_ray.settings import RunSettings
from roll_ray.supervision import restarts
from roll_ray.weight_transfer import WeightTransfer
from workers.backends.base import OptimizerSettings
from workers.episode_runner import EpisodeRunner, RunnerSpec
from workers.reward_worker import RewardWorker
from workers.rollout_engine import RolloutEngine
from workers.rollout_manager import ManagerSpec, RolloutManager
from workers.sample_store import SampleStore
from workers.trainer import PolicyTrainer, TrainerSpec

STARTING_S = 300.0


@dataclass(slots=True)
class Staff:
    """Everybody who works for a run. Pools are in rank order; without engines (replay) only trainers.

    `transfer`: how weights reach the engines. `sleepers`: engines that share a GPU with a trainer rank."""

    trainers: Pool[Any]
    engines: Pool[Any]
    runners: Pool[Any]
    stores: Sequence[RayActor[SampleStore]] = ()
    rewards: Sequence[RayActor[RewardWorker]] = ()
    judges: Sequence[RayActor[RolloutEngine]] = ()
    manager: RayActor[RolloutManager] | None = None
    transfer: WeightTransfer = "shm"
    sleepers: frozenset[str] = frozenset()
    say: Callable[[str], None] = field(default=print)
    away: set[str] = field(default_factory=set)

    def everybody(self) -> list[RayActor[Any]]:
        others = [] if self.manager is None else [self.manager]
        return [
            *self.trainers,
            *self.engines,
            *self.runners,
            *self.stores,
            *self.rewards,
            *self.judges,
            *others,
        ]  # type: ignore[list-item]

    def listen(self, say: Callable[[str], None]) -> None:
        """Who is told when a worker dies or comes back."""
        self.say = say

    async def announce(self, version: int, ready: list[str]) -> None:
        """Tell the runners which engines hold the published weights; a runner that is away asks when it is back."""
        here = [runner for runner in self.runners if runner.name not in self.away]
        tell = (runner.call(EpisodeRunner.weights_version, version, ready) for runner in here)
        for answer in await asyncio.gather(*tell, return_exceptions=True):
            if answer is not None and not isinstance(answer, ActorUnavailable | WorkerDiedError):
                raise answer

    async def invalid_example(self) -> str:
        """A response with an invalid reward and the reason, on lines of their own; empty when nobody has one."""
        asked = (worker.call(RewardWorker.invalid_example) for worker in self.rewards)
        for example in await asyncio.gather(*asked, return_exceptions=True):
            if isinstance(example, str) and example:
                return f"\nOne of them:\n{example}"
        return ""

    async def trainer_died(self) -> NoReturn:
        """Raise the error of the first trainer rank that dies: without it no step can be finished."""
        async for actor, pid in restarts(self.trainers.actors):
            if pid is None:
                await actor.identity()
        raise AssertionError("restarts() has no end")

    async def supervise(self) -> None:
        """Until cancelled: say who died and who is back. Engines have a supervisor of their own."""
        others = [a for a in self.everybody() if a not in [*self.engines, *self.trainers, *self.judges]]
        async for actor, pid in restarts(others):
            if pid is None:
                self.away.add(actor.name)
                self.say(f"{actor.name} died; it is started again and its work is redone")
            else:
                self.away.discard(actor.name)
                self.say(f"{actor.name} is back as process {pid}")


@contextlib.asynccontextmanager
async def staffed(
    settings: RunSettings,
    task: Task,
    rules: Rules,
    session: Session,
    folder: Path,
    kept: EngineHouse | None = None,
) -> AsyncIterator[Staff]:
    """Seats reserved, actors started and ready; all of them end with the block, however it ends, but for engines
    that are `kept` from run to run."""
    async with contextlib.AsyncExitStack() as stack:
        house = kept
        if house is None:
            house = await stack.enter_async_context(engine_house(settings, session))
        staff = _hire(settings, task, rules, house, folder)
        supervision: list[asyncio.Task[None]] = []
        try:
            await _ready(staff)
            if kept is not None:
                await staff.engines.broadcast(RolloutEngine.new_run)
            supervision.append(asyncio.create_task(staff.supervise()))
            if staff.judges:
                supervision.append(asyncio.create_task(keep_up(staff.judges, lambda text: staff.say(text))))
            yield staff
        finally:
            if supervision:
                await cancelled(*supervision)
            let_go = [actor for actor in staff.everybody() if actor not in house.engines]
            for actor in let_go:
                kill(actor)
            if kept is not None:  # the next run's workers have the same names
                await names_free(actor.name for actor in let_go)


def _hire(settings: RunSettings, task: Task, rules: Rules, house: EngineHouse, folder: Path) -> Staff:
    group = house.group
    placement = place(settings)
    train_seats, engine_seats = placement.of("actor-train"), placement.of("rollout")
    trainer_spec = replace(trainer_spec_of(settings, rules, house.kind), shares_gpu=bool(house.sleepers))
    trainers = [
        host(
            PolicyTrainer,
            trainer_spec,
            seat.rank,
            len(train_seats),
            name=seat.name,
            seat=group.strategy(seat),
            resources=group.resources(seat),
            env=worker_environment(settings),
        )
        for seat in train_seats
    ]
    if settings.replay is not None:
        return Staff(Pool("actor-train", trainers), Pool("rollout", []), Pool("runner", []))
    engines, context = house.engines, context_of(settings)
    judges = judge_engines(settings, house)
    rewards = _reward_workers(settings, task.rewards, judges)
    stores: list[RayActor[SampleStore]] = []
    runners: list[RayActor[EpisodeRunner]] = []
    # On an engine's bundle: Ray keeps to it, unlike to a soft affinity, and it moves when its node is replaced.
    bundle_of_node = {group.node_of(seat): group.strategy(seat) for seat in reversed(engine_seats)}
    for i, (_, bundle) in enumerate(sorted(bundle_of_node.items())):
        store = host(SampleStore, f"store-{i}", name=f"store-{i}", seat=bundle, restarts=-1)
        stores.append(store)
        for _ in range(settings.episode_runners):
            name = f"runner-{len(runners)}"
            spec = runner_spec_of(settings, task, name, context)
            runners.append(
                host(EpisodeRunner, spec, engines, rewards, store, name=name, seat=bundle, restarts=-1)
            )
    manager_spec = ManagerSpec(uuid.uuid4().hex[:12], folder / "events.jsonl", rules.scheduler)
    manager = host(
        RolloutManager,
        manager_spec,
        runners,
        stores,
        name="rollout-manager",
        seat=beside_the_driver(),
        restarts=-1,
    )
    return Staff(
        Pool("actor-train", trainers),
        Pool("rollout", engines),
        Pool("runner", runners),
        stores,
        rewards,
        judges,
        manager,
        transfer=house.transfer,
        sleepers=house.sleepers,
    )


def _reward_workers(
    settings: RunSettings,
    rewards: Mapping[str, AnyRewardFunction],
    judges: Sequence[RayActor[RolloutEngine]],
) -> list[RayActor[RewardWorker]]:
    """`reward_workers` processes for each domain."""
    hired = []
    for domain, function in sorted(rewards.items()):
        for i in range(settings.reward_workers):
            name = f"reward-{domain}-{i}"
            hired.append(
                host(
                    RewardWorker,
                    {domain: partial(_same, given_a_judge(function, settings, judges))},
                    settings.reward_slots,
                    settings.reward_timeout_s,
                    name,
                    name=name,
                    seat=beside_the_driver(),
                    restarts=-1,
                )
            )
    return hired


def _same(function: AnyRewardFunction) -> AnyRewardFunction:
    return function


async def _ready(staff: Staff) -> None:
    """Wait until everybody can work; the first who cannot is the error."""

    async def engines_start() -> None:
        await staff.engines.broadcast(RolloutEngine.start)
        sleepers = [engine for engine in staff.engines if engine.name in staff.sleepers]
        await asyncio.gather(*(engine.call(RolloutEngine.sleep) for engine in sleepers))
        await asyncio.gather(*(judge.call(RolloutEngine.start) for judge in staff.judges))

    async def trainers_meet() -> None:
        if staff.sleepers:
            await (
                engines_up
            )  # vLLM measures how much of the GPU is free: nobody else may take of it meanwhile
        host_name, port = await staff.trainers[0].call(PolicyTrainer.rendezvous_address)
        await staff.trainers.broadcast(PolicyTrainer.start, host_name, port)

    engines_up = asyncio.create_task(engines_start())
    started = asyncio.gather(
        *(actor.identity() for actor in staff.everybody()),
        trainers_meet(),
        engines_up,
    )
    try:
        await asyncio.wait_for(started, STARTING_S)
    except TimeoutError:
        late = [a.name for a in staff.everybody() if a.last_identity is None]
        raise RollRayError(
            f"the workers were not ready within {STARTING_S:.0f} s",
            why=f"no answer from {', '.join(late)}"
            if late
            else "engines or trainers are still loading the model",
            next_step="look at `ray status` and at the workers' logs for what they wait for",
        ) from None


def trainer_spec_of(settings: RunSettings, rules: Rules, kind: Any) -> TrainerSpec:
    return TrainerSpec(
        model=settings.model,
        optimizer=OptimizerSettings(
            learning_rate=settings.learning_rate,
            warmup_steps=settings.warmup_steps,
            lr_schedule=settings.lr_schedule,
            total_steps=settings.max_steps * settings.optimizer_steps_per_batch,
            weight_decay=settings.weight_decay,
            max_grad_norm=settings.max_grad_norm,
        ),
        loss=rules.loss,
        registered=rules.registered_loss,
        token_stage=rules.token_stage,
        adaptive_kl=rules.adaptive_kl,
        dtype=settings.dtype,
        backend=settings.trainer,
        tokens_per_device=settings.tokens_per_device,
        device_kind=kind,
        threads=settings.devices.threads_per_device,
        seed=settings.seed,
    )


def runner_spec_of(settings: RunSettings, task: Task, name: str, context: int) -> RunnerSpec:
    return RunnerSpec(
        name=name,
        model=settings.model,
        sampling=settings.sampling.distribution(),
        max_new_tokens=settings.sampling.max_new_tokens,
        max_model_len=context,
        stop_token_ids=tuple(settings.sampling.stop_token_ids),
        ignore_eos=settings.sampling.ignore_eos,
        max_turns=settings.max_turns,
        episode_timeout_s=settings.episode_timeout_s,
        env_step_timeout_s=settings.env_step_timeout_s,
        seed=settings.seed,
        deterministic=settings.deterministic,
        environments=task.environments,
        rewarded=frozenset(task.rewards),
        shaping=Shaping(
            settings.sampling.max_new_tokens,
            settings.shaping.overlong_cache_tokens,
            settings.shaping.repetition_weight,
            settings.shaping.repetition_ngram,
            settings.shaping.format_penalty,
        ),
    )
