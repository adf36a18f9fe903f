"""The vLLM engine behind a rollout engine: its processes, its outputs, and the calls that it answers.

vLLM's front end keeps a queue and builds an output object for every token of every request. Here one task
reads the engine core's own output batches, each of which says which weight version sampled it; so versions
are exact by construction and the cost per token is a list append.

No call waits for an answer that cannot come: when the engine's process ends, all of them raise.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, TypeVar

from roll_ray.actors import ActorUnavailable
from roll_ray.errors import RollRayError, WeightUpdateError
from roll_ray.generation import GenerationRequest
from roll_ray.weights.manifest import WeightManifest
from workers.engine_spec import EngineInfo, EngineSpec, engine_arguments, set_environment

T = TypeVar("T")
_log = logging.getLogger(__name__)
_SLEEP_LEVEL = 2
"""Level 1 would copy the weights to host memory and back, for an update to overwrite them."""


class EngineProcess:
    """An `AsyncLLM` whose outputs go to `on_tokens(key, tokens, logprobs, version, finish)`, one call per request and
    engine step. `on_death(reason)` is called once, when the engine's process has ended by itself."""

    def __init__(
        self,
        spec: EngineSpec,
        on_tokens: Callable[[str, list[int], list[float], int, str | None], None],
        on_death: Callable[[str], None],
    ) -> None:
        self.spec = spec
        self.stats: Any = None  # vLLM's SchedulerStats of the last step
        self.preemptions = 0
        self._on_tokens, self._on_death = on_tokens, on_death
        self._llm: Any = None
        self._core: Any = None
        self._death = ""
        self._dead = asyncio.Event()
        self._scores: dict[str, asyncio.Future[Any]] = {}
        self._reader: asyncio.Task[None] | None = None

    # ---- life ----

    async def start(self) -> EngineInfo:
        set_environment(self.spec)
        try:
            self._llm = await asyncio.to_thread(_build, self.spec)
        except Exception as error:  # whatever vLLM says, the user reads it with the model and settings named
            raise RollRayError(
                f"{self.spec.name} could not be started on {self.spec.model}",
                why=f"{type(error).__name__}: {_first_line(error)}",
                next_step="the lines that vLLM logged before this tell the cause; a smaller kv_cache_mb, "
                "max_model_len or another dtype are what helps most often",
            ) from error
        self._core = self._llm.engine_core
        self._reader = asyncio.create_task(self._read_outputs(), name=f"{self.spec.name}-outputs")
        pids = await self.ask("rr_attach")
        await self.set_version(0)
        config = self._llm.vllm_config.model_config
        return EngineInfo(config.max_model_len, config.get_vocab_size(), 0, pids[0])

    async def shutdown(self) -> None:
        """End the engine's processes. Calls made afterwards raise `ActorUnavailable`."""
        self._death = self._death or "it was shut down"
        self._dead.set()
        if self._reader is not None:
            self._reader.cancel()
        if self._llm is not None:
            llm, self._llm, self._core = self._llm, None, None
            await asyncio.to_thread(llm.shutdown, 1.0)

    def check_alive(self) -> None:
        if self._death or self._llm is None:
            raise ActorUnavailable(self.spec.name, self._death or "it has not been started")

    async def ask(self, method: str, *args: Any) -> Any:
        """Call a method of every worker process; their answers. What one raises comes back as `RollRayError`."""
        self.check_alive()
        return await self._told(method, self._llm.collective_rpc(method, args=args))

    async def _told(self, what: str, answer: Awaitable[T]) -> T:
        try:
            return await self._answered(answer)
        except (RollRayError, ActorUnavailable):
            raise
        except Exception as error:  # the engine process answers with the text of its exception
            raise RollRayError(
                f"{self.spec.name}: the engine process failed in {what}",
                why=_first_line(error),
                next_step="its log has the whole trace",
            ) from error

    async def _answered(self, answer: Awaitable[T]) -> T:
        asked = asyncio.ensure_future(answer)
        dead = asyncio.ensure_future(self._dead.wait())
        try:
            await asyncio.wait({asked, dead}, return_when=asyncio.FIRST_COMPLETED)
            if asked.done():
                return asked.result()
        finally:
            dead.cancel()
            asked.cancel()
        raise ActorUnavailable(self.spec.name, self._death)

    # ---- outputs ----

    async def _read_outputs(self) -> None:
        try:
            while True:
                self._absorb(await self._core.get_output_async())
        except asyncio.CancelledError:
            raise
        except Exception as error:  # the engine is gone: everybody who waits is told
            self._death = f"its engine process ended ({type(error).__name__}: {_first_line(error)})"
            _log.error("%s: %s", self.spec.name, self._death)
            self._dead.set()
            self._on_death(self._death)

    def _absorb(self, batch: Any) -> None:
        """One step of the engine: new tokens of many requests, all sampled by one weight version."""
        version = int(batch.weight_version) if batch.weight_version else 0
        for out in batch.outputs:
            finish = None if out.finish_reason is None else str(out.finish_reason)
            if out.request_id in self._scores:
                self._absorb_score(out, finish)
                continue
            logprobs = [] if out.new_logprobs is None else out.new_logprobs.logprobs[:, 0].tolist()
            self._on_tokens(out.request_id, out.new_token_ids, logprobs, version, finish)
            if out.events:
                self.preemptions += sum(event.type.name == "PREEMPTED" for event in out.events)
        if batch.scheduler_stats is not None:
            self.stats = batch.scheduler_stats

    def _absorb_score(self, out: Any, finish: str | None) -> None:
        future = self._scores[out.request_id]
        if future.done():
            return
        if out.new_prompt_logprobs_tensors is not None:
            future.set_result(out.new_prompt_logprobs_tensors.logprobs.numpy())
        elif finish:
            future.set_exception(RollRayError(f"{self.spec.name}: the sequence was not scored ({finish})"))

    # ---- requests ----

    async def add(self, key: str, request: GenerationRequest, max_tokens: int, salt: str) -> None:
        """Start a request. Raises ValueError for a sampling distribution that vLLM refuses."""
        params = _sampling_params(request, max_tokens)
        await self._core.add_request_async(_core_request(key, request.prompt_token_ids, params, salt))

    async def abort(self, keys: Sequence[str]) -> None:
        await self._core.abort_requests_async(list(keys))

    async def prompt_logprobs(self, tokens: Sequence[int], salt: str, whole_vocabulary: bool) -> Any:
        """Log-probabilities at temperature 1 of tokens 1..n-1: float32 [n - 1, 1], or with every token of the
        vocabulary beside each, [n - 1, 1 + V]."""
        from vllm.sampling_params import SamplingParams

        width = -1 if whole_vocabulary else 0
        params = SamplingParams(temperature=0.0, max_tokens=1, prompt_logprobs=width, detokenize=False)
        key = f"score-{time.monotonic_ns()}"
        self._scores[key] = asyncio.get_running_loop().create_future()
        try:
            await self._core.add_request_async(_core_request(key, tokens, params, salt))
            return await self._answered(self._scores[key])
        finally:
            del self._scores[key]

    # ---- pause and weights ----

    async def pause(self) -> None:
        """Stop between two steps; everything sampled before has been handed out when this returns."""
        await self._answered(self._core.pause_scheduler_async("keep", False))
        while not self._core.outputs_queue.empty():
            await asyncio.sleep(0)

    async def resume(self) -> None:
        await self._answered(self._core.resume_scheduler_async())

    async def set_version(self, version: int) -> None:
        """The version that the engine writes on its output batches from now on; only while paused."""
        await self._answered(self._core.set_weight_version_async(str(version)))

    async def transfer_step(self, step: str, payload: dict[str, Any] | None) -> None:
        """A call of vLLM's own weight transfer protocol: "init", "start", "update" or "finish"."""
        from vllm.distributed.weight_transfer.base import (
            WeightTransferInitRequest,
            WeightTransferUpdateRequest,
        )

        self.check_alive()
        llm = self._llm
        if step == "init":
            await self._told(step, llm.shutdown_weight_transfer_engine())  # of an earlier group of engines
            call = llm.init_weight_transfer_engine(WeightTransferInitRequest(payload or {}))
        elif step == "start":
            call = llm.start_weight_update()
        elif step == "update":
            call = llm.update_weights(WeightTransferUpdateRequest(payload or {}))
        else:
            call = llm.finish_weight_update()
        await self._told(f"the weight transfer's {step}", call)

    async def sleep(self) -> None:
        """While paused, give the GPU's memory away: weights and caches are dropped, nothing is copied (level 2).

        The cache is forgotten first, so no block of it is ever read again and running requests compute theirs
        anew. vLLM's own wake-up would let them go on before the new weights are verified: hence the workers are
        called, past it. (On CPU they do nothing but warn.)"""
        await self._answered(self._core.pause_scheduler_async("keep", True))
        await self.ask("sleep", _SLEEP_LEVEL)

    async def wake(self) -> None:
        """Take the memory back; it holds no weights until an update brings them."""
        await self.ask("wake_up")

    async def load(self, manifest: WeightManifest) -> dict[str, float]:
        """Load a published version while paused; seconds by stage. Raises `WeightUpdateError` when it is refused."""
        answers = await self.ask("rr_update", manifest.to_plain())
        for answer in answers:
            if "refused" in answer:
                what, why, next_step = answer["refused"]
                raise WeightUpdateError(f"{self.spec.name}: {what}", why=why, next_step=next_step)
        seconds = [answer["seconds"] for answer in answers]
        return {stage: max(s[stage] for s in seconds) for stage in seconds[0]}


