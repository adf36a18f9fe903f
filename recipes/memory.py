"""Whether caches and published weights fit into what is free on this machine, before anything is started."""

from __future__ import annotations

import json
import math
import os
from pathlib import Path

from roll_ray.errors import RollRayError
from roll_ray.weights.folders import check_free

VERSIONS_AT_ONCE = 2
"""The last published version stays in shared memory while the next is written."""

_VALUE_BYTES = {"float32": 4, "bfloat16": 2}
_MEMINFO = Path("/proc/meminfo")
_MIB = 1 << 20


def check_memory(*, engines: int, cache_mb: int, weights_bytes: int, free_bytes: int, shared: Path) -> None:
    """Raise RollRayError unless `engines` caches of `cache_mb` MiB and two versions of the weights fit.

    `free_bytes` is the memory that is available now. Shared memory is memory too, and its file system `shared` has
    a limit of its own. A lower bound: the engines' and trainers' own copies come on top.
    """
    published_bytes = VERSIONS_AT_ONCE * weights_bytes
    cache_bytes = engines * cache_mb * _MIB
    if cache_bytes + published_bytes > free_bytes:
        room_mb = max(0, free_bytes - published_bytes) // _MIB // max(1, engines)
        weights = f", and two versions of the weights are {_mib(published_bytes)}" if published_bytes else ""
        raise RollRayError(
            f"engine.kv_cache_mb={cache_mb} for {engines} engines is {_mib(cache_bytes)}{weights}",
            why=f"{_mib(free_bytes)} of memory are available now",
            next_step=f"set engine.kv_cache_mb to some {room_mb // 4}, which leaves room for engines and trainers"
            if room_mb >= 4
            else "end other programs, or take a smaller model",
        )
    check_free(shared, published_bytes)


def free_memory_bytes() -> int:
    """What programs can still get without swapping (MemAvailable)."""
    for line in _MEMINFO.read_text().splitlines():
        name, _, value = line.partition(":")
        if name == "MemAvailable":
            return int(value.split()[0]) * 1024
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_AVPHYS_PAGES")  # kernels before 3.14


def weights_bytes(model: str, dtype: str) -> int:
    """Bytes of a model folder's weights in `dtype`; 0 for a hub name, whose size is not known here."""
    folder = Path(model).expanduser()
    if files := list(folder.glob("*.safetensors")):
        return sum(map(_values, files)) * _VALUE_BYTES[dtype]
    return sum(file.stat().st_size for file in folder.glob("pytorch_model*.bin"))


def _values(file: Path) -> int:
    """How many numbers a safetensors file holds, from its header (8 bytes of length, then JSON)."""
    try:
        with file.open("rb") as opened:
            header = json.loads(opened.read(int.from_bytes(opened.read(8), "little")))
        return sum(math.prod(entry["shape"]) for name, entry in header.items() if name != "__metadata__")
    except (ValueError, OverflowError, MemoryError, LookupError, TypeError, AttributeError):
        raise RollRayError(
            f"{file} is not a safetensors file",
            why="its header cannot be read: it is cut short, or a pointer that git-lfs left in its place",
            next_step="download it again (`git lfs pull`, or the hub's own client)",
        ) from None


def _mib(n_bytes: int) -> str:
    return f"{n_bytes // _MIB:,} MiB"
