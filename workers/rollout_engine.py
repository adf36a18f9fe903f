"""A rollout engine: vLLM's `AsyncLLM`, tokens in and tokens out, weights changed under its running requests.

vLLM's front end keeps a queue and builds an output object for every token of every request. Here one task
reads the engine core's own output batches, each of which says which weight version sampled it; so versions
are exact by construction and the cost per token is a list append.

Pausing and updating: while paused, new requests wait on this side. After an update, requests that had no
token yet start again under the new weights, others go on with the cache of their prefix. The prefix cache is
salted by version, so nothing is ever answered from another version's cache.
"""

from __future__ import annotations

import asyncio
import logging
import os
import time
from collections.abc import Awaitable, Sequence
from typing import Any, Literal, TypeVar

import numpy as np
import numpy.typing as npt

from roll_ray.actors import ActorUnavailable
from roll_ray.errors import RollRayError, WeightUpdateError
from roll_ray.generation import EngineStats, GenerationDelta, GenerationRequest
from roll_ray.sample import SamplingDistribution
from roll_ray.weights.folders import remove_run, run_folder
from roll_ray.weights.manifest import WeightManifest
from roll_ray.weights.transaction import VersionGate, check_canary
from workers.engine_spec import (
    CommitReport,
    EngineInfo,
    EngineSpec,
    check_model_folder,
    engine_arguments,
    set_environment,
)
from workers.engine_streams import Stream, StreamBook

T = TypeVar("T")
PauseMode = Literal["keep", "abort"]
_log = logging.getLogger(__name__)
_FINISH = {"stop": "stop", "length": "length", "abort": "abort"}


