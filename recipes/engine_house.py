"""The engines of a run and the devices that it reserves. A study keeps both from run to run."""

from __future__ import annotations

import asyncio
import contextlib
import sys
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from roll_ray.cluster.actors import RayActor, host, kill
from roll_ray.cluster.groups import Group, reserved
from roll_ray.cluster.session import Session
from roll_ray.placement import place
from roll_ray.settings import RunSettings
from roll_ray.weight_transfer import trains_too, weight_transfer
from workers.engine_spec import EngineSpec
from workers.model_context import context_tokens
from workers.rollout_engine import RolloutEngine

GOODBYE_S = 15.0


@dataclass(frozen=True, slots=True)
class EngineHouse:
    """A reserved group and the engines on it, in rank order; none for a replayed run. `sleepers`: the names of
    those that share a GPU with a trainer. `kind`: cpu or gpu. `transfer`: how weights reach them."""

    group: Group
    engines: Sequence[RayActor[RolloutEngine]]
    sleepers: frozenset[str]
    kind: Any
    transfer: Any


@contextlib.asynccontextmanager
async def engine_house(settings: RunSettings, session: Session) -> AsyncIterator[EngineHouse]:
    """Reserve the devices of a run and host its engines (who starts them, waits for them); both end with the block."""
    async with reserved(place(settings), session, session.namespace) as group:
        kind = "gpu" if session.resource == "GPU" else "cpu"
        house = _house(settings, group, kind)
        in_a_hurry = False
        try:
            yield house
        except asyncio.CancelledError:
            in_a_hurry = True
            raise
        finally:
            if not in_a_hurry:
                await _say_goodbye(house.engines)
            for engine in house.engines:
                kill(engine)


def _house(settings: RunSettings, group: Group, kind: Any) -> EngineHouse:
    transfer = weight_transfer(settings, on_gpu=kind == "gpu")
    seats = place(settings).of("rollout") if settings.replay is None else []
    in_turns = {seat.name for seat in seats if kind == "gpu" and trains_too(seat.devices, settings)}
    engines = []
    if seats:
        spec = replace(engine_spec_of(settings, "", kind, context_of(settings)), weight_backend=transfer)
        engines = [
            host(
                RolloutEngine,
                replace(
                    spec,
                    name=seat.name,
                    sleeps=seat.name in in_turns,
                    seed=engine_seed(settings.seed, seat.rank),
                ),
                True,
                name=seat.name,
                seat=group.strategy(seat),
                resources=group.resources(seat),
                env=worker_environment(settings),
                restarts=-1,
            )
            for seat in seats
        ]
    return EngineHouse(group, engines, frozenset(in_turns), kind, transfer)


def engine_seed(seed: int, rank: int) -> int:
    """A seed of its own for each engine of a run, below 2^31: with equal ones, engines that get the same prompt
    would answer it with the same words."""
    return int(np.random.SeedSequence([seed, rank]).generate_state(1)[0] >> 1)


def worker_environment(settings: RunSettings) -> Mapping[str, str]:
    """Of processes that compute."""
    return {
        "OMP_NUM_THREADS": str(settings.devices.threads_per_device),
        "TOKENIZERS_PARALLELISM": "false",
    }


async def _say_goodbye(engines: Sequence[RayActor[RolloutEngine]]) -> None:
    """Let engines end in their own way. (Those that are only killed have processes that notice it in a second.)"""
    endings = (engine.call(RolloutEngine.shutdown) for engine in engines)
    with contextlib.suppress(TimeoutError):
        await asyncio.wait_for(asyncio.gather(*endings, return_exceptions=True), GOODBYE_S)


def context_of(settings: RunSettings) -> int:
    """Tokens of the engines' context: what the settings say, else what prompts and responses can need of it."""
    if settings.engine.max_model_len is not None:
        return settings.engine.max_model_len
    longest = max(settings.sampling.max_new_tokens, settings.evaluation.sampling.max_new_tokens)
    return min(context_tokens(settings.model) or sys.maxsize, settings.max_prompt_tokens + longest)


def engine_spec_of(settings: RunSettings, name: str, kind: Any, context: int) -> EngineSpec:
    engine = settings.engine
    return EngineSpec(
        model=settings.model,
        name=name,
        dtype=settings.dtype,
        tensor_parallel=engine.tensor_parallel,
        max_model_len=context,
        max_running_requests=engine.max_running_requests,
        kv_cache_mb=engine.kv_cache_mb,
        gpu_memory_utilization=engine.gpu_memory_utilization,
        enforce_eager=engine.enforce_eager,
        threads=settings.devices.threads_per_device,
        seed=settings.seed,
        device=kind,
        seeded_requests=settings.deterministic,
    )
