"""The judge of a run: its engines on their seats, and the client that the reward functions get."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from typing import Any

from envs.judge import Ask, needs_judge
from envs.judge_endpoint import EndpointJudge
from envs.reward_parts import AnyRewardFunction
from recipes.engine_house import EngineHouse, worker_environment
from recipes.task import Task
from roll_ray.actors import ActorUnavailable
from roll_ray.cluster.actors import RayActor, host
from roll_ray.errors import RollRayError
from roll_ray.placement import JUDGE, place
from roll_ray.settings import RunSettings
from roll_ray.supervision import restarts
from workers.engine_spec import EngineSpec
from workers.model_context import context_tokens
from workers.reward_judge import PoolJudge
from workers.rollout_engine import RolloutEngine


def judge_problems(settings: RunSettings, task: Task) -> list[str]:
    """A task that needs a judge which the settings do not name, and the other way round."""
    waiting = sorted(domain for domain, function in task.rewards.items() if needs_judge(function))
    if waiting and settings.judge.model is None:
        return [
            f"the reward of domain {domain!r} asks a judge, and judge.model is not set: name a model folder, or with "
            "judge.endpoint the model of a server"
            for domain in waiting
        ]
    if settings.judge.model is not None and not waiting:
        return [
            f"judge.model={settings.judge.model} is set, and no reward function asks a judge: leave it out"
        ]
    return []


def judge_engines(settings: RunSettings, house: EngineHouse) -> list[RayActor[RolloutEngine]]:
    """An actor for each engine of the judge, not started; none for a judge elsewhere."""
    seats = place(settings).of(JUDGE)
    return [
        host(
            RolloutEngine,
            _spec(settings, seat.name, house.kind),
            True,
            name=seat.name,
            seat=house.group.strategy(seat),
            resources=house.group.resources(seat),
            env=worker_environment(settings),
            restarts=-1,
        )
        for seat in seats
    ]


def given_a_judge(
    function: AnyRewardFunction, settings: RunSettings, engines: Sequence[RayActor[RolloutEngine]]
) -> AnyRewardFunction:
    """The reward function, with the run's judge where it needs one."""
    if not needs_judge(function):
        return function
    given: AnyRewardFunction = function.with_judge(_client(settings, engines))  # type: ignore[union-attr]
    return given


async def keep_up(engines: Sequence[RayActor[RolloutEngine]], say: Callable[[str], None]) -> None:
    """Until cancelled: start an engine again whose process died. Its questions wait, or go to the others."""
    async for engine, pid in restarts(engines):
        if pid is None:
            say(f"{engine.name} died; it is started again")
            continue
        with contextlib.suppress(ActorUnavailable):  # it died once more, and this is said next
            try:
                await engine.call(RolloutEngine.start)
                say(f"{engine.name} is back as process {pid}")
            except RollRayError as error:
                say(f"{engine.name} could not be brought up: {error}")


def _client(settings: RunSettings, engines: Sequence[RayActor[RolloutEngine]]) -> Ask:
    judge = settings.judge
    assert judge.model is not None
    if judge.endpoint is not None:
        return EndpointJudge(
            judge.model, judge.endpoint, judge.key_variable, judge.max_new_tokens, judge.timeout_s
        )
    return PoolJudge(judge.model, list(engines), judge.max_new_tokens, judge.timeout_s)


def _spec(settings: RunSettings, name: str, kind: Any) -> EngineSpec:
    judge = settings.judge
    assert judge.model is not None
    return EngineSpec(
        model=judge.model,
        name=name,
        dtype=settings.dtype,
        tensor_parallel=judge.tensor_parallel,
        max_model_len=judge.max_model_len or context_tokens(judge.model),
        max_running_requests=settings.engine.max_running_requests,
        kv_cache_mb=judge.kv_cache_mb,
        gpu_memory_utilization=judge.gpu_memory_utilization,
        enforce_eager=settings.engine.enforce_eager,
        threads=settings.devices.threads_per_device,
        seed=settings.seed,
        device=kind,
    )