class RolloutEngine:
    """One engine. Every method but the constructor is a coroutine of the loop that `start` ran in.

    When the process that computes dies, calls raise `ActorUnavailable` within about a second. With
    `leave_on_death` this process then ends too, so that whoever supervises it starts a new one; without, `start`
    brings the engine up again, with the folder's weights.
    """

    def __init__(self, spec: EngineSpec, leave_on_death: bool = False) -> None:
        self.spec = spec
        self._leave_on_death = leave_on_death
        self._reset()

    def _reset(self) -> None:
        self._llm: Any = None
        self._core: Any = None
        self._info: EngineInfo | None = None
        self._death = ""
        self._dead = asyncio.Event()
        self._book = StreamBook()
        self._gate = VersionGate(0)
        self._updating = asyncio.Lock()
        self._paused = False
        self._held: list[Stream] = []
        self._scores: dict[str, asyncio.Future[Any]] = {}
        self._stats: Any = None
        self._preemptions = 0
        self._reader: asyncio.Task[None] | None = None
        self._received_folder = ""

    @property
    def version(self) -> int:
        """The committed weight version; 0 is what the model folder holds."""
        return self._gate.version

    # ---- life ----

    async def start(self) -> EngineInfo:
        """Start the engine; the same answer when it runs already. Raises `RollRayError` for a model that cannot run."""
        if self._info is not None and not self._death:
            return self._info
        await self.shutdown()
        self._reset()
        check_model_folder(self.spec)
        set_environment(self.spec)
        try:
            self._llm = await asyncio.to_thread(_build, self.spec)
        except Exception as error:  # whatever vLLM says, the user reads it with the model and settings named
            raise RollRayError(
                f"{self.spec.name} could not be started on {self.spec.model}",
                why=f"{type(error).__name__}: {error}",
                next_step="the lines that vLLM logged before this tell the cause; a smaller kv_cache_mb, "
                "max_model_len or another dtype are what helps most often",
            ) from error
        self._core = self._llm.engine_core
        self._reader = asyncio.create_task(self._read_outputs(), name=f"{self.spec.name}-outputs")
        pids = await self._ask(self._llm.collective_rpc("rr_attach"))
        await self._ask(self._core.set_weight_version_async("0"))
        config = self._llm.vllm_config.model_config
        self._info = EngineInfo(config.max_model_len, config.get_vocab_size(), 0, pids[0])
        return self._info

    async def shutdown(self) -> None:
        """End the engine's processes and forget its requests."""
        if self._reader is not None:
            self._reader.cancel()
            self._reader = None
        if self._llm is not None:
            llm, self._llm, self._core = self._llm, None, None
            await asyncio.to_thread(llm.shutdown, 5.0)
        if self._received_folder:
            remove_run(self._received_folder)
        self._die("it was shut down")

    def _die(self, reason: str) -> None:
        if not self._death:
            self._death = reason
            self._dead.set()
            self._book.wake_all()

    def _check_alive(self) -> None:
        if self._death:
            raise ActorUnavailable(self.spec.name, self._death)
        if self._llm is None:
            raise ActorUnavailable(self.spec.name, "it has not been started")

    async def _ask(self, answer: Awaitable[T]) -> T:
        """Await an answer of the engine process, but not one that can never come."""
        asked = asyncio.ensure_future(answer)
        dead = asyncio.ensure_future(self._dead.wait())
        try:
            await asyncio.wait({asked, dead}, return_when=asyncio.FIRST_COMPLETED)
            if asked.done():
                return asked.result()
        finally:
            dead.cancel()
            if not asked.done():
                asked.cancel()
        self._check_alive()
        raise ActorUnavailable(self.spec.name, "it ended")

    # ---- outputs ----

    async def _read_outputs(self) -> None:
        try:
            while True:
                self._absorb(await self._core.get_output_async())
        except asyncio.CancelledError:
            raise
        except Exception as error:  # the engine is gone: everybody who waits is told
            _log.error("%s: the engine process ended: %s", self.spec.name, error)
            self._die(f"its engine process ended ({type(error).__name__}: {error})")
            if self._leave_on_death:
                asyncio.get_running_loop().call_later(1.0, os._exit, 1)

    def _absorb(self, batch: Any) -> None:
        """One step of the engine: new tokens of many requests, all sampled by one weight version."""
        version = int(batch.weight_version) if batch.weight_version else self.version
        grow = self._book.grow
        for out in batch.outputs:
            finish = None if out.finish_reason is None else str(out.finish_reason)
            if out.request_id in self._scores:
                self._absorb_score(out, finish)
                continue
            logprobs = [] if out.new_logprobs is None else out.new_logprobs.logprobs[:, 0].tolist()
            grow(
                out.request_id,
                out.new_token_ids,
                logprobs,
                version,
                _FINISH.get(finish, "error") if finish else None,
            )
            if out.events:
                self._preemptions += sum(event.type.name == "PREEMPTED" for event in out.events)
        if batch.scheduler_stats is not None:
            self._stats = batch.scheduler_stats

    def _absorb_score(self, out: Any, finish: str | None) -> None:
        future = self._scores[out.request_id]
        if out.new_prompt_logprobs_tensors is not None and not future.done():
            future.set_result(out.new_prompt_logprobs_tensors)
        elif finish and not future.done():
            future.set_exception(RollRayError(f"{self.spec.name}: the sequence was not scored ({finish})"))

    async def _drained(self) -> None:
        """Everything that the engine had sent before its last answer has been absorbed."""
        while not self._core.outputs_queue.empty():
            await asyncio.sleep(0)

    # ---- requests ----

    async def submit(self, requests: Sequence[GenerationRequest]) -> None:
        """Take requests. One that cannot run (too long, bad sampling) is answered with finish "error".

        Raises `WeightUpdateError` while the engine is fenced, `ActorUnavailable` when it is gone."""
        self._check_alive()
        self._gate.check_open_for_requests(self.spec.name)
        for request in requests:
            stream = self._book.open(request)
            if problem := self._problem(request):
                self._book.close(stream, "error", problem)
            elif self._paused:
                self._held.append(stream)
            else:
                await self._launch(stream)

    async def _launch(self, stream: Stream) -> None:
        request = stream.request
        room = self._started().max_model_len - len(request.prompt_token_ids)
        try:
            params = _sampling_params(request, min(request.max_new_tokens, room))
        except ValueError as error:
            self._book.close(stream, "error", str(error))
            return
        await self._core.add_request_async(self._core_request(stream.key, request.prompt_token_ids, params))

    def _core_request(self, key: str, tokens: Sequence[int], params: Any) -> Any:
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
            cache_salt=f"v{self.version}",
            data_parallel_rank=None,
        )

    def _problem(self, request: GenerationRequest) -> str:
        """Why a request cannot run, in words; an empty string when it can."""
        info, prompt = self._started(), request.prompt_token_ids
        if not prompt:
            return "the prompt has no tokens"
        if len(prompt) >= info.max_model_len:
            return (
                f"the prompt has {len(prompt)} tokens, the engine's context {info.max_model_len}: "
                "no room for a response"
            )
        if request.max_new_tokens < 1:
            return f"max_new_tokens is {request.max_new_tokens}; at least 1 is needed"
        if min(prompt) < 0 or max(prompt) >= info.vocab_size:
            return f"the prompt has token ids outside of the model's vocabulary of {info.vocab_size}"
        if request.seed is not None and not self.spec.seeded_requests:
            return "the request has a seed, but the engine was started without seeded_requests"
        return ""

    def _started(self) -> EngineInfo:
        if self._info is None:
            raise ActorUnavailable(self.spec.name, "it has not been started")
        return self._info

    async def collect(self, client: str, timeout_s: float) -> list[GenerationDelta]:
        """Long-poll for a client: at once when a request of it finished, else every `partial_interval_s` the new
        tokens of its running requests; an empty list after `timeout_s` without news."""
        self._check_alive()
        deltas = await self._book.collect(client, timeout_s, self.spec.partial_interval_s)
        if not deltas:
            self._check_alive()
        return deltas

    async def abort(self, request_ids: Sequence[str]) -> None:
        """End requests; their last delta has finish "abort" and all tokens so far. Others are counted and ignored."""
        self._check_alive()
        keys = self._book.abort(request_ids)
        self._held = [stream for stream in self._held if stream.finish is None]
        if keys:
            await self._core.abort_requests_async(keys)

    # ---- pause, score, stats ----

    async def pause(self, mode: PauseMode = "keep") -> None:
        """Stop between two steps. "keep" freezes the running requests; "abort" ends them with their tokens so far."""
        self._check_alive()
        if not self._paused:
            self._paused = True
            await self._ask(self._core.pause_scheduler_async("keep", False))
            await self._drained()
        if mode == "abort":
            await self.abort([stream.request.id for stream in self._book.open_streams()])

    async def resume(self) -> None:
        """Go on; what was submitted meanwhile starts now. Raises `WeightUpdateError` while the engine is fenced."""
        self._check_alive()
        self._gate.check_open_for_requests(self.spec.name)
        held, self._held, self._paused = self._held, [], False
        await self._ask(self._core.resume_scheduler_async())
        for stream in held:
            await self._launch(stream)

    async def score(self, token_ids: Sequence[int], temperature: float = 1.0) -> list[float]:
        """Log-probabilities of tokens 1..n-1 given their prefix, under the committed weights at `temperature`.

        vLLM's own prompt log-probabilities are those of temperature 1 whatever is asked for; at another
        one the whole vocabulary is fetched and normalised here."""
        self._check_alive()
        self._gate.check_open_for_requests(self.spec.name)
        if self._paused:
            raise RollRayError(
                f"{self.spec.name} cannot score while it is paused", next_step="resume it first"
            )
        from vllm.sampling_params import SamplingParams

        width = 0 if temperature == 1.0 else -1
        params = SamplingParams(temperature=0.0, max_tokens=1, prompt_logprobs=width, detokenize=False)
        key = f"score-{time.monotonic_ns()}"
        self._scores[key] = asyncio.get_running_loop().create_future()
        try:
            await self._core.add_request_async(self._core_request(key, token_ids, params))
            tensors = await self._ask(self._scores[key])
        finally:
            del self._scores[key]
        return _at_temperature(tensors.logprobs.numpy(), temperature)

    async def stats(self) -> EngineStats:
        """Load as the engine's own counters said after its last step."""
        self._check_alive()
        idle, stats = len(self._book) == 0, self._stats
        return EngineStats(
            engine=self.spec.name,
            version=self.version,
            running=0 if idle or stats is None else stats.num_running_reqs,
            waiting=len(self._held) + (0 if idle or stats is None else stats.num_waiting_reqs),
            kv_use=0.0 if idle or stats is None else stats.kv_cache_usage,
            preemptions=self._preemptions,
            generated_tokens=self._book.generated_tokens,
        )

    # ---- weights ----

    async def update_weights(self, manifest: WeightManifest, update_mode: PauseMode = "keep") -> CommitReport:
        """Commit a published version: pause, load, verify hashes and completeness, score the canary, go on.

        Nothing is sampled between the pause and the commit. Weights that are in force already are nothing to
        do. Raises `WeightUpdateError` when the commit is refused: running requests then end with the tokens
        of before the pause, and the engine stays fenced until an update succeeds.
        """
        self._check_alive()
        async with self._updating:
            if self._gate.has(manifest):
                return CommitReport(manifest.version, {})
            started_s = time.perf_counter()
            self._gate.begin(manifest)
            was_paused = self._paused and not self._gate.fenced
            try:
                await self.pause(update_mode)
                paused_s = time.perf_counter() - started_s
                seconds = {"pause": paused_s, **await self._load(manifest)}
                scored_s = time.perf_counter()
                difference = await self._canary_difference(manifest)
                seconds["canary"] = time.perf_counter() - scored_s
                await self._ask(self._core.set_weight_version_async(str(manifest.version)))
            except BaseException as error:
                await self._fence(error)
                raise
            self._gate.commit()
            await self._start_untouched_again()
            if not was_paused:
                await self.resume()
            seconds["total"] = time.perf_counter() - started_s
            return CommitReport(manifest.version, seconds, difference)

    async def _load(self, manifest: WeightManifest) -> dict[str, float]:
        """Have the engine load the buckets; seconds by stage."""
        try:
            answers = await self._ask(self._llm.collective_rpc("rr_update", args=(manifest.to_plain(),)))
        except (ActorUnavailable, asyncio.CancelledError):
            raise
        except Exception as error:  # what the engine process raised comes back as text
            raise WeightUpdateError(
                f"{self.spec.name} failed to load weight version {manifest.version}",
                why=_first_line(error),
                next_step="the engine stays fenced until an update passes; publish the version again",
            ) from error
        for answer in answers:
            if "refused" in answer:
                what, why, next_step = answer["refused"]
                raise WeightUpdateError(f"{self.spec.name}: {what}", why=why, next_step=next_step)
        seconds = [answer["seconds"] for answer in answers]
        return {stage: max(s[stage] for s in seconds) for stage in seconds[0]}

    async def _canary_difference(self, manifest: WeightManifest) -> float | None:
        if manifest.canary is None:
            return None
        scores = await self._ask(
            self._llm.collective_rpc("rr_score", args=(list(manifest.canary.token_ids),))
        )
        return check_canary(manifest.version, manifest.canary, scores[0])

    async def _fence(self, error: BaseException) -> None:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        self._gate.fail(reason)
        if not self._death:
            await self.abort([stream.request.id for stream in self._book.open_streams()])

    async def _start_untouched_again(self) -> None:
        """Requests without a token leave the old weights behind: no cached prefix, no old salt."""
        held = set(map(id, self._held))
        untouched = [s for s in self._book.open_streams() if not s.tokens and id(s) not in held]
        if untouched:
            await self._core.abort_requests_async([self._book.started_again(s) for s in untouched])
            self._held = untouched + self._held

    async def set_repacking(self, repacks: bool) -> None:
        """Switch the re-packing of embeddings off or on; for the self-check, which proves that its lack is seen."""
        await self._ask(self._llm.collective_rpc("rr_set_repacking", args=(repacks,)))

    async def receive_weights(
        self, manifest: WeightManifest, *buckets: npt.NDArray[np.uint8]
    ) -> WeightManifest:
        """Keep buckets that came from another node in this one's shared memory; the manifest to update with."""
        from roll_ray.weights.buckets import receive_buckets

        self._received_folder = self._received_folder or run_folder(f"{self.spec.name}-received")
        return await asyncio.to_thread(receive_buckets, manifest, buckets, self._received_folder)


