"""Ray gives out GPUs that it is told of: who sits on which, and a push through its actors. No GPU computes."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Coroutine, Iterator
from typing import Any

import pytest
import ray

from roll_ray.actors import Pool
from roll_ray.cluster.actors import RayActor, host, kill
from roll_ray.cluster.groups import reserved
from roll_ray.cluster.session import Session, session
from roll_ray.placement import place
from roll_ray.settings import RunSettings
from roll_ray.weight_push import WeightPush
from workers.engine_spec import CommitReport
from workers.vllm_gpu import EngineControl

pytestmark = pytest.mark.engine
N_GPUS = 4


class Seated:
    def gpus(self) -> list[str]:
        return os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",")


class Engine(Seated):
    """Takes a push; asynchronous, as engines are."""

    def __init__(self) -> None:
        self.steps: list[tuple[str, Any]] = []

    async def begin_push(self, manifest: Any, update_mode: str, timeout_s: float) -> bool:
        return True

    async def push(self, step: str, payload: Any = None) -> None:
        self.steps.append((step, payload))

    async def finish_push(self) -> CommitReport:
        return CommitReport(len(self.steps), {})


class Trainer(Seated):
    """A rank whose calls block, as a trainer's do."""

    def open_sender(self, transfer: str, engines: Any, ranks_per_engine: int, timeout_s: float) -> None:
        self.control = EngineControl(engines, ranks_per_engine, transfer == "nccl", timeout_s)
        self.control.init_weight_transfer_engine({"rank_offset": 1})

    def push_weights(self) -> None:
        self.control.start_weight_update()
        self.control.update_weights({"names": []})
        self.control.finish_weight_update()


class Manifest:
    version = 1


@pytest.fixture(scope="module")
def told() -> Iterator[Session]:
    ray.init(address="local", num_gpus=N_GPUS, num_cpus=2, include_dashboard=False, log_to_driver=False)
    try:
        with session(RunSettings(model="m", devices={"kind": "gpu"}), "test") as here:
            yield here
    finally:
        ray.shutdown()


async def seated(told: Session, name: str, settings: RunSettings, then: Any) -> Any:
    """`then(engines, trainers)` with everybody on the seats of these settings."""
    placement = place(settings)
    async with reserved(placement, told, name) as group:

        def hired(role: str, cls: Any) -> list[RayActor[Any]]:
            return [
                host(cls, name=f"{name}/{s.name}", seat=group.strategy(s), resources=group.resources(s))
                for s in placement.of(role)
            ]

        engines, trainers = hired("rollout", Engine), hired("actor-train", Trainer)
        try:
            return await then(engines, trainers)
        finally:
            for actor in [*engines, *trainers]:
                kill(actor)


def run(scene: Coroutine[Any, Any, Any]) -> Any:
    return asyncio.run(asyncio.wait_for(scene, 90))


async def their_gpus(engines: list[RayActor[Any]], trainers: list[RayActor[Any]]) -> Any:
    return [[await actor.call(Seated.gpus) for actor in role] for role in (engines, trainers)]


def settings_for(rollout: str, train: str, tensor_parallel: int = 1) -> RunSettings:
    return RunSettings(
        model="m",
        devices={"rollout": rollout, "train": train, "kind": "gpu"},
        engine={"tensor_parallel": tensor_parallel},
    )


def test_an_engine_and_a_trainer_rank_of_one_device_see_the_same_gpu_and_no_other(told: Session) -> None:
    assert (told.resource, told.devices) == ("GPU", N_GPUS)
    engines, trainers = run(seated(told, "shared", settings_for("0-3", "0-3"), their_gpus))
    assert engines == trainers
    assert sorted(engines) == [["0"], ["1"], ["2"], ["3"]]


def test_a_tensor_parallel_engine_sees_its_gpus_and_each_rank_another_one(told: Session) -> None:
    engines, trainers = run(seated(told, "apart", settings_for("0-1", "2-3", 2), their_gpus))
    assert len(engines[0]) == 2
    assert sorted([*engines[0], trainers[0][0], trainers[1][0]]) == ["0", "1", "2", "3"]


def test_a_push_goes_from_a_rank_that_blocks_to_every_engine(told: Session) -> None:
    async def push(engines: list[RayActor[Any]], trainers: list[RayActor[Any]]) -> Any:
        pushing = WeightPush("nccl", Pool("actor-train", trainers[:1]), 1, "keep", deadline_s=30.0)
        return [await pushing(engines, Manifest()) for _ in range(2)]

    first, second = run(seated(told, "push", settings_for("0-1", "2"), push))
    assert [(report.version, problem) for report, problem in first] == [(4, ""), (4, "")]
    assert [report.version for report, _ in second] == [7, 7]
