"""A scripted engine that answers each request after a known time, and a tokenizer that does nothing."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Mapping, Sequence

from roll_ray.generation import EngineStats, GenerationDelta, GenerationRequest


class TimedEngine:
    """Answers with one token after `seconds_of(request)`; any number of requests run at once."""

    def __init__(self, seconds_of: Callable[[GenerationRequest], float]) -> None:
        self._seconds_of = seconds_of
        self._ended: dict[str, list[GenerationDelta]] = {}
        self._news: dict[str, asyncio.Event] = {}

    async def submit(self, requests: Sequence[GenerationRequest]) -> None:
        loop = asyncio.get_running_loop()
        for request in requests:
            loop.call_later(self._seconds_of(request), self._end, request)

    async def collect(self, client: str, timeout_s: float) -> list[GenerationDelta]:
        if not self._ended.get(client):
            news = self._news.setdefault(client, asyncio.Event())
            news.clear()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(timeout_s):
                    await news.wait()
        return self._ended.pop(client, [])

    async def abort(self, ids: Sequence[str]) -> None: ...

    async def stats(self) -> EngineStats:
        return EngineStats("rollout-0", 0, 0, 0, 0.0, 0, 0)

    def _end(self, request: GenerationRequest) -> None:
        delta = GenerationDelta(request.id, (7,), (-1.0,), (0,), "stop")
        self._ended.setdefault(request.client, []).append(delta)
        self._news.setdefault(request.client, asyncio.Event()).set()


class NoWords:
    """A tokenizer for prompts that are tokens already."""

    def encode(self, text: str) -> list[int]:
        return [int(word) for word in text.split()]

    def decode(self, token_ids: Sequence[int]) -> str:
        return "x"

    def apply_chat_template(self, messages: Sequence[Mapping[str, str]]) -> list[int]:
        return [n for message in messages for n in self.encode(message["content"])]
