"""Writing a model's tensors into read-only bucket files, and reading them back without a copy.

A version is written under a temporary name and renamed when complete, so a reader sees all of it or nothing.
Tensors stream: at no time is there a second copy of the model beside the files. Readers hold a shared lock
on what they have mapped (a lock lives as long as the mapping). That tells the writer whether the pages of an
outdated version may be written again, which is three times as fast as new pages; mapped ones never change.
"""

from __future__ import annotations

import fcntl
import mmap
import os
import shutil
import warnings
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import TracebackType

import numpy as np
import numpy.typing as npt
import torch
import xxhash

from roll_ray.errors import RollRayError, WeightUpdateError
from roll_ray.weights.folders import check_free, free_bytes, no_room, own
from roll_ray.weights.manifest import TensorEntry, WeightManifest
from roll_ray.weights.transaction import ArrivalLog

BUCKET_BYTES = 256 << 20
_ALIGNMENT = 64
_WRITE_CHUNK = 64 << 20
_THREAD_FROM_BYTES = 1 << 20  # hashing in a second thread pays from here on
_SPARE = ".spare"
_READ_ONLY = 0o444

_hasher = ThreadPoolExecutor(1, "weight-hash")  # xxhash lets go of the interpreter lock while it runs


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
    try:
        with _BucketWriter(temporary, Path(folder_root) / _SPARE, bucket_bytes) as writer:
            for name, tensor in named_tensors:
                writer.add(name, tensor)
    except BaseException:
        shutil.rmtree(temporary, ignore_errors=True)
        raise
    if final.exists():
        _retire(final)
    temporary.rename(final)
    _retire_older(Path(folder_root), version, keep)
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
    waiting = None
    for entry, tensor, data in _mapped(manifest):
        digest = _hasher.submit(_xxh3, data)
        if waiting is not None:
            yield waiting[0], waiting[1], waiting[2].result()
        waiting = entry, tensor, digest
    if waiting is not None:
        yield waiting[0], waiting[1], waiting[2].result()


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
        path.chmod(_READ_ONLY)
    if final.exists():
        _retire(final)
    temporary.rename(final)
    _retire_older(Path(folder_root), manifest.version, keep)
    return manifest.in_folder(str(final))


class _BucketWriter:
    """Appends tensors to bucket files, opening the next file when one is full."""

    def __init__(self, folder: Path, spare: Path, bucket_bytes: int) -> None:
        self.entries: list[TensorEntry] = []
        self.sizes: list[int] = []
        self._folder, self._spare, self._bucket_bytes = folder, spare, bucket_bytes
        self._file = -1

    def __enter__(self) -> _BucketWriter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._close()
        shutil.rmtree(self._spare, ignore_errors=True)

    def add(self, name: str, tensor: torch.Tensor) -> None:
        tensor = tensor.detach().cpu().contiguous()
        data = memoryview(tensor.reshape(-1).view(torch.uint8).numpy()) if tensor.numel() else memoryview(b"")
        if self._file < 0 or (self.sizes[-1] and self.sizes[-1] + data.nbytes > self._bucket_bytes):
            self._open_next()
        offset = -(-self.sizes[-1] // _ALIGNMENT) * _ALIGNMENT
        self.entries.append(
            TensorEntry(
                name=name,
                dtype=str(tensor.dtype).removeprefix("torch."),
                shape=tuple(tensor.shape),
                bucket=len(self.sizes) - 1,
                offset=offset,
                nbytes=data.nbytes,
                xxh3=self._write(data, offset),
            )
        )
        self.sizes[-1] = offset + data.nbytes

    def _write(self, data: memoryview, offset: int) -> int:
        """Copy into the file while a second thread hashes; the hash."""
        big = data.nbytes >= _THREAD_FROM_BYTES
        digest = _hasher.submit(_xxh3, data) if big else None
        try:
            for start in range(0, data.nbytes, _WRITE_CHUNK):
                _write_all(self._file, data[start : start + _WRITE_CHUNK], offset + start)
        except OSError as error:
            raise no_room(self._folder.parent, data.nbytes, free_bytes(self._folder)) from error
        return digest.result() if digest else _xxh3(data)

    def _open_next(self) -> None:
        self._close()
        path = self._folder / f"bucket-{len(self.sizes):03d}.bin"
        _reuse(self._spare / path.name, path)
        self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        fcntl.flock(self._file, fcntl.LOCK_EX)
        self.sizes.append(0)

    def _close(self) -> None:
        if self._file >= 0:
            os.ftruncate(self._file, self.sizes[-1])
            os.fchmod(self._file, _READ_ONLY)
            os.close(self._file)
            self._file = -1


def _xxh3(data: memoryview) -> int:
    return xxhash.xxh3_64_intdigest(data)


def _write_all(file: int, data: memoryview, offset: int) -> None:
    while data.nbytes:
        written = os.pwrite(file, data, offset)
        data, offset = data[written:], offset + written


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
        _retire(folder)


def _retire(folder: Path) -> None:
    """Take a version off the shelf: its pages are kept to be written again where memory is plenty, else freed."""
    spare = folder.parent / _SPARE
    nbytes = sum(p.stat().st_size for p in folder.glob("bucket-*.bin"))
    if spare.exists() or nbytes > free_bytes(folder) // 2:
        shutil.rmtree(folder, ignore_errors=True)
    else:
        folder.rename(spare)


def _reuse(spare: Path, path: Path) -> None:
    """Move a retired bucket to its next use, unless somebody has it mapped: then it stays what it is."""
    if not spare.exists():
        return
    file = os.open(spare, os.O_RDONLY | os.O_CLOEXEC)
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return
    else:
        spare.chmod(0o600)
        spare.rename(path)
    finally:
        os.close(file)


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
