"""A scripted rollout engine and actors that can die: for fast tests and the control-plane benchmark only.

The token at position p of a sequence, and its log-probability, are functions of p and of the prompt's first
token, so a test can tell whether a response that went through several engines is whole.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from roll_ray.actors import ActorUnavailable
from roll_ray.generation import EngineStats, GenerationDelta, GenerationRequest

T = TypeVar("T")


def token_at(first_token: int, position: int) -> int:
    return (first_token * 7919 + position * 31) % 50_000


def logprob_at(position: int) -> float:
    return -(position % 97) / 64.0  # exact in float32


@dataclass(slots=True)
class _Running:
    request: GenerationRequest
    length: int
    written: int = 0


@dataclass
class ScriptedEngine:
    """Writes `chunk` tokens of every running request each `tick_s`, up to `length_of(request)` tokens in all.

    With `until_abort` requests never end by themselves. `length_of` counts from the original prompt, so a
    continued request ends where it would have ended.
    """

    name: str
    length_of: Callable[[GenerationRequest], int] = lambda request: 8
    chunk: int = 4
    tick_s: float = 0.001
    version: int = 0
    submitted: list[GenerationRequest] = field(default_factory=list)
    hold: bool = False  # accepts requests but writes nothing
    refuses: Exception | None = None
    _running: dict[str, _Running] = field(default_factory=dict)
    _out: dict[str, list[GenerationDelta]] = field(default_factory=dict)
    _news: asyncio.Event = field(default_factory=asyncio.Event)
    _task: asyncio.Task[None] | None = None

    async def submit(self, requests: Sequence[GenerationRequest]) -> None:
        if self.refuses is not None:
            raise self.refuses
        for request in requests:
            self.submitted.append(request)
            length = min(self.length_of(request), request.max_new_tokens)
            self._running[request.id] = _Running(request, length)
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._write())

    async def collect(self, client: str, timeout_s: float) -> list[GenerationDelta]:
        if not self._out.get(client):
            self._news.clear()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(timeout_s):
                    await self._news.wait()
        return self._out.pop(client, [])

    async def abort(self, ids: Sequence[str]) -> None:
        for request_id in ids:
            running = self._running.pop(request_id, None)
            if running is not None:
                self._give(running.request, GenerationDelta(request_id, (), (), (), "abort"))

    async def update_weights(self, version: int, update_mode: str = "keep") -> None:
        self.version = version
        if update_mode == "abort":
            await self.abort(list(self._running))

    async def stats(self) -> EngineStats:
        return EngineStats(self.name, self.version, len(self._running), 0, 0.0, 0, 0)

    def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()

    async def _write(self) -> None:
        while self._running:
            await asyncio.sleep(self.tick_s)
            if self.hold:
                continue
            for running in list(self._running.values()):
                self._advance(running)

    def _advance(self, running: _Running) -> None:
        request = running.request
        n = min(self.chunk, running.length - running.written)
        begin = len(request.prompt_token_ids) + running.written
        positions = range(begin, begin + n)
        first = request.prompt_token_ids[0]
        running.written += n
        finish = None
        if running.written >= running.length:
            finish = "length" if running.written >= request.max_new_tokens else "stop"
            self._running.pop(request.id, None)
        tokens = tuple(token_at(first, p) for p in positions)
        logprobs = tuple(logprob_at(p) for p in positions)
        self._give(request, GenerationDelta(request.id, tokens, logprobs, (self.version,) * n, finish))

    def _give(self, request: GenerationRequest, delta: GenerationDelta) -> None:
        self._out.setdefault(request.client, []).append(delta)
        self._news.set()


class MortalActor(Generic[T]):
    """An `Actor` in this process that can be killed, also in the middle of a call, and started again."""

    def __init__(self, make: Callable[[], T], name: str) -> None:
        self.make, self.name = make, name
        self.instance = make()
        self.error: Exception | None = None
        self.calls = 0
        self._died = asyncio.Event()

    async def call(self, method: Any, *args: Any, **kwargs: Any) -> Any:
        self.calls += 1
        if self.error is not None:
            raise self.error
        result = getattr(self.instance, method.__name__)(*args, **kwargs)
        if not inspect.isawaitable(result):
            return result
        died, call = self._died, asyncio.ensure_future(result)
        death = asyncio.ensure_future(died.wait())
        try:
            await asyncio.wait({call, death}, return_when=asyncio.FIRST_COMPLETED)
            if call.done():
                return call.result()
            raise self.error or ActorUnavailable(self.name, "killed and started again")
        finally:
            call.cancel()
            death.cancel()

    def kill(self, error: Exception | None = None) -> None:
        """All that the actor held is lost; calls fail with `error` (`ActorUnavailable` unless said)."""
        stop = getattr(self.instance, "stop", None)
        if stop is not None:
            stop()
        self.error = error or ActorUnavailable(self.name, "killed by the test")
        self._died.set()

    def restart(self) -> T:
        self.instance, self.error, self._died = self.make(), None, asyncio.Event()
        return self.instance
