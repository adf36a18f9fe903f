"""Numbers per token that a trainer rank keeps of samples between two calls, by sample and attempt."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from roll_ray.batch import Batch
from schedulers.protocol import SampleId

Floats = npt.NDArray[np.float32]


class KeptTokens:
    """Kept under `name`, the field of `extra_T` that they will be."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._kept: dict[tuple[SampleId, int], Floats] = {}

    def keep(self, share: Batch, values_T: Floats) -> None:
        for i, key in enumerate(_keys(share)):
            self._kept[key] = values_T[share.token_span(i)]

    def change(self, function: Callable[[Floats], Floats]) -> None:
        """Put every sample's numbers through a function that works on each of them by itself."""
        self._kept = {key: function(values_T) for key, values_T in self._kept.items()}

    def onto(self, share: Batch) -> Batch:
        """The share with what was kept of its samples, which is then forgotten; as it is where nothing was.

        ValueError: some were kept and some not."""
        values = [self._kept.pop(key, None) for key in _keys(share)]
        known = [value for value in values if value is not None]
        if not known:
            return share
        if len(known) < len(values):
            raise ValueError(f"{self.name} are known of {len(known)} of {len(values)} samples only")
        return with_tokens(share, self.name, np.concatenate(known))

    def clear(self) -> None:
        self._kept.clear()


def with_tokens(share: Batch, name: str, values_T: Floats) -> Batch:
    """The share with `extra_T[name]`."""
    return dataclasses.replace(share, extra_T={**share.extra_T, name: values_T})


def _keys(share: Batch) -> list[tuple[SampleId, int]]:
    return [(sample, int(attempt)) for sample, attempt in zip(share.ids, share.attempts_B, strict=True)]
