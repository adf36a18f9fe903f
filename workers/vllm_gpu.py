"""Weights from a trainer's GPUs to the engines', through vLLM's own transfer engines. Not yet run on a GPU.

"ipc" hands over CUDA handles between processes that share a GPU (colocated training), "nccl" broadcasts across
GPUs. Both need engines started with `EngineSpec.weight_backend` set alike. The control side is `EngineControl`,
which vLLM's trainer engine drives; the data never passes through it. Each engine runs the same transaction as
with buckets in shared memory, except that nothing but the canary can check what arrived.

    sender = open_sender("ipc", rank, module, control)     # every trainer rank
    sender.send_weights()                                  # every trainer rank, after `control.begin(version, ...)`
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, Literal, Protocol

from roll_ray.generation import Canary
from workers.engine_push import PushStep
from workers.engine_spec import CommitReport
from workers.rollout_engine import RolloutEngine


class EngineCall(Protocol):
    """Starts a call of a method on one engine; the trainer's thread waits for the future."""

    def __call__(self, method: Callable[..., Any], *args: Any) -> Future[Any]: ...


class EngineControl:
    """The four calls by which vLLM's trainer engine steers the receiving side, on every engine at once."""

    def __init__(self, engines: list[EngineCall], timeout_s: float = 300.0) -> None:
        self._engines, self._timeout_s = engines, timeout_s
        self._commits: list[Future[CommitReport]] = []

    def begin(self, version: int, canary: Canary, update_mode: str = "keep") -> None:
        """Open the transaction on every engine; `finish` waits for its commit."""
        self._commits = [
            engine(RolloutEngine.update_by_push, version, canary, update_mode) for engine in self._engines
        ]

    def finish(self) -> list[CommitReport]:
        """The reports of all engines. Raises `WeightUpdateError` where the canary was refused."""
        return [commit.result(self._timeout_s) for commit in self._commits]

    def init_weight_transfer_engine(self, init_info: dict[str, Any]) -> None:
        self._push("init", init_info)

    def start_weight_update(self) -> None:
        self._push("start", None)

    def update_weights(self, update_info: Any) -> None:
        self._push("update", update_info)

    def finish_weight_update(self, weight_version: str | None = None) -> None:
        """The version is set by the engine's transaction, after the canary."""
        self._push("finish", None)

    def _push(self, step: PushStep, payload: Any) -> None:
        calls = [engine(RolloutEngine.push, step, payload) for engine in self._engines]
        for call in calls:
            call.result(self._timeout_s)


def open_sender(
    backend: Literal["ipc", "nccl"],
    rank: int,
    module: Any,
    control: EngineControl,
    *,
    master_address: str = "",
    master_port: int = 0,
    engine_ranks: int = 0,
) -> Any:
    """vLLM's trainer engine for `module` (FSDP2 shards are gathered as they are sent); rank 0 sends.

    "nccl" needs an address that every engine reaches and the number of engine processes in all.
    """
    from vllm.distributed.weight_transfer.base import ModuleSource
    from vllm.distributed.weight_transfer.factory import WeightTransferTrainerFactory
    from vllm.distributed.weight_transfer.ipc_engine import IPCTrainerInitInfo
    from vllm.distributed.weight_transfer.nccl_engine import NCCLTrainerInitInfo

    info: Any = IPCTrainerInitInfo(rank=rank, packed=True)
    if backend == "nccl":
        info = NCCLTrainerInitInfo(
            master_address=master_address, master_port=master_port, world_size=1 + engine_ranks, rank=rank
        )
    return WeightTransferTrainerFactory.trainer_init(info, client=control, source=ModuleSource(module))
