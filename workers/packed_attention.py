"""Attention over packed sequences: tokens of many sequences in one row, no padding, nothing attends across.

transformers has three ways of doing this silently wrong (an attention mask of ones, a cache, a boolean
mask in eager attention), so the mask that it builds is never used here: the layout travels to our own
attention function as a keyword, and a call without it is an error.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

import torch
import torch.nn.functional as F
from transformers import AttentionInterface
from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS

from roll_ray.errors import RollRayError

PACKED_ATTENTION = "roll_ray_packed"
"""The name under which transformers finds it: `attn_implementation=PACKED_ATTENTION`."""

SHORT_TOKENS = 256
"""Up to this length bfloat16 attention on a CPU computes in float32."""


@dataclass(frozen=True, slots=True)
class PackedLayout:
    """Where sequences lie in a packed row of T tokens.

    `groups`: runs of neighbours of equal length, as (how many, length); each run is computed as one batch, so
    sequences are best sorted by length. `ends` is int32 [S + 1], from 0 to T, on the device of the tokens.
    """

    groups: tuple[tuple[int, int], ...]
    ends: torch.Tensor
    max_length: int

    @staticmethod
    def of(lengths: Sequence[int], device: torch.device | str = "cpu") -> PackedLayout:
        if any(n <= 0 for n in lengths) or not lengths:
            raise ValueError(f"every packed sequence needs a token, got lengths {list(lengths)}")
        ends = torch.tensor([0, *lengths], dtype=torch.int32).cumsum(0, dtype=torch.int32)
        groups = tuple((len(list(run)), length) for length, run in groupby(lengths))
        return PackedLayout(groups, ends.to(device), max(lengths))


def packed_attention(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    *,
    scaling: float | None = None,
    dropout: float = 0.0,
    sliding_window: int | None = None,
    packed_layout: PackedLayout | None = None,
    **others: Any,
) -> tuple[torch.Tensor, None]:
    """transformers' attention interface: query [1, H, T, D], key and value [1, H_kv, T, D] -> [1, T, H, D]."""
    if packed_layout is None:
        raise RuntimeError(
            "packed attention was called without packed_layout: it would attend across sequences"
        )
    _refuse_unknown(module, dropout, others)
    if query.is_cuda and query.dtype in (torch.bfloat16, torch.float16):
        return _varlen(query, key, value, scaling, sliding_window, packed_layout), None
    return _by_groups(query, key, value, scaling, sliding_window, packed_layout), None


def _refuse_unknown(module: torch.nn.Module, dropout: float, others: dict[str, Any]) -> None:
    """Kinds of attention that this function does not compute must not pass as if it did."""
    kinds = [k for k in ("softcap", "s_aux", "position_bias") if others.get(k) is not None]
    if dropout:
        kinds.append("dropout")
    if not getattr(module, "is_causal", True):
        kinds.append("bidirectional attention")
    if kinds:
        raise RollRayError(
            f"{type(module).__name__} uses {', '.join(kinds)}, which packed attention does not compute",
            next_step="use a model with plain causal attention (Qwen2, Qwen3, Llama and alike)",
        )


def _by_groups(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    scaling: float | None,
    sliding_window: int | None,
    layout: PackedLayout,
) -> torch.Tensor:
    # split, not slices: the backward of a split is one concatenation, that of n slices n full-size sums
    sizes = [count * length for count, length in layout.groups]
    outputs = [
        _one_group(q, k, v, count, length, scaling, sliding_window)
        for (count, length), q, k, v in zip(
            layout.groups, query.split(sizes, 2), key.split(sizes, 2), value.split(sizes, 2), strict=True
        )
    ]
    return torch.cat(outputs, 1) if len(outputs) > 1 else outputs[0]


def _one_group(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    count: int,
    length: int,
    scaling: float | None,
    sliding_window: int | None,
) -> torch.Tensor:
    """`count` sequences of `length` tokens, [1, heads, count x length, D] each -> [1, count x length, H, D]."""

    def rows(x: torch.Tensor) -> torch.Tensor:
        return x[0].unflatten(1, (count, length)).transpose(0, 1)

    window = None
    if sliding_window is not None and sliding_window < length:
        distance = torch.arange(length, device=query.device)[:, None] - torch.arange(
            length, device=query.device
        )
        window = (distance >= 0) & (distance < sliding_window)
    # the CPU's flash kernel takes ten times as long backwards in bfloat16 as in float32 over short sequences
    dtype = query.dtype
    widened = query.device.type == "cpu" and dtype == torch.bfloat16 and length <= SHORT_TOKENS
    query, key, value = (x.float() if widened else x for x in (query, key, value))
    output = F.scaled_dot_product_attention(
        rows(query),
        rows(key),
        rows(value),
        attn_mask=window,
        is_causal=window is None,
        scale=scaling,
        enable_gqa=query.shape[1] != key.shape[1],
    )
    return output.to(dtype).transpose(1, 2).flatten(0, 1).unsqueeze(0)


def _varlen(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    scaling: float | None,
    sliding_window: int | None,
    layout: PackedLayout,
) -> torch.Tensor:
    """Flash attention over variable lengths (CUDA, half precision)."""
    from torch.nn.attention.varlen import varlen_attn

    q, k, v = (x[0].transpose(0, 1).contiguous() for x in (query, key, value))
    n_kv, n_q = k.shape[1], q.shape[1]
    output = varlen_attn(
        q,
        k,
        v,
        layout.ends,
        layout.ends,
        layout.max_length,
        layout.max_length,
        scale=scaling,
        window_size=(-1, 0) if sliding_window is None else (sliding_window - 1, 0),
        enable_gqa=n_kv != n_q,
    )
    return output.unsqueeze(0)


def _no_mask(*args: Any, **kwargs: Any) -> None:
    return None


AttentionInterface.register(PACKED_ATTENTION, packed_attention)
ALL_MASK_ATTENTION_FUNCTIONS.register(PACKED_ATTENTION, _no_mask)
