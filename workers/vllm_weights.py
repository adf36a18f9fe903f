"""The engine side of a weight update, inside vLLM's worker process: map the buckets, load, re-pack, score.

Imported there by `worker_extension_cls`, which registers the transfer engine "roll_ray_shm" in time.

On CPU vLLM packs linear weights at load and empties the originals, so an update runs through its layerwise
reload. That leaves one thing behind, silently: the packed copy of the embedding that a (tied) output head
computes with. Every `VocabParallelEmbedding` is therefore packed again. See `RollRayWorker.rr_score` for
how the result is checked.
"""

from __future__ import annotations

import contextlib
import glob
import multiprocessing
import os
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, cast

import torch
from vllm.distributed.weight_transfer.base import (
    WeightTransferEngine,
    WeightTransferInitInfo,
    WeightTransferUpdateInfo,
)
from vllm.distributed.weight_transfer.factory import WeightTransferEngineFactory
from vllm.model_executor.layers.utils import dispatch_cpu_unquantized_gemm
from vllm.model_executor.layers.vocab_parallel_embedding import VocabParallelEmbedding
from vllm.model_executor.model_loader.reload import finalize_layerwise_reload, initialize_layerwise_reload
from vllm.model_executor.model_loader.reload.layerwise import get_layerwise_info
from vllm.sampling_params import SamplingParams
from vllm.v1.core.sched.output import NewRequestData, SchedulerOutput

from roll_ray.errors import RollRayError
from roll_ray.weights.buckets import hashed_tensors
from roll_ray.weights.manifest import WeightManifest
from roll_ray.weights.transaction import ArrivalLog
from workers.semaphores import forget_names

BACKEND = "roll_ray_shm"
_SCORED = "roll-ray-score"
_NULL_BLOCK = 0  # vLLM never gives this cache block to a request
_PARENT_CHECK_S = 1.0


@dataclass
class ShmInitInfo(WeightTransferInitInfo):
    """Nothing to agree on: a manifest says it all."""


@dataclass
class ShmUpdateInfo(WeightTransferUpdateInfo):
    """A `WeightManifest` in its plain form."""

    manifest: dict[str, Any]


class ShmWeightEngine(WeightTransferEngine[ShmInitInfo, ShmUpdateInfo]):
    """Loads a published version from mapped buckets, verifying every hash and that nothing is left out.

    `seconds` holds what the last update took, by stage. On GPU the same reload copies from the mapping to
    the device; only the re-packing is CPU business.
    """

    init_info_cls = ShmInitInfo
    update_info_cls = ShmUpdateInfo

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.seconds: dict[str, float] = {}
        self.repacks = True
        self._parameters: set[str] = set()

    def init_transfer_engine(self, init_info: ShmInitInfo) -> None: ...

    def shutdown(self) -> None: ...

    def start_weight_update(self) -> None:
        """Give the parameters their checkpoint shapes back. What an update that failed left open is closed first."""
        if any(get_layerwise_info(layer).can_load() for layer in self.model.modules()):
            finalize_layerwise_reload(self.model, self.model_config)
        self._parameters = {name for name, _ in self.model.named_parameters()}  # a tied head counts once
        initialize_layerwise_reload(self.model)

    def receive_weights(self, update_info: ShmUpdateInfo) -> None:
        manifest = WeightManifest.from_plain(update_info.manifest)
        started_s = time.perf_counter()
        log = ArrivalLog(manifest)
        reading_s = 0.0

        def arriving() -> Iterator[tuple[str, torch.Tensor]]:
            nonlocal reading_s
            tensors = hashed_tensors(manifest)
            while True:
                since_s = time.perf_counter()
                item = next(tensors, None)
                reading_s += time.perf_counter() - since_s
                if item is None:
                    return
                entry, tensor, digest = item
                log.arrived(entry.name, digest)
                yield entry.name, tensor

        loaded = self.model.load_weights(arriving())
        log.finish(self._parameters, set(loaded or ()) - self._half_loaded())
        self.seconds = {"hash": reading_s, "load": time.perf_counter() - started_s - reading_s}

    def _half_loaded(self) -> set[str]:
        """Parameters of layers that still wait for elements, padding of a vocabulary aside."""
        waiting = set()
        for prefix, layer in self.model.named_modules():
            info = get_layerwise_info(layer)
            own = [name for name, _ in layer.named_parameters(recurse=False)]
            if not own or not info.can_load():
                continue
            if isinstance(layer, VocabParallelEmbedding) and info.load_numel >= _unpadded_numel(layer):
                continue
            waiting |= {f"{prefix}.{name}" if prefix else name for name in own}
        return waiting

    def finish_weight_update(self) -> None:
        started_s = time.perf_counter()
        finalize_layerwise_reload(self.model, self.model_config)
        finalized_s = time.perf_counter()
        if self.repacks and self.device.type == "cpu":
            for layer in self.model.modules():
                if isinstance(layer, VocabParallelEmbedding):
                    dispatch_cpu_unquantized_gemm(layer, remove_weight=False)
        self.seconds["load"] += finalized_s - started_s
        self.seconds["repack"] = time.perf_counter() - finalized_s


