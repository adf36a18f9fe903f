"""Bucket files as they are written: tensors appended piece by piece, outdated files written again.

New pages of shared memory cost three times as much as the copy itself. So the files of an outdated version are
kept, as the spare, and written again, through mappings that this process keeps: unless a reader has them
mapped, which its lock tells (a lock lives as long as the mapping).
"""

from __future__ import annotations

import fcntl
import mmap
import os
import shutil
from collections.abc import Iterable
from pathlib import Path
from types import TracebackType

import torch
import xxhash

from roll_ray.weights.folders import free_bytes, no_room
from roll_ray.weights.manifest import TensorEntry

SPARE = ".spare"
READ_ONLY = 0o444
_ALIGNMENT = 64
_PIECE = 256 << 10


class WritableMaps:
    """Mappings of the bucket files that this process wrote, by inode: mapping anew would cost a third of the speed."""

    def __init__(self) -> None:
        self._by_inode: dict[int, mmap.mmap] = {}

    def of(self, file: int) -> mmap.mmap | bytes:
        """A writable mapping of what the file has; nothing for a new file."""
        status = os.fstat(file)
        if not status.st_size:
            return b""
        if status.st_ino not in self._by_inode:
            self._by_inode[status.st_ino] = mmap.mmap(
                file, status.st_size, flags=mmap.MAP_SHARED | mmap.MAP_POPULATE
            )
        return self._by_inode[status.st_ino]

    def cut(self, file: int, size: int) -> None:
        """Give the file its size; a mapping of another size would reach beyond its end."""
        status = os.fstat(file)
        if status.st_size != size:
            self._by_inode.pop(status.st_ino, None)
            os.ftruncate(file, size)

    def keep_only(self, folders: Iterable[Path]) -> None:
        """Unmap what is no longer there, so that its memory is free."""
        inodes = {p.stat().st_ino for folder in folders for p in folder.glob("bucket-*.bin")}
        self._by_inode = {i: m for i, m in self._by_inode.items() if i in inodes}


class BucketWriter:
    """Appends tensors to bucket files, opening the next file when one is full."""

    def __init__(self, folder: Path, bucket_bytes: int, maps: WritableMaps) -> None:
        self.entries: list[TensorEntry] = []
        self.sizes: list[int] = []
        self._folder, self._bucket_bytes = folder, bucket_bytes
        self._spare = folder.parent / SPARE
        self._maps = maps
        self._file, self._pages = -1, memoryview(b"")

    def __enter__(self) -> BucketWriter:
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
        """Copy into the file and hash, piece by piece: a piece is hashed while it is still in the CPU's cache."""
        digest = xxhash.xxh3_64()
        try:
            for start in range(0, data.nbytes, _PIECE):
                piece, place = data[start : start + _PIECE], offset + start
                if place + piece.nbytes <= len(self._pages):
                    self._pages[place : place + piece.nbytes] = piece
                else:
                    _write_all(self._file, piece, place)
                digest.update(piece)
        except OSError as error:
            raise no_room(self._folder.parent, data.nbytes, free_bytes(self._folder)) from error
        return digest.intdigest()

    def _open_next(self) -> None:
        self._close()
        path = self._folder / f"bucket-{len(self.sizes):03d}.bin"
        _reuse(self._spare / path.name, path)
        self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        fcntl.flock(self._file, fcntl.LOCK_EX)
        self._pages = memoryview(self._maps.of(self._file))
        self.sizes.append(0)

    def _close(self) -> None:
        if self._file >= 0:
            self._pages.release()
            self._maps.cut(self._file, self.sizes[-1])
            os.fchmod(self._file, READ_ONLY)
            fcntl.flock(self._file, fcntl.LOCK_UN)  # the mapping that is kept would go on holding it
            os.close(self._file)
            self._file = -1


def _write_all(file: int, data: memoryview, offset: int) -> None:
    while data.nbytes:
        written = os.pwrite(file, data, offset)
        data, offset = data[written:], offset + written


def retire(folder: Path) -> None:
    """Take a version off the shelf: its pages are kept to be written again where memory is plenty, else freed."""
    spare = folder.parent / SPARE
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
