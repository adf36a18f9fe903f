"""Sharded weights made whole, many in one collective."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import torch
import torch.distributed as dist
from torch.distributed.tensor import DTensor


def in_groups(named: Iterable[tuple[str, DTensor]], max_elements: int) -> Iterator[list[tuple[str, DTensor]]]:
    """Neighbours together, up to `max_elements` a group; a larger tensor is a group of its own."""
    group: list[tuple[str, DTensor]] = []
    elements = 0
    for name, parameter in named:
        if group and elements + parameter.numel() > max_elements:
            yield group
            group, elements = [], 0
        group.append((name, parameter))
        elements += parameter.numel()
    if group:
        yield group


def gather(parameters: Sequence[DTensor], dtype: torch.dtype, on_cpu: bool = True) -> list[torch.Tensor]:
    """Each parameter whole, in `dtype`, on the CPU or where it was, from its shards along dimension 0 on all ranks.

    A rank sends its shards one after another in one flat buffer; ranks with fewer rows pad it at the end.
    """
    local = torch.cat([p.to_local().to(dtype).flatten() for p in parameters])
    world = dist.get_world_size()
    if world == 1:
        whole = (local.cpu() if on_cpu else local).split([p.numel() for p in parameters])
        return [flat.view(p.shape) for flat, p in zip(whole, parameters, strict=True)]
    rows = [[len(chunk) for chunk in _chunks(p.shape[0], world)] for p in parameters]
    widths = [p.numel() // p.shape[0] for p in parameters]
    sizes = [[r[rank] * width for r, width in zip(rows, widths, strict=True)] for rank in range(world)]
    longest = max(map(sum, sizes))
    sent = torch.nn.functional.pad(local, (0, longest - len(local)))
    received = [torch.empty_like(sent) for _ in range(world)]
    dist.all_gather(received, sent)
    flats = [flat[: sum(size)] for flat, size in zip(received, sizes, strict=True)]
    by_rank = [(flat.cpu() if on_cpu else flat).split(size) for flat, size in zip(flats, sizes, strict=True)]
    return [torch.cat([shards[i] for shards in by_rank]).view(p.shape) for i, p in enumerate(parameters)]


def _chunks(rows: int, world: int) -> list[range]:
    """The rows of each rank, as FSDP2 shards them: equal chunks, the last ones shorter or empty."""
    step = -(-rows // world)
    return [range(min(r * step, rows), min((r + 1) * step, rows)) for r in range(world)]