def _unpadded_numel(layer: VocabParallelEmbedding) -> int:
    rows = layer.shard_indices.num_org_elements + layer.shard_indices.num_added_elements
    return int(rows * layer.embedding_dim)


WeightTransferEngineFactory._registry.pop(BACKEND, None)
WeightTransferEngineFactory.register_engine(BACKEND, ShmWeightEngine)


@contextlib.contextmanager
def _bucket_engine(worker: Any) -> Iterator[ShmWeightEngine]:
    """The worker's own transfer engine, or one that reads buckets in its place: an engine that is late pulls what
    was pushed to the others. A push that was given up half-way is closed first."""
    if worker._weight_update_active:
        worker.finish_weight_update()
    own = worker.weight_transfer_engine
    if isinstance(own, ShmWeightEngine):
        yield own
        return
    buckets = ShmWeightEngine(own.config, own.vllm_config, own.device, own.model)
    worker.weight_transfer_engine = buckets
    try:
        yield buckets
    finally:
        worker.weight_transfer_engine = own


class RollRayWorker:
    """Methods that vLLM adds to its worker class; reached by `collective_rpc`."""

    def rr_attach(self) -> int:
        """The id of the process that computes; once all have started, which is when this may be called.

        The shared memory by which tensor-parallel workers talk on CPU is mapped by then and needs its name no
        more. vLLM would leave it behind when a process is killed, and semaphores of this process likewise."""
        forget_names()
        if ident := os.environ.get("VLLM_DIST_IDENT"):
            for name in glob.glob(f"/dev/shm/{glob.escape(ident)}-*"):
                with contextlib.suppress(FileNotFoundError):  # the other worker was faster
                    os.unlink(name)
        return os.getpid()

    def rr_update(self, manifest: dict[str, Any]) -> dict[str, Any]:
        """Load a version; {"seconds": {hash, load, repack}}, or {"refused": [what, why, next step]}."""
        worker = cast(Any, self)
        with _bucket_engine(worker) as engine:
            try:
                worker.start_weight_update()
                worker.update_weights({"manifest": manifest})
                worker.finish_weight_update()
            except RollRayError as error:
                return {"refused": [error.what, error.why, error.next_step]}
            return {"seconds": dict(engine.seconds)}

    def rr_set_repacking(self, repacks: bool) -> None:
        """Switch the re-packing of embeddings off or on: the self-check proves with it that the canary sees it."""
        cast(Any, self).weight_transfer_engine.repacks = repacks

    def rr_score(self, token_ids: list[int]) -> list[float]:
        """Log-probabilities of tokens 1..n-1 given their prefix, while everything else stands still.

        A forward pass of its own, past the scheduler, so it works while kept requests are paused and before
        any of them goes on. Its keys and values go to the cache block that belongs to nobody, hence at most
        one block of tokens is scored: the first ones.
        """
        worker = cast(Any, self)
        runner = worker.model_runner
        tokens = token_ids[: runner.cache_config.block_size]
        groups = runner.kv_cache_config.kv_cache_groups
        request = NewRequestData(
            req_id=_SCORED,
            prompt_token_ids=tokens,
            mm_features=[],
            sampling_params=SamplingParams(temperature=0.0, max_tokens=1, prompt_logprobs=0),
            pooling_params=None,
            block_ids=tuple([_NULL_BLOCK] for _ in groups),
            num_computed_tokens=0,
            lora_request=None,
            prefill_token_ids=tokens,
        )
        work = SchedulerOutput.make_empty()
        work.scheduled_new_reqs = [request]
        work.num_scheduled_tokens = {_SCORED: len(tokens)}
        work.total_num_scheduled_tokens = len(tokens)
        work.num_common_prefix_blocks = [0] * len(groups)
        output = worker.execute_model(work)
        if output is None:
            output = worker.sample_tokens(None)
        over = SchedulerOutput.make_empty()
        over.finished_req_ids = {_SCORED}
        worker.execute_model(over)
        scored = output.prompt_logprobs_dict[_SCORED]
        return cast(list[float], torch.as_tensor(scored.logprobs)[:, 0].tolist())


def _end_with_parent(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(_PARENT_CHECK_S)
    os._exit(1)


# From the import on, which comes before the model is loaded: this process ends when its parent has ended, however
# that happened. (The engine's own process has nobody to end it when a rollout engine is killed.)
if (_parent := multiprocessing.parent_process()) is not None:
    threading.Thread(target=_end_with_parent, args=(_parent.pid,), daemon=True).start()
