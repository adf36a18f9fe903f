"""What can be known to be wrong with a run before any worker is started: the model's parts, the task's functions."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from roll_ray.cluster.actors import check_picklable
from roll_ray.errors import RollRayError
from roll_ray.settings import RunSettings
from workers.model_context import vocabulary_size
from workers.tokenizer import load_tokenizer

if TYPE_CHECKING:
    from recipes.pipeline import Task


def check_before_start(settings: RunSettings, task: Task) -> None:
    """Raise RollRayError for a model without a tokenizer of its own size, for functions that cannot travel to a
    worker, and for engines that ask for more memory than this machine has."""
    _check_tokenizer(settings.model)
    if settings.replay is None:
        for domain, function in task.rewards.items():
            check_picklable(f"the reward function of domain {domain!r}", function)
        for domain, factory in task.environments.items():
            check_picklable(f"the environment of domain {domain!r}", factory)
        _check_memory(settings)


def _check_tokenizer(model: str) -> None:
    known, largest = vocabulary_size(model), load_tokenizer(model).largest_token_id()
    if known is not None and largest >= known:
        raise RollRayError(
            f"the tokenizer of {model} is not its own",
            why=f"it has token ids up to {largest}, and the model knows {known} tokens (0 to {known - 1})",
            next_step="put the tokenizer that the model was trained with into its folder; for added tokens, "
            "enlarge the model's embeddings first (resize_token_embeddings)",
        )


def _check_memory(settings: RunSettings) -> None:
    """The caches of a CPU machine's engines against its memory. (A GPU's engines take a share of what is there.)"""
    if settings.devices.kind == "gpu" or settings.devices.ray_address or os.environ.get("RAY_ADDRESS"):
        return
    engines = len(settings.devices.rollout) // settings.engine.tensor_parallel
    asked_mb = engines * settings.engine.kv_cache_mb
    there_mb = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") >> 20
    if asked_mb > there_mb:
        raise RollRayError(
            f"engine.kv_cache_mb={settings.engine.kv_cache_mb} for {engines} engines is {asked_mb:,} MiB",
            why=f"this machine has {there_mb:,} MiB of memory",
            next_step=f"set engine.kv_cache_mb to at most {max(1, there_mb // engines // 4)}, which leaves room "
            "for weights and trainers",
        )
