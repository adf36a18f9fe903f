"""The open requests of an engine: tokens as they come, and who waits for them. Pure asyncio, no vLLM.

Invariant: every token of a request is handed out once, in order, with its log-probability and the weight
version of the engine step that sampled it; after the delta with `finish` nothing more comes.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from dataclasses import dataclass, field

from roll_ray.errors import RollRayError
from roll_ray.generation import GenerationDelta, GenerationRequest

FINISHES = ("stop", "length", "abort")


@dataclass(slots=True)
class Stream:
    """One open request. `key` is its name inside the engine; a request that starts again gets a new one."""

    request: GenerationRequest
    key: str
    tokens: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    spans: list[list[int]] = field(default_factory=list)  # [version, number of tokens], run by run
    sent: int = 0
    finish: str | None = None
    error: str = ""

    def take(self) -> GenerationDelta:
        """What has not been handed out yet."""
        versions = [version for version, n in self.spans for _ in range(n)]
        start, self.sent = self.sent, len(self.tokens)
        return GenerationDelta(
            id=self.request.id,
            tokens=tuple(self.tokens[start:]),
            logprobs=tuple(self.logprobs[start:]),
            versions=tuple(versions[start:]),
            finish=self.finish,
            error=self.error,
        )


@dataclass(slots=True)
class _Client:
    running: dict[str, Stream] = field(default_factory=dict)
    finished: list[Stream] = field(default_factory=list)
    wake: asyncio.Event = field(default_factory=asyncio.Event)
    partial_due_s: float = 0.0  # on the loop's clock


class StreamBook:
    """All open requests, by their id and by their key."""

    def __init__(self) -> None:
        self.generated_tokens = 0
        self.unknown_aborts = 0
        self._by_key: dict[str, Stream] = {}
        self._by_id: dict[str, Stream] = {}
        self._clients: dict[str, _Client] = {}
        self._next_key = 0

    def __len__(self) -> int:
        return len(self._by_id)

    def open(self, request: GenerationRequest) -> Stream:
        if request.id in self._by_id:
            raise RollRayError(
                f"request {request.id} is open already",
                why="answers are told apart by the id",
                next_step="give each attempt an id of its own",
            )
        stream = Stream(request, self._new_key())
        self._by_key[stream.key] = self._by_id[request.id] = stream
        self._client(request.client).running[request.id] = stream
        return stream

    def started_again(self, stream: Stream) -> str:
        """Give a stream without tokens a new key; the old one."""
        old = stream.key
        del self._by_key[old]
        stream.key = self._new_key()
        self._by_key[stream.key] = stream
        return old

    def grow(
        self, key: str, tokens: list[int], logprobs: list[float], version: int, finish: str | None
    ) -> None:
        """What one engine step made for one request. Unknown keys are of aborted requests: their tokens are void."""
        stream = self._by_key.get(key)
        if stream is None:
            return
        if tokens:
            stream.tokens += tokens
            stream.logprobs += logprobs
            if stream.spans and stream.spans[-1][0] == version:
                stream.spans[-1][1] += len(tokens)
            else:
                stream.spans.append([version, len(tokens)])
            self.generated_tokens += len(tokens)
        if finish is not None:
            self.close(stream, finish if finish in FINISHES else "error", f"the engine ended it: {finish}")

    def close(self, stream: Stream, finish: str, error: str = "") -> None:
        stream.finish, stream.error = finish, error if finish == "error" else ""
        del self._by_key[stream.key], self._by_id[stream.request.id]
        client = self._client(stream.request.client)
        del client.running[stream.request.id]
        client.finished.append(stream)
        client.wake.set()

    def abort(self, request_ids: Iterable[str]) -> list[str]:
        """Close these with finish "abort"; their keys. Ids that are not open are counted and ignored."""
        keys = []
        for request_id in request_ids:
            if stream := self._by_id.get(request_id):
                keys.append(stream.key)
                self.close(stream, "abort")
            else:
                self.unknown_aborts += 1
        return keys

    def open_streams(self) -> list[Stream]:
        return list(self._by_id.values())

    def wake_all(self) -> None:
        """Let every waiting `collect` look again."""
        for client in self._clients.values():
            client.wake.set()

    async def collect(self, name: str, timeout_s: float, partial_interval_s: float) -> list[GenerationDelta]:
        """What finished for a client, as soon as anything has, and every interval the new tokens of what runs.

        An empty list at the time-out, and when `wake_all` was called."""
        client, loop = self._client(name), asyncio.get_running_loop()
        deadline_s = loop.time() + timeout_s
        while True:
            now_s = loop.time()
            due = now_s >= client.partial_due_s
            if client.finished or due:
                streams, client.finished = client.finished, []
                if due:
                    client.partial_due_s = now_s + partial_interval_s
                    streams = streams + [s for s in client.running.values() if len(s.tokens) > s.sent]
                if streams:
                    return [stream.take() for stream in streams]
            if now_s >= deadline_s:
                return []
            client.wake.clear()
            try:
                await asyncio.wait_for(client.wake.wait(), min(deadline_s, client.partial_due_s) - now_s)
            except TimeoutError:
                continue
            if not client.finished:
                return []

    def _client(self, name: str) -> _Client:
        return self._clients.setdefault(name, _Client())

    def _new_key(self) -> str:
        self._next_key += 1
        return str(self._next_key)
