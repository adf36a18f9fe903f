"""A rollout engine: tokens in and tokens out, weights changed under its running requests.

Requests are answered by long-polls of their clients. While paused, new requests wait on this side. After an
update, requests that had no token yet start again under the new weights; others go on with the cache of
their prefix. The prefix cache is salted by commit: nothing is answered from the cache of other weights.
"""

from __future__ import annotations

import asyncio
import functools
import os
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from roll_ray.actors import ActorUnavailable
from roll_ray.errors import RollRayError
from roll_ray.generation import EngineStats, GenerationDelta, GenerationRequest
from roll_ray.sample import SamplingDistribution
from roll_ray.weights.folders import remove_run, run_folder, sweep_stale
from roll_ray.weights.manifest import WeightManifest
from roll_ray.weights.transaction import VersionGate, check_canary
from workers.engine_process import EngineProcess
from workers.engine_push import PushedWeights, PushStep
from workers.engine_spec import CommitReport, EngineInfo, EngineSpec, check_model_folder
from workers.engine_streams import Stream, StreamBook

PauseMode = Literal["keep", "abort"]
_LAST_WORDS_S = 1.0
PUSH_TIMEOUT_S = 120.0


class RolloutEngine:
    """One engine. All of it runs in one event loop.

    When the process that computes dies, calls raise `ActorUnavailable` within about a second. With
    `leave_on_death` this process then ends too, so that whoever supervises it starts a new one; without, `start`
    brings the engine up again, with the folder's weights.
    """

    def __init__(self, spec: EngineSpec, leave_on_death: bool = False) -> None:
        self.spec = spec
        self._leave_on_death = leave_on_death
        self._starting = asyncio.Lock()
        self._received_folder = ""
        self._reset()

    def _reset(self) -> None:
        self._book = StreamBook()
        self._process = EngineProcess(self.spec, self._book.grow, self._died)
        self._info: EngineInfo | None = None
        self._gate = VersionGate(0)
        self._commits = 0
        self._updating = asyncio.Lock()
        self._paused = False
        self._held: list[Stream] = []
        self._push = PushedWeights()
        self._asleep = False

    @property
    def version(self) -> int:
        """The committed weight version; 0 is what the model folder holds."""
        return self._gate.version

    async def start(self) -> EngineInfo:
        """Start the engine; the same answer when it runs already. Raises `RollRayError` for a model that cannot run."""
        async with self._starting:
            if self._info is None:
                sweep_stale()
                check_model_folder(self.spec)
                await self._process.shutdown()
                self._reset()
                self._info = await self._process.start()
            return self._info

    @property
    def _salt(self) -> str:
        """Of the prefix cache."""
        return f"c{self._commits}"

    async def new_run(self) -> None:
        """Belong to another run from now on: its versions begin anew, and nothing is served before its first."""
        self._running()
        async with self._updating:
            await self._abort_all()
            self._gate = VersionGate(0)
            self._gate.withdraw("the run that it belongs to now has published no weights yet")

    async def shutdown(self) -> None:
        """End the engine's processes; open requests are forgotten, who waits for them is told."""
        self._info = None
        await self._process.shutdown()
        self._book.wake_all()
        if self._received_folder:
            remove_run(self._received_folder)

    def _died(self, reason: str) -> None:
        self._info = None
        self._book.wake_all()
        if self._leave_on_death:
            asyncio.get_running_loop().call_later(_LAST_WORDS_S, os._exit, 1)

    # ---- requests ----

    async def submit(self, requests: Sequence[GenerationRequest]) -> None:
        """Take requests. One that cannot run (too long, bad sampling) is answered with finish "error".

        Raises `WeightUpdateError` while the engine is fenced, `ActorUnavailable` when it is gone."""
        self._process.check_alive()
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
        room = self._running().max_model_len - len(request.prompt_token_ids)
        try:
            await self._process.add(stream.key, request, min(request.max_new_tokens, room), self._salt)
        except ValueError as error:  # the sampling distribution
            self._book.close(stream, "error", str(error))

    def _problem(self, request: GenerationRequest) -> str:
        """Why a request cannot run, in words; an empty string when it can."""
        info, prompt = self._running(), request.prompt_token_ids
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

    def _running(self) -> EngineInfo:
        self._process.check_alive()
        if self._info is None:
            raise ActorUnavailable(self.spec.name, "it is not running")
        return self._info

    async def collect(self, client: str, timeout_s: float) -> list[GenerationDelta]:
        """Long-poll for a client: at once when a request of it finished, else every `partial_interval_s` the new
        tokens of its running requests; an empty list after `timeout_s` without news."""
        self._process.check_alive()
        deltas = await self._book.collect(client, timeout_s, self.spec.partial_interval_s)
        if not deltas:
            self._process.check_alive()
        return deltas

    async def abort(self, request_ids: Sequence[str]) -> None:
        """End requests; their last delta has finish "abort" and all tokens so far. Others are counted and ignored."""
        self._process.check_alive()
        keys = self._book.abort(request_ids)
        self._held = [stream for stream in self._held if stream.finish is None]
        if keys:
            await self._process.abort(keys)

    async def _abort_all(self) -> None:
        await self.abort([stream.request.id for stream in self._book.open_streams()])

    # ---- pause, score, stats ----

    async def pause(self, mode: PauseMode = "keep") -> None:
        """Stop between two steps. "keep" freezes the running requests; "abort" ends them with their tokens so far."""
        self._process.check_alive()
        if not self._paused:
            self._paused = True
            await self._process.pause()
        if mode == "abort":
            await self._abort_all()

    async def resume(self) -> None:
        """Go on; what was submitted meanwhile starts now. Raises `WeightUpdateError` while the engine is fenced."""
        self._process.check_alive()
        self._gate.check_open_for_requests(self.spec.name)
        held, self._held, self._paused = self._held, [], False
        await self._process.resume()
        for stream in held:
            await self._launch(stream)

    async def score(self, token_ids: Sequence[int], temperature: float = 1.0) -> list[float]:
        """Log-probabilities of tokens 1..n-1 given their prefix, under the committed weights at `temperature`.

        vLLM's own prompt log-probabilities are those of temperature 1 whatever is asked for; at another
        one the whole vocabulary is fetched and normalised here."""
        self._running()
        self._gate.check_open_for_requests(self.spec.name)
        if self._paused:
            raise RollRayError(
                f"{self.spec.name} cannot score while it is paused", next_step="resume it first"
            )
        asked = GenerationRequest("score", "", tuple(token_ids), SamplingDistribution(), 1)
        if problem := self._problem(asked):
            raise RollRayError(f"{self.spec.name} cannot score this sequence: {problem}")
        scaled = temperature not in (0.0, 1.0)
        logprobs = await self._process.prompt_logprobs(token_ids, self._salt, scaled)
        return _at_temperature(logprobs, temperature) if scaled else [float(x) for x in logprobs[:, 0]]

    async def stats(self) -> EngineStats:
        """Load as the engine's own counters said after its last step."""
        self._process.check_alive()
        stats = self._process.stats if len(self._book) else None
        return EngineStats(
            engine=self.spec.name,
            version=self.version,
            running=stats.num_running_reqs if stats else 0,
            waiting=len(self._held) + (stats.num_waiting_reqs if stats else 0),
            kv_use=stats.kv_cache_usage if stats else 0.0,
            preemptions=self._process.preemptions,
            generated_tokens=self._book.generated_tokens,
        )

    # ---- weights ----

    async def sleep(self) -> None:
        """Leave the memory of a shared GPU to the trainer until the next update, which wakes the engine.

        Running requests are kept and compute their cache again; new ones are refused, as while fenced."""
        self._running()
        async with self._updating:
            if not self._asleep:
                await self.pause()
                self._gate.withdraw("it sleeps while the trainer trains, and has no weights")
                self._asleep = True
                await self._process.sleep()

    async def update_weights(self, manifest: WeightManifest, update_mode: PauseMode = "keep") -> CommitReport:
        """Commit a published version: pause, load, verify hashes and completeness, score the canary, go on.

        Nothing is sampled between the pause and the commit. Weights that are in force already are nothing to
        do. Raises `WeightUpdateError` when the commit is refused: running requests then end with the tokens
        of before the pause, and the engine stays fenced until an update succeeds.
        """
        return await self._commit(manifest, update_mode, lambda: self._process.load(manifest))

    async def update_by_push(
        self, manifest: WeightManifest, update_mode: PauseMode = "keep", timeout_s: float = PUSH_TIMEOUT_S
    ) -> CommitReport:
        """The same for weights that a trainer pushes through vLLM's own "ipc" or "nccl" engine (`workers.vllm_gpu`):
        `push` takes them in once this has paused; nothing but the manifest's canary can check them."""
        return await self._commit(manifest, update_mode, lambda: self._push.arrive(timeout_s))

    async def begin_push(
        self, manifest: WeightManifest, update_mode: PauseMode = "keep", timeout_s: float = PUSH_TIMEOUT_S
    ) -> bool:
        """Open `update_by_push`; returns when it waits for `push`, or False when these weights are in force."""
        return await self._push.begin(self.update_by_push(manifest, update_mode, timeout_s))

    async def finish_push(self) -> CommitReport:
        """The commit of what `begin_push` opened. Raises what `update_weights` would."""
        return await self._push.finish()

    async def push(self, step: PushStep, payload: dict[str, Any] | None = None) -> None:
        """A step of the trainer's transfer engine: "init" once, then "start", "update" ..., "finish" per version."""
        self._running()
        work = functools.partial(self._process.transfer_step, step, payload)
        await (work() if step == "init" else self._push.take(step, work))

    async def _commit(
        self, manifest: WeightManifest, mode: PauseMode, load: Callable[[], Awaitable[dict[str, float]]]
    ) -> CommitReport:
        self._running()
        async with self._updating:
            if self._gate.has(manifest):
                return CommitReport(manifest.version, {})
            started_s = time.perf_counter()
            stays_paused = self._paused and not self._gate.fenced
            self._gate.begin(manifest)
            try:
                await self.pause(mode)
                if self._asleep:
                    await self._process.wake()
                    self._asleep = False
                seconds = {"pause": time.perf_counter() - started_s}
                seconds |= await load()
                loaded_s = time.perf_counter()
                difference = await self._canary_difference(manifest)
                seconds["canary"] = time.perf_counter() - loaded_s
                await self._process.set_version(manifest.version)
            except BaseException as error:
                await self._fence(error)
                raise
            self._gate.commit()
            self._commits += 1
            await self._start_untouched_again()
            if not stays_paused:
                await self.resume()
            seconds["total"] = time.perf_counter() - started_s
            return CommitReport(manifest.version, seconds, difference)

    async def _canary_difference(self, manifest: WeightManifest) -> float | None:
        if manifest.canary is None:
            return None
        scores = await self._process.ask("rr_score", list(manifest.canary.token_ids))
        return check_canary(manifest.version, manifest.canary, scores[0])

    async def _fence(self, error: BaseException) -> None:
        self._gate.fail(str(error).splitlines()[0] if str(error) else type(error).__name__)
        if self._info is not None:
            await self._abort_all()

    async def _start_untouched_again(self) -> None:
        """Requests without a token leave the old weights behind: no cached prefix, no old salt."""
        held = {stream.key for stream in self._held}
        untouched = [s for s in self._book.open_streams() if not s.tokens and s.key not in held]
        if untouched:
            await self._process.abort([self._book.started_again(s) for s in untouched])
            self._held = untouched + self._held

    async def receive_weights(
        self, manifest: WeightManifest, *buckets: npt.NDArray[np.uint8]
    ) -> WeightManifest:
        """Keep buckets that came from another node in this one's shared memory; the manifest to update with."""
        from roll_ray.weights.buckets import receive_buckets

        self._received_folder = run_folder(f"{self.spec.name}-received")
        return await asyncio.to_thread(receive_buckets, manifest, buckets, self._received_folder)

    async def set_repacking(self, repacks: bool) -> None:
        """Switch the re-packing of embeddings off or on; for the self-check, which proves that its lack is seen."""
        await self._process.ask("rr_set_repacking", repacks)


def _at_temperature(logprobs_T_V: npt.NDArray[np.float32], temperature: float) -> list[float]:
    """Column 0 is the token itself, the others the whole vocabulary: log softmax of the logits over `temperature`."""
    scaled = logprobs_T_V.astype(np.float64) / temperature
    top = scaled[:, 1:].max(axis=1)
    total = top + np.log(np.exp(scaled[:, 1:] - top[:, None]).sum(axis=1))
    return [float(x) for x in scaled[:, 0] - total]
