"""What a published weight version consists of: small, picklable, and plain enough for any wire."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from roll_ray.generation import Canary


@dataclass(frozen=True, slots=True)
class TensorEntry:
    """Where one tensor lies and the XXH3-64 of its bytes. `dtype` is torch's name, such as "bfloat16"."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    bucket: int
    offset: int
    nbytes: int
    xxh3: int


@dataclass(frozen=True, slots=True)
class WeightManifest:
    """A weight version: `folder` holds the files bucket-000.bin ..., of `bucket_sizes` bytes each.

    `canary` is a fixed sequence with the trainer's log-probabilities under these weights.
    """

    version: int
    folder: str
    bucket_sizes: tuple[int, ...]
    tensors: tuple[TensorEntry, ...]
    canary: Canary | None = None

    @property
    def nbytes(self) -> int:
        """Bytes of all tensors, padding between them not counted."""
        return sum(entry.nbytes for entry in self.tensors)

    def bucket_path(self, bucket: int) -> Path:
        return Path(self.folder) / f"bucket-{bucket:03d}.bin"

    def with_canary(self, canary: Canary) -> WeightManifest:
        return replace(self, canary=canary)

    def in_folder(self, folder: str) -> WeightManifest:
        """The same version, its buckets copied to another folder."""
        return replace(self, folder=folder)

    def same_weights_as(self, other: WeightManifest) -> bool:
        """Whether both name the same tensors with the same bytes; folders and canaries may differ."""
        return {(t.name, t.dtype, t.shape, t.xxh3) for t in self.tensors} == {
            (t.name, t.dtype, t.shape, t.xxh3) for t in other.tensors
        }

    def to_plain(self) -> dict[str, Any]:
        """Only dicts, lists, strings and numbers (an engine process is reached by msgpack)."""
        return asdict(self)

    @staticmethod
    def from_plain(plain: dict[str, Any]) -> WeightManifest:
        canary = plain["canary"]
        return WeightManifest(
            version=plain["version"],
            folder=plain["folder"],
            bucket_sizes=tuple(plain["bucket_sizes"]),
            tensors=tuple(TensorEntry(**{**t, "shape": tuple(t["shape"])}) for t in plain["tensors"]),
            canary=None
            if canary is None
            else Canary(tuple(canary["token_ids"]), tuple(canary["logprobs"]), canary["tolerance"]),
        )