def _build(spec: EngineSpec) -> Any:
    """In a thread: without a running loop vLLM leaves the reading of outputs to us."""
    from vllm.engine.arg_utils import AsyncEngineArgs
    from vllm.v1.engine.async_llm import AsyncLLM

    class Engine(AsyncLLM):
        """Ended by `shutdown` alone: vLLM's finalizer complains when it runs at interpreter exit."""

        def __del__(self) -> None: ...

    return Engine.from_engine_args(AsyncEngineArgs(**engine_arguments(spec)))


def _sampling_params(request: GenerationRequest, max_tokens: int) -> Any:
    from vllm.sampling_params import SamplingParams

    sampling: SamplingDistribution = request.sampling
    return SamplingParams(
        temperature=sampling.temperature,
        top_k=sampling.top_k,
        top_p=sampling.top_p,
        min_p=sampling.min_p,
        repetition_penalty=sampling.repetition_penalty,
        presence_penalty=sampling.presence_penalty,
        frequency_penalty=sampling.frequency_penalty,
        max_tokens=max_tokens,
        stop_token_ids=list(request.stop_token_ids),
        seed=request.seed,
        logprobs=0,
        detokenize=False,
        ignore_eos=True,  # exactly the request's stop tokens end it
    )


def _at_temperature(logprobs_T_V: npt.NDArray[np.float32], temperature: float) -> list[float]:
    """Column 0 is the token itself; with the whole vocabulary beside it, log softmax of the scaled logits."""
    if temperature == 1.0:
        return [float(x) for x in logprobs_T_V[:, 0]]
    greedy_is_plain = temperature or 1.0
    scaled = logprobs_T_V.astype(np.float64) / greedy_is_plain
    top = scaled[:, 1:].max(axis=1, keepdims=True)
    total = top[:, 0] + np.log(np.exp(scaled[:, 1:] - top).sum(axis=1))
    return [float(x) for x in scaled[:, 0] - total]


def _first_line(error: Exception) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[0] if lines else type(error).__name__
