"""Discounted sums from each token to the end of its sample, y_t = x_t + decay y_{t+1}, without a loop over tokens.

The tokens of a sample are padded to whole blocks. One product with a triangular matrix of powers of the decay gives
the sums inside all blocks; the sums at the block heads are a series 64 times shorter with decay^64, treated in the
same way; what lies behind a block is added to it. Nothing passes between samples, so that NaN or infinity in one
reaches no other.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]
Floats = npt.NDArray[np.float64]
Counts = npt.NDArray[np.int64]
BLOCK = 64
PIECE_TOKENS = 2**17
"""Tokens handled at once, or one sample: what fits a core's cache."""


@dataclass(frozen=True, slots=True)
class Piece:
    """Some whole samples of a flat array: the places that count, padded to whole blocks for each sample.

    `tokens`: where they stand. `mask_T`: which of those count; None for all. `there_P`: which of the P padded
    places hold a token; None for all. `blocks_B`: blocks of each sample.
    """

    tokens: slice
    mask_T: npt.NDArray[np.bool_] | None
    there_P: npt.NDArray[np.bool_] | None
    blocks_B: Counts
    block: int

    def take(self, x_T: Array) -> Floats:
        """[P] in float64, 0 in the padding."""
        x_K = x_T[self.tokens] if self.mask_T is None else x_T[self.tokens][self.mask_T]
        if self.there_P is None:
            return x_K.astype(np.float64)
        x_P = np.zeros(len(self.there_P))
        x_P[self.there_P] = x_K
        return x_P

    def put(self, y_P: Array, out_T: Array) -> None:
        y_K = y_P if self.there_P is None else y_P[self.there_P]
        if self.mask_T is None:
            out_T[self.tokens] = y_K
        else:
            out_T[self.tokens][self.mask_T] = y_K

    def following(self, x_P: Floats) -> Floats:
        """x of the next token of the sample, 0 behind the last."""
        return _following(x_P, self.blocks_B * self.block)

    def sums(self, x_P: Floats, decay: float) -> Floats:
        """Discounted sums to the end of each sample, [P]."""
        return _scan(x_P, self.blocks_B, self.block, decay)


def pieces(offsets: Array, mask_T: Array | None = None) -> Iterator[Piece]:
    """All samples, in order: sample i owns tokens `offsets[i]:offsets[i + 1]`, of which `mask_T` says which count."""
    offsets = np.asarray(offsets, np.int64)
    start = 0
    while start < len(offsets) - 1:
        limit = np.searchsorted(offsets, offsets[start] + PIECE_TOKENS, side="right") - 1
        stop = max(start + 1, int(limit))
        yield _piece(offsets[start : stop + 1], mask_T)
        start = stop


def _piece(offsets: Counts, mask_T: Array | None) -> Piece:
    tokens = slice(int(offsets[0]), int(offsets[-1]))
    counts_B = np.diff(offsets)
    mask = None
    if mask_T is not None and not mask_T[tokens].all():
        mask = np.asarray(mask_T[tokens], np.bool_)
        counts_B = np.diff(np.searchsorted(np.flatnonzero(mask), offsets - offsets[0]))
    block = min(BLOCK, 1 << max(int(counts_B.max(initial=1)) - 1, 0).bit_length())
    blocks_B, there = _padding(counts_B, block)
    return Piece(tokens, mask, there, blocks_B, block)


def _padding(counts_B: Counts, block: int) -> tuple[Counts, npt.NDArray[np.bool_] | None]:
    blocks_B = -(-counts_B // block)
    missing_B = blocks_B * block - counts_B
    if not missing_B.any():
        return blocks_B, None
    runs = np.stack([counts_B, missing_B], axis=1).reshape(-1)
    return blocks_B, np.repeat(np.tile([True, False], len(counts_B)), runs)


def _following(x: Floats, lengths: Counts) -> Floats:
    following = np.zeros_like(x)
    following[:-1] = x[1:]
    following[np.cumsum(lengths)[lengths > 0] - 1] = 0.0
    return following


def _scan(x_P: Floats, blocks_B: Counts, block: int, decay: float) -> Floats:
    inside = x_P.reshape(-1, block) @ _powers(block, decay)
    if blocks_B.max(initial=0) > 1:
        heads = _scan_ragged(inside[:, 0], blocks_B, decay**block)
        behind = _following(heads, blocks_B)
        inside += behind[:, None] * decay ** np.arange(block, 0, -1.0)
    return inside.reshape(-1)


def _scan_ragged(x: Floats, counts_B: Counts, decay: float) -> Floats:
    blocks_B, there = _padding(counts_B, BLOCK)
    padded = np.zeros(int(blocks_B.sum()) * BLOCK)
    where = slice(None) if there is None else there
    padded[where] = x
    return _scan(padded, blocks_B, BLOCK, decay)[where]


@lru_cache(maxsize=8)
def _powers(block: int, decay: float) -> Floats:
    """[k, j]: decay^(k - j) from j on, 0 before it."""
    distance = np.subtract.outer(np.arange(block), np.arange(block))
    return np.where(distance >= 0, decay ** np.maximum(distance, 0.0), 0.0)


def suffix_sums(x_T: Array, offsets: Array, decay: float) -> Floats:
    """y_t = x_t + decay y_{t+1} inside each sample, [T] in float64. Samples are independent of one another."""
    out_T = np.zeros(len(x_T))
    for piece in pieces(offsets):
        piece.put(piece.sums(piece.take(x_T), decay), out_T)
    return out_T
