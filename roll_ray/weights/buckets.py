"""Writing a model's tensors into read-only bucket files, and reading them back without a copy.

A version is written under a temporary name and renamed when complete, so a reader sees all of it or nothing.
Tensors stream: at no time is there a second copy of the model beside the files. What a reader has mapped never
changes.
"""

from __future__ import annotations

import fcntl
import mmap
import os
import shutil
import warnings
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
import xxhash

from roll_ray.errors import RollRayError, WeightUpdateError
from roll_ray.weights.bucket_files import READ_ONLY, SPARE, BucketWriter, WritableMaps, retire
from roll_ray.weights.folders import check_free, kept_mappings, own
from roll_ray.weights.manifest import TensorEntry, WeightManifest
from roll_ray.weights.transaction import ArrivalLog

BUCKET_BYTES = 256 << 20
_HASHED_AHEAD = 2
# xxhash lets go of the interpreter lock while it runs
_hashers = ThreadPoolExecutor(_HASHED_AHEAD, "weight-hash")


def write_buckets(
    folder_root: str,
    version: int,
    named_tensors: Iterable[tuple[str, torch.Tensor]],
    bucket_bytes: int = BUCKET_BYTES,
    *,
    total_bytes: int | None = None,
    fallback_root: str | None = None,
    keep: int = 1,
) -> WeightManifest:
    """Publish a version: its tensors, in the order given, in files below `folder_root`/v000012.

    The last `keep` versions stay, older ones go. `total_bytes` lets missing room be found before the first
    byte (a sequence of tensors is counted by itself); without room `fallback_root` is used where given.
    Tensors may be on any device and of any layout. Raises `RollRayError` for missing room, with nothing left
    behind. A version that exists already is replaced.
    """
    if total_bytes is None and isinstance(named_tensors, Sequence):
        total_bytes = sum(t.numel() * t.element_size() for _, t in named_tensors)
    folder_root = _root_with_room(folder_root, fallback_root, total_bytes or 0)
    final = Path(folder_root) / f"v{version:06d}"
    temporary = Path(folder_root) / f".writing-{final.name}"
    shutil.rmtree(temporary, ignore_errors=True)
    temporary.mkdir()
    maps = kept_mappings.setdefault(folder_root, WritableMaps())
    try:
        with BucketWriter(temporary, bucket_bytes, maps) as writer:
            for name, tensor in named_tensors:
                writer.add(name, tensor)
    except BaseException:
        shutil.rmtree(temporary, ignore_errors=True)
        raise
    if final.exists():
        retire(final)
    temporary.rename(final)
    _retire_older(Path(folder_root), version, keep)
    maps.keep_only([*Path(folder_root).glob("v*"), Path(folder_root) / SPARE])
    return WeightManifest(version, str(final), tuple(writer.sizes), tuple(writer.entries))


def read_tensors(manifest: WeightManifest) -> Iterator[tuple[str, torch.Tensor]]:
    """The tensors of a published version, mapped, in their order; each hash is verified before it is handed out.

    Treat them as read-only. Raises `WeightUpdateError`, naming the tensor, when its bytes are not those
    published, and when the version is gone.
    """
    log = ArrivalLog(manifest)
    for entry, tensor, digest in hashed_tensors(manifest):
        log.arrived(entry.name, digest)
        yield entry.name, tensor


def hashed_tensors(manifest: WeightManifest) -> Iterator[tuple[TensorEntry, torch.Tensor, int]]:
    """Each tensor with the hash of its bytes, not yet compared; the next is hashed while the consumer works."""
    waiting: deque[tuple[TensorEntry, torch.Tensor, Future[int]]] = deque()
    for entry, tensor, data in _mapped(manifest):
        waiting.append((entry, tensor, _hashers.submit(_xxh3, data)))
        if len(waiting) > _HASHED_AHEAD:
            entry, tensor, digest = waiting.popleft()
            yield entry, tensor, digest.result()
    for entry, tensor, digest in waiting:
        yield entry, tensor, digest.result()


def bucket_array(manifest: WeightManifest, bucket: int) -> npt.NDArray[np.uint8]:
    """A bucket as a mapped array, to be sent to another node as it is."""
    return np.frombuffer(_map(manifest, bucket), np.uint8)


