"""What can be known to be wrong with a run before any worker is started: the model's parts, the task's functions."""

from __future__ import annotations

import os

from envs.task import Observation
from recipes.engine_house import context_of
from recipes.memory import check_memory, free_memory_bytes, weights_bytes
from recipes.model_folder import check_model_folder
from recipes.plan import Machine
from recipes.rules import Rules
from recipes.task import Task
from roll_ray.cluster.actors import check_picklable
from roll_ray.data_stream import prompt_stream
from roll_ray.errors import DataError, SettingsError
from roll_ray.home import inside_ray_job
from roll_ray.placement import device_slots, missing_devices
from roll_ray.settings import RunSettings
from roll_ray.weights.folders import shared_memory_base
from workers.tokenizer import load_tokenizer

_PROMPTS_LOOKED_AT = 200


def check_before_start(settings: RunSettings, task: Task, rules: Rules) -> None:
    """Raise RollRayError for a model folder that lacks a part, for functions that cannot travel to a worker, for
    prompts that leave no room for an answer or do not fit the domains' weights, and for engines and weights that need
    more memory than is free."""
    _check_devices(settings)
    check_model_folder(settings.model)
    check_picklable(f"the loss {settings.loss!r}", rules.registered_loss.function)
    if settings.replay is not None:
        return
    for domain, function in task.rewards.items():
        check_picklable(f"the reward function of domain {domain!r}", function)
    for domain, factory in task.environments.items():
        check_picklable(f"the environment of domain {domain!r}", factory)
    prompt_stream(task.train, settings.seed, settings.domain_weights)  # ids, and weights of domains
    _check_memory(settings)
    _check_prompts(settings, task)


def _check_devices(settings: RunSettings) -> None:
    """The devices named against this machine's, where the run would start a Ray of its own on CPUs."""
    machine = Machine.this()
    devices = settings.devices
    if devices.kind == "gpu" or machine.gpus or machine.cluster or devices.ray_address or inside_ray_job():
        return
    if missing := missing_devices(settings, device_slots(settings, machine.cores)):
        raise SettingsError("\n".join(missing))


def _check_prompts(settings: RunSettings, task: Task) -> None:
    """The first prompts against the context. One that fills it is replaced by another; if all do, nothing is left."""
    tokenizer, context = load_tokenizer(settings.model), context_of(settings)
    looked_at = task.train[:_PROMPTS_LOOKED_AT]
    lengths = [len(Observation.of(prompt).tokens(tokenizer)) for prompt in looked_at]
    too_long = [n for n in lengths if n >= context]
    if not too_long:
        return
    if len(too_long) < len(lengths):
        print(
            f"note: {len(too_long)} of the first {len(lengths)} prompts fill the context of {context} tokens: "
            "they get no answer and are replaced by others",
            flush=True,
        )
        return
    raise DataError(
        f"no prompt leaves room for a response (the first {len(lengths)} were looked at)",
        why=f"the shortest has {min(lengths)} tokens, and the context is {context}: engine.max_model_len="
        f"{settings.engine.max_model_len}, max_prompt_tokens={settings.max_prompt_tokens} and what the model allows",
        next_step=f"shorten the prompts, or raise what limits the context above {min(lengths)} tokens",
    )


def _check_memory(settings: RunSettings) -> None:
    """What a CPU machine's engines and weights take against what is free now. (A GPU's engines take a share of what
    is there, and a cluster's memory is not this machine's.)"""
    if settings.devices.kind == "gpu" or settings.devices.ray_address or os.environ.get("RAY_ADDRESS"):
        return
    check_memory(
        engines=len(settings.devices.rollout) // settings.engine.tensor_parallel,
        cache_mb=settings.engine.kv_cache_mb,
        weights_bytes=weights_bytes(settings.model, settings.dtype),
        free_bytes=free_memory_bytes(),
        shared=shared_memory_base(),
    )
