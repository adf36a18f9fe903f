"""What a rollout engine is made of, and what can be known to be wrong before it starts. Imports no vLLM."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from roll_ray.errors import RollRayError
from roll_ray.weight_transfer import WeightTransfer

BLOCK_TOKENS = 32  # vLLM's own 128 on CPU never lets a short prompt hit the prefix cache
_CPU_HEAD_SIZES = (32, 64, 80, 96, 112, 128, 160, 192, 224, 256, 512)
_STEP_TOKENS = 8192  # prompt tokens in one engine step


@dataclass(frozen=True, slots=True)
class EngineSpec:
    """A rollout engine, as settings and placement decided it.

    `model` is a folder or hub name. `threads` are OpenMP threads per worker process (CPU). `kv_cache_mb` sizes
    the cache on CPU; on GPU it is what `gpu_memory_utilization` leaves. `seeded_requests` promises that
    requests may carry seeds. `weight_backend` is "shm", or "ipc" / "nccl" on GPU (see workers.vllm_gpu). `sleeps`:
    the engine shares its GPU with a trainer and leaves it the memory while that trains.
    """

    model: str
    name: str = "rollout-0"
    dtype: str = "float32"
    tensor_parallel: int = 1
    max_model_len: int | None = None
    max_running_requests: int = 256
    kv_cache_mb: int = 256
    gpu_memory_utilization: float = 0.9
    enforce_eager: bool = True
    threads: int = 1
    seed: int = 0
    device: Literal["cpu", "gpu"] = "cpu"
    seeded_requests: bool = False
    weight_backend: WeightTransfer = "shm"
    sleeps: bool = False
    partial_interval_s: float = 0.25


@dataclass(frozen=True, slots=True)
class EngineInfo:
    """What a started engine is: `pid` of the process that computes."""

    max_model_len: int
    vocab_size: int
    version: int
    pid: int


@dataclass(frozen=True, slots=True)
class CommitReport:
    """A committed weight update: seconds by stage (pause, hash, load, repack, canary, total), and the largest
    difference in nats between engine and trainer on the canary (None without one)."""

    version: int
    seconds: dict[str, float]
    canary_difference: float | None = None


def check_model_folder(spec: EngineSpec) -> None:
    """Raise `RollRayError` for what would otherwise end in an engine that dies at start with a long trace."""
    folder = Path(spec.model)
    if not folder.is_dir():
        if os.sep in spec.model and (folder.is_absolute() or spec.model.startswith(".")):
            raise RollRayError(
                f"{spec.name}: the model folder {spec.model} does not exist",
                next_step="set model to a folder with config.json and *.safetensors, or to a hub name",
            )
        return
    config = _read_config(spec, folder)
    if not [*folder.glob("*.safetensors"), *folder.glob("*.bin")]:
        raise RollRayError(
            f"{spec.name}: {folder} has no weights (*.safetensors)",
            why="the engine starts from the folder's weights",
            next_step="save the model there with save_pretrained, or finish its download",
        )
    config = config.get("text_config", config)
    _check_head_size(spec, folder, config)
    longest = config.get("max_position_embeddings")
    if spec.max_model_len and longest and spec.max_model_len > longest:
        raise RollRayError(
            f"{spec.name}: a context of {spec.max_model_len} tokens is asked for, {folder} has {longest}",
            why="max_position_embeddings in its config.json is the length it was trained for",
            next_step=f"ask for at most {longest} tokens of prompt and response together",
        )


def _read_config(spec: EngineSpec, folder: Path) -> dict[str, Any]:
    try:
        config = json.loads((folder / "config.json").read_text())
    except FileNotFoundError:
        raise RollRayError(
            f"{spec.name}: {folder} is not a model folder: there is no config.json in it",
            next_step="set model to a folder that save_pretrained wrote, or to a hub name",
        ) from None
    except ValueError as error:
        raise RollRayError(f"{spec.name}: {folder / 'config.json'} cannot be read", why=str(error)) from error
    return dict(config)


def _check_head_size(spec: EngineSpec, folder: Path, config: dict[str, Any]) -> None:
    heads, hidden = config.get("num_attention_heads"), config.get("hidden_size")
    size = config.get("head_dim") or (hidden // heads if hidden and heads else None)
    if spec.device == "cpu" and size is not None and size not in _CPU_HEAD_SIZES:
        raise RollRayError(
            f"{spec.name}: {folder} has attention heads of size {size}, which vLLM cannot run on CPU",
            why=f"its CPU attention knows head sizes {', '.join(map(str, _CPU_HEAD_SIZES))}",
            next_step="choose a model with another head size, or run on GPU",
        )
    if heads and heads % spec.tensor_parallel:
        raise RollRayError(
            f"{spec.name}: {heads} attention heads cannot be shared by tensor_parallel={spec.tensor_parallel}",
            next_step=f"set it to a divisor of {heads}",
        )


def set_environment(spec: EngineSpec) -> None:
    """Variables that vLLM reads when it is imported or starts its processes."""
    wanted = {
        "VLLM_WORKER_MULTIPROCESSING_METHOD": "spawn",
        "VLLM_NO_USAGE_STATS": "1",
        "VLLM_LOGGING_LEVEL": os.environ.get("VLLM_LOGGING_LEVEL", "ERROR"),
        "TOKENIZERS_PARALLELISM": "false",
    }
    if spec.device == "cpu":
        binding = "nobind" if spec.tensor_parallel == 1 else "|".join(map(str, range(spec.tensor_parallel)))
        wanted |= {
            "VLLM_ENABLE_V1_MULTIPROCESSING": "0",  # one process less, 6 s less at start
            "VLLM_CPU_OMP_THREADS_BIND": binding,
            "OMP_NUM_THREADS": str(spec.threads),
        }
        if spec.enforce_eager:
            wanted["TORCH_COMPILE_DISABLE"] = (
                "1"  # else a few sampler functions are compiled at first use, 4 to 20 s
            )
        os.environ.pop("VLLM_CPU_KVCACHE_SPACE", None)  # it would override kv_cache_mb
    if spec.weight_backend == "ipc":
        wanted["VLLM_ALLOW_INSECURE_SERIALIZATION"] = (
            "1"  # handles hold Python types, which msgpack alone refuses
        )
    os.environ.update(wanted)


def engine_arguments(spec: EngineSpec) -> dict[str, Any]:
    """Keyword arguments of vLLM's `AsyncEngineArgs`."""
    arguments: dict[str, Any] = {
        "model": spec.model,
        "dtype": spec.dtype,
        "seed": spec.seed,
        "tensor_parallel_size": spec.tensor_parallel,
        "max_model_len": spec.max_model_len,
        "max_num_seqs": spec.max_running_requests,
        "max_num_batched_tokens": max(_STEP_TOKENS, spec.max_model_len or 0),
        "enforce_eager": spec.enforce_eager,
        "skip_tokenizer_init": True,
        "enable_prefix_caching": True,
        "block_size": BLOCK_TOKENS,
        "logprobs_mode": "processed_logprobs",
        "max_logprobs": -1,  # scoring at another temperature needs the whole vocabulary
        "async_scheduling": False,  # no step is under way when a pause returns
        "generation_config": "vllm",  # nothing but the request decides the sampling
        "weight_transfer_config": {
            "backend": "roll_ray_shm" if spec.weight_backend == "shm" else spec.weight_backend
        },
        "worker_extension_cls": "workers.vllm_weights.RollRayWorker",
        "enable_log_requests": False,
        "use_tqdm_on_load": False,
    }
    if spec.device == "gpu":
        return arguments | {
            "gpu_memory_utilization": spec.gpu_memory_utilization,
            "enable_sleep_mode": spec.sleeps,
        }
    # CPU generators have no offset, so a seeded request whose prompt is split in chunks would end the engine
    return arguments | {
        "gpu_memory_utilization": 0.1,
        "kv_cache_memory_bytes": spec.kv_cache_mb << 20,
        "enable_chunked_prefill": not spec.seeded_requests,
    }
