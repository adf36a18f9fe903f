"""Joining the process group of a trainer: gloo on CPU machines, gloo and nccl on GPUs."""

from __future__ import annotations

import socket
from datetime import timedelta
from typing import Literal

import torch
import torch.distributed as dist

from roll_ray.errors import RollRayError

DeviceKind = Literal["cpu", "gpu"]

JOIN_TIMEOUT_S = 600.0
_meeting_places: dict[tuple[str, int], dist.TCPStore] = {}


def meeting_place(timeout_s: float = JOIN_TIMEOUT_S) -> tuple[str, int]:
    """Where the ranks meet: rank 0's process listens there from now on, so nobody else can take the port."""
    host = _own_address()
    store = dist.TCPStore(
        host, 0, is_master=True, wait_for_workers=False, timeout=timedelta(seconds=timeout_s)
    )
    _meeting_places[host, store.port] = store
    return host, store.port


def free_address() -> tuple[str, int]:
    """This host's address and a port that is free now, for a rank 0 that is another process."""
    host = _own_address()
    with socket.socket() as listener:
        listener.bind((host, 0))
        return host, int(listener.getsockname()[1])


def _own_address() -> str:
    """The address that other nodes reach this one at; loopback on a machine without a network."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))  # sends nothing: only asks for the route (RFC 5737 address)
            return str(probe.getsockname()[0])
        except OSError:
            return "127.0.0.1"


def join(
    rank: int, world_size: int, host: str, port: int, kind: DeviceKind, timeout_s: float = JOIN_TIMEOUT_S
) -> None:
    """Enter the group; returns when all ranks have. Raises RollRayError where the ranks cannot meet, and for a
    rank that waits longer than `timeout_s` for another."""
    timeout = timedelta(seconds=timeout_s)
    try:
        store = _meeting_places.pop((host, port), None) or dist.TCPStore(
            host, port, world_size, is_master=rank == 0, timeout=timeout
        )
        dist.init_process_group(
            _backend(kind), store=store, rank=rank, world_size=world_size, timeout=timeout
        )
    except dist.DistError as error:
        raise RollRayError(
            f"trainer rank {rank} of {world_size} could not meet the others at {host}:{port}",
            why=str(error).strip().splitlines()[0],
            next_step="see that the port is free and that the nodes reach each other (a firewall, or an address "
            "of the wrong network)",
        ) from error


def join_alone(kind: DeviceKind = "cpu") -> None:
    """A group of one in this process, without torchrun, sockets or Ray. Does nothing in a group of one."""
    if dist.is_initialized():
        if dist.get_world_size() != 1:
            raise RuntimeError(f"this process is in a group of {dist.get_world_size()} already")
        return
    dist.init_process_group(_backend(kind), store=dist.HashStore(), rank=0, world_size=1)


def leave() -> None:
    if dist.is_initialized():
        dist.destroy_process_group()


def device_of(kind: DeviceKind) -> torch.device:
    """The device of this process. On GPU machines each process sees one GPU."""
    if kind == "cpu":
        return torch.device("cpu")
    torch.cuda.set_device(0)
    return torch.device("cuda", 0)


def _backend(kind: DeviceKind) -> str:
    return "gloo" if kind == "cpu" else "cpu:gloo,cuda:nccl"


def largest(value: int) -> int:
    """The largest of the ranks' values."""
    if dist.get_world_size() == 1:
        return value
    tensor = torch.tensor([value])
    dist.all_reduce(tensor, dist.ReduceOp.MAX)
    return int(tensor.item())


def total(value: float) -> float:
    """The sum of the ranks' values."""
    if dist.get_world_size() == 1:
        return value
    tensor = torch.tensor([value], dtype=torch.float64)
    dist.all_reduce(tensor)
    return float(tensor.item())