def bucket_bytes(manifest: WeightManifest) -> list[npt.NDArray[np.uint8]]:
    """All buckets as mapped arrays."""
    return [bucket_array(manifest, bucket) for bucket in range(len(manifest.bucket_sizes))]


def receive_buckets(
    manifest: WeightManifest, arrays: Sequence[npt.NDArray[np.uint8]], folder_root: str, keep: int = 1
) -> WeightManifest:
    """Write buckets that came over the wire to this node's memory; the manifest that names them there.

    Raises `WeightUpdateError` when their number or sizes differ from the manifest's.
    """
    sizes = tuple(array.nbytes for array in arrays)
    if sizes != manifest.bucket_sizes:
        raise WeightUpdateError(
            f"weight version {manifest.version}: buckets of {list(sizes)} bytes arrived, "
            f"its manifest has {list(manifest.bucket_sizes)}"
        )
    check_free(folder_root, sum(sizes))
    final = Path(own(folder_root)) / f"v{manifest.version:06d}"
    temporary = Path(folder_root) / f".writing-{final.name}"
    shutil.rmtree(temporary, ignore_errors=True)
    temporary.mkdir()
    for bucket, array in enumerate(arrays):
        path = manifest.in_folder(str(temporary)).bucket_path(bucket)
        path.write_bytes(array.data)
        path.chmod(READ_ONLY)
    if final.exists():
        retire(final)
    temporary.rename(final)
    _retire_older(Path(folder_root), manifest.version, keep)
    return manifest.in_folder(str(final))


def _root_with_room(folder_root: str, fallback_root: str | None, needed_bytes: int) -> str:
    try:
        check_free(folder_root, needed_bytes)
    except RollRayError:
        if fallback_root is None:
            raise
        check_free(fallback_root, needed_bytes)
        return own(fallback_root)
    return own(folder_root)


def _retire_older(folder_root: Path, version: int, keep: int) -> None:
    older = sorted(p for p in folder_root.glob("v*") if p.name[1:].isdigit() and int(p.name[1:]) < version)
    for folder in older[: max(0, len(older) - keep + 1)]:
        retire(folder)


def _map(manifest: WeightManifest, bucket: int) -> mmap.mmap:
    """A bucket, mapped and locked against re-use for as long as the mapping lives."""
    path = manifest.bucket_path(bucket)
    try:
        file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError as error:
        raise _gone(manifest, path) from error
    try:
        fcntl.flock(file, fcntl.LOCK_SH)
        status = os.fstat(file)
        if not path.exists() or path.stat().st_ino != status.st_ino:
            raise _gone(manifest, path)
        if status.st_size != manifest.bucket_sizes[bucket]:
            raise WeightUpdateError(
                f"weight version {manifest.version}: {path} has {status.st_size} bytes, "
                f"its manifest says {manifest.bucket_sizes[bucket]}"
            )
        return mmap.mmap(file, status.st_size, flags=mmap.MAP_SHARED, prot=mmap.PROT_READ)
    finally:
        os.close(file)


def _gone(manifest: WeightManifest, path: Path) -> WeightUpdateError:
    return WeightUpdateError(
        f"weight version {manifest.version} is no longer in {path.parent}",
        why="only the last published version is kept, or its owner has ended",
        next_step="update with the manifest published last",
    )


def _mapped(manifest: WeightManifest) -> Iterator[tuple[TensorEntry, torch.Tensor, memoryview]]:
    maps: dict[int, mmap.mmap] = {}
    for entry in manifest.tensors:
        dtype = getattr(torch, entry.dtype)
        if not entry.nbytes:
            yield entry, torch.empty(entry.shape, dtype=dtype), memoryview(b"")
            continue
        if entry.bucket not in maps:
            maps = {entry.bucket: _map(manifest, entry.bucket)}
        memory = memoryview(maps[entry.bucket])[entry.offset : entry.offset + entry.nbytes]
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="The given buffer is not writable")
            flat = torch.frombuffer(memory, dtype=dtype)
        yield entry, flat.view(entry.shape), memory


def _xxh3(data: memoryview) -> int:
    return xxhash.xxh3_64_intdigest(data)