def _build(spec: EngineSpec) -> Any:
    """In a thread: without a running loop vLLM leaves the reading of outputs to us."""
    from vllm.engine.arg_utils import AsyncEngineArgs
    from vllm.v1.engine.async_llm import AsyncLLM

    class Engine(AsyncLLM):
        """Ended by `shutdown` alone: vLLM's finalizer complains when it runs at interpreter exit."""

        def __del__(self) -> None: ...

    return Engine.from_engine_args(AsyncEngineArgs(**engine_arguments(spec)))


def _core_request(key: str, tokens: Sequence[int], params: Any, salt: str) -> Any:
    from vllm.v1.engine import EngineCoreRequest

    return EngineCoreRequest(
        request_id=key,
        external_req_id=key,
        prompt_token_ids=list(tokens),
        mm_features=None,
        sampling_params=params,
        pooling_params=None,
        arrival_time=time.time(),
        lora_request=None,
        cache_salt=salt,
        data_parallel_rank=None,
    )


def _sampling_params(request: GenerationRequest, max_tokens: int) -> Any:
    from vllm.exceptions import VLLMValidationError
    from vllm.sampling_params import SamplingParams

    sampling = request.sampling
    wanted: dict[str, Any] = {
        "temperature": sampling.temperature,
        "top_k": sampling.top_k,
        "top_p": sampling.top_p,
        "min_p": sampling.min_p,
        "repetition_penalty": sampling.repetition_penalty,
        "presence_penalty": sampling.presence_penalty,
        "frequency_penalty": sampling.frequency_penalty,
        "max_tokens": max_tokens,
        "stop_token_ids": list(request.stop_token_ids),
        "seed": request.seed,
        "logprobs": 0,
        "detokenize": False,
        "ignore_eos": True,  # exactly the request's stop tokens end it
    }
    try:
        return SamplingParams(**wanted)
    except VLLMValidationError as error:
        raise ValueError(str(error)) from error


def _first_line(error: Exception) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[0] if lines else type(error).__name__
