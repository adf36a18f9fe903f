"""Weights from a trainer's GPUs to the engines', through vLLM's own transfer engines. Not yet run on a GPU.

"ipc" hands over CUDA handles between processes that share a GPU (colocated training), "nccl" broadcasts across
GPUs. Both need engines started with `EngineSpec.weight_backend` set alike. The control side is `EngineControl`,
which vLLM's trainer engine drives; the data never passes through it. Each engine runs the same transaction as
with buckets in shared memory, except that nothing but the canary can check what arrived.

    sender = open_sender("ipc", rank, backend, control)     # every trainer rank
    sender.send_weights()                                   # every trainer rank, after `begin_push` of the engines
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any, Literal

from roll_ray.actors import Actor, ActorUnavailable
from roll_ray.errors import RollRayError
from workers.engine_push import PushStep
from workers.rollout_engine import RolloutEngine

if TYPE_CHECKING:
    import torch

    from workers.backends.fsdp2 import FSDP2Backend

_BUFFER_BYTES = 1 << 30


class EngineControl:
    """The four calls by which vLLM's trainer engine steers the receiving side, on every engine at once.

    An engine that fails in a step is left out of the rest of the push: its own transaction tells why, and the other
    engines and trainer ranks are not left waiting. In a broadcast (`all_or_none`) nobody can be left out, and
    the failure is raised. `ranks_per_engine` is the tensor parallel degree.
    """

    def __init__(
        self,
        engines: Sequence[Actor[RolloutEngine]],
        ranks_per_engine: int,
        all_or_none: bool,
        timeout_s: float,
    ) -> None:
        self._engines = dict(enumerate(engines))
        self._ranks_per_engine, self._all_or_none, self._timeout_s = ranks_per_engine, all_or_none, timeout_s
        self._loop = asyncio.new_event_loop()  # the rank's own thread waits in vLLM's code
        threading.Thread(target=self._loop.run_forever, daemon=True).start()

    def init_weight_transfer_engine(self, init_info: dict[str, Any]) -> None:
        """vLLM numbers the workers of one engine; those of the k-th follow all before it."""
        infos = {k: dict(init_info) for k in self._engines}
        if "rank_offset" in init_info:
            for k, info in infos.items():
                info["rank_offset"] += k * self._ranks_per_engine
        self._push("init", infos)

    def start_weight_update(self) -> None:
        self._push("start", {})

    def update_weights(self, update_info: Any) -> None:
        self._push("update", dict.fromkeys(self._engines, update_info))

    def finish_weight_update(self, weight_version: str | None = None) -> None:
        """The version is set by the engine's transaction, after the canary."""
        self._push("finish", {})

    def close(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)

    def _push(self, step: PushStep, payloads: dict[int, Any]) -> None:
        calls: dict[int, Future[None]] = {
            k: asyncio.run_coroutine_threadsafe(self._call(engine, step, payloads.get(k)), self._loop)
            for k, engine in self._engines.items()
        }
        for k, call in calls.items():
            try:
                call.result(self._timeout_s)
            except (RollRayError, ActorUnavailable, TimeoutError):
                if self._all_or_none:
                    raise
                del self._engines[k]

    async def _call(self, engine: Actor[RolloutEngine], step: PushStep, payload: Any) -> None:
        await engine.call(RolloutEngine.push, step, payload)


class TrainerWeights:
    """vLLM's `WeightSource`: the weights under their checkpoint names, in the engine's dtype, on the GPU, gathered
    as they are sent. Every rank iterates in step."""

    def __init__(self, backend: FSDP2Backend) -> None:
        self._backend = backend

    def metadata(self) -> list[Any]:
        from vllm.distributed.weight_transfer.base import ParamMeta

        dtype = self._backend.dtype
        return [ParamMeta(name, dtype, tuple(p.shape)) for name, p in self._backend.named_parameters()]

    def __iter__(self) -> Iterator[tuple[str, torch.Tensor]]:
        return self._backend.named_tensors(on_cpu=False)

    def largest_bytes(self) -> int:
        """Size of the largest tensor: a transfer buffer has to hold it whole."""
        itemsize: int = self._backend.dtype.itemsize
        return max(p.numel() for _, p in self._backend.named_parameters()) * itemsize


def open_sender(
    transfer: Literal["ipc", "nccl"],
    rank: int,
    backend: FSDP2Backend,
    control: EngineControl,
    *,
    engine_ranks: int,
) -> Any:
    """vLLM's trainer engine for these weights. Collective; rank 0 meets the engines, `engine_ranks` processes in all,
    and listens for them where "nccl" needs it."""
    from vllm.distributed.weight_transfer.factory import WeightTransferTrainerFactory
    from vllm.distributed.weight_transfer.ipc_engine import IPCTrainerInitInfo
    from vllm.distributed.weight_transfer.nccl_engine import NCCLTrainerInitInfo

    from workers.backends.process_group import free_address

    source = TrainerWeights(backend)
    buffer_bytes = max(_BUFFER_BYTES, source.largest_bytes())
    info: Any = IPCTrainerInitInfo(rank=rank, packed=True, packed_buffer_size_bytes=buffer_bytes)
    if transfer == "nccl":
        host, port = free_address()
        info = NCCLTrainerInitInfo(
            master_address=host,
            master_port=port,
            world_size=1 + engine_ranks,
            rank=rank,
            packed_buffer_size_bytes=buffer_bytes,
        )
    return WeightTransferTrainerFactory.trainer_init(info, client=control, source=source)
