"""vLLM's own trainer engines, all but their CUDA, drive our control: what they ask of it and what they send."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from roll_ray.actors import LocalActor
from workers.backends.base import OptimizerSettings
from workers.backends.fsdp2 import FSDP2Backend
from workers.backends.process_group import join_alone, leave
from workers.engine_pair import make_tiny_model
from workers.vllm_gpu import EngineControl, TrainerWeights, open_sender

pytestmark = pytest.mark.engine  # imports vLLM, which takes seconds


@pytest.fixture(scope="module")
def backend(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FSDP2Backend]:
    folder: Path = tmp_path_factory.mktemp("model")
    make_tiny_model(folder, tied=True)
    join_alone()
    yield FSDP2Backend(str(folder), OptimizerSettings(1e-3), dtype="bfloat16")
    leave()


class Engine:
    """Checks every payload by the class that parses it in vLLM's worker."""

    def __init__(self, init_class: Any, update_class: Any) -> None:
        self.init_class, self.update_class = init_class, update_class
        self.steps: list[str] = []
        self.updates: list[Any] = []
        self.init: Any = None

    async def push(self, step: str, payload: Any = None) -> None:
        self.steps.append(step)
        if step == "init":
            self.init = self.init_class(**payload)
        if step == "update":
            self.updates.append(self.update_class(**payload))


def control_of(engines: list[Engine], ranks: int, all_or_none: bool) -> EngineControl:
    actors: Any = [LocalActor(engine, f"rollout-{i}") for i, engine in enumerate(engines)]
    return EngineControl(actors, ranks, all_or_none, timeout_s=10.0)


def test_what_is_declared_is_what_is_sent(backend: FSDP2Backend) -> None:
    source = TrainerWeights(backend)
    sent = [(name, t.dtype, tuple(t.shape)) for name, t in source]
    assert sent == [(m.name, m.dtype, m.shape) for m in source.metadata()]
    assert sent[0][:2] == ("model.embed_tokens.weight", torch.bfloat16)
    assert "lm_head.weight" not in dict(iter(source))
    assert source.largest_bytes() == max(t.nbytes for _, t in source)


def test_nccl_a_group_of_one_sender_and_every_engine_worker(
    backend: FSDP2Backend, monkeypatch: pytest.MonkeyPatch
) -> None:
    from vllm.distributed.weight_transfer import nccl_engine as nccl

    met: list[Any] = []
    monkeypatch.setattr(nccl, "open_trainer_endpoint", lambda info: met.append(info))
    monkeypatch.setattr(
        nccl.NCCLTrainerWeightTransferEngine, "_broadcast", lambda self, source, meta: list(source)
    )
    engines = [Engine(nccl.NCCLWeightTransferInitInfo, nccl.NCCLWeightTransferUpdateInfo) for _ in range(2)]
    control = control_of(engines, ranks=2, all_or_none=True)
    sender = open_sender("nccl", 0, backend, control, engine_ranks=4)
    sender.send_weights()
    assert met[0].world_size == 5
    assert [engine.init.rank_offset for engine in engines] == [1, 3]
    assert {(e.init.master_address, e.init.master_port) for e in engines} == {
        (met[0].master_address, met[0].master_port)
    }
    for engine in engines:
        assert engine.steps == ["init", "start", "update", "finish"]
        assert engine.updates[0].names == [m.name for m in TrainerWeights(backend).metadata()]
        assert set(engine.updates[0].dtype_names) == {"bfloat16"}
    control.close()


def test_ipc_handles_of_packed_chunks_with_room_for_the_largest_tensor(
    backend: FSDP2Backend, monkeypatch: pytest.MonkeyPatch
) -> None:
    from vllm.distributed.weight_transfer import ipc_engine as ipc
    from vllm.distributed.weight_transfer.packed_tensor import PackedIpcChunk

    buffers: list[int] = []

    def producer(iterator: Any, gpu_uuid: str, post_iter_func: Any, buffer_size_bytes: int) -> Iterator[Any]:
        buffers.append(buffer_size_bytes)
        for item in iterator:
            tensor = post_iter_func(item)
            yield PackedIpcChunk(
                names=[item[0]],
                shapes=[list(tensor.shape)],
                dtype_names=["bfloat16"],
                tensor_sizes=[tensor.nbytes],
                ipc_handle={gpu_uuid: (0,)},
            )

    monkeypatch.setattr(ipc, "packed_ipc_producer", producer)
    monkeypatch.setattr(ipc.IPCTrainerWeightTransferEngine, "_post_send_sync", staticmethod(lambda: None))
    monkeypatch.setattr(torch.accelerator, "current_device_index", lambda: 0)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda index: SimpleNamespace(uuid="gpu-0"))
    monkeypatch.setattr("workers.vllm_gpu._BUFFER_BYTES", 1)
    engine = Engine(ipc.IPCWeightTransferInitInfo, ipc.IPCWeightTransferUpdateInfo)
    with contextlib.closing(control_of([engine], ranks=1, all_or_none=False)) as control:
        open_sender("ipc", 0, backend, control, engine_ranks=1).send_weights()
    assert engine.init.packed
    names = [m.name for m in TrainerWeights(backend).metadata()]
    assert engine.steps == ["init", "start", *["update"] * len(names), "finish"]
    assert [update.names for update in engine.updates] == [[name] for name in names]
    assert engine.updates[0].ipc_handles == {"gpu-0": (0,)}
    assert buffers == [TrainerWeights(backend).largest_bytes()]


def test_the_sleep_and_transfer_calls_that_are_made_exist() -> None:
    """Names and parameters of vLLM's own, which only a GPU would exercise."""
    import inspect

    from vllm.engine.arg_utils import AsyncEngineArgs
    from vllm.v1.worker.gpu_worker import Worker

    assert list(inspect.signature(Worker.sleep).parameters) == ["self", "level"]
    assert list(inspect.signature(Worker.wake_up).parameters) == ["self", "tags"]
    assert "enable_sleep_mode" in inspect.signature(AsyncEngineArgs).parameters
