"""Least-loaded routing of requests to rollout engines, in O(log engines) for each decision.

Invariant. A request is held by at most one engine, and an engine's load is the sum of the tokens that its
requests may still need. A fenced or absent engine gets no request: one that is down or released, whose weight version
is behind, or whose last weight update was refused.

Migration. What a released engine held goes on elsewhere: its tokens so far become part of the prompt there, and their
keys and values are computed anew. The longest go first, each to the engine that is lightest then, so that an engine
that gets some of them ends up less than one request above any other open one.
"""

from __future__ import annotations

import heapq
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Generic, TypeVar

Request = TypeVar("Request", bound=Hashable)


@dataclass(slots=True)
class _Engine(Generic[Request]):
    up: bool = True
    released: bool = False
    version: int = 0
    refused: str = ""
    load_tokens: int = 0
    requests: dict[Request, int] = field(default_factory=dict)
    stamp: int = 0  # entries of the heap with another stamp are out of date


class Router(Generic[Request]):
    """Places requests on the engine with the fewest outstanding tokens; ties go to the first by name.

    The heap is lazy: each change of an engine's load pushes a new entry, and entries that no longer match
    their engine are dropped when they surface.
    """

    def __init__(self) -> None:
        self._engines: dict[str, _Engine[Request]] = {}
        self._heap: list[tuple[int, int, str, int]] = []
        self._where: dict[Request, str] = {}
        self.required_version: int | None = None

    # --- engines ---------------------------------------------------------------------------------

    def engine_up(self, engine: str, version: int) -> None:
        """The engine answers and holds weights `version`."""
        entry = self._engines.setdefault(engine, _Engine())
        entry.up, entry.version, entry.refused = True, version, ""
        self._push(engine)

    def engine_down(self, engine: str) -> list[Request]:
        """The engine is gone; returns the requests that it held, which are placed nowhere now."""
        entry = self._engines.setdefault(engine, _Engine(up=False))
        entry.up = False
        return list(self._emptied(entry))

    def _emptied(self, entry: _Engine[Request]) -> dict[Request, int]:
        held, entry.requests, entry.load_tokens = entry.requests, {}, 0
        entry.stamp += 1
        for request in held:
            del self._where[request]
        return held

    def refuse(self, engine: str, reason: str) -> None:
        """Fence an engine whose weight update was not committed, until it is up with a newer version."""
        entry = self._engines.setdefault(engine, _Engine(up=False))
        entry.refused = reason
        entry.stamp += 1

    def release(self, engines: Iterable[str]) -> dict[Request, str]:
        """Fence these engines until `take_back` and say where each request that they held goes on, placed already.

        Raises ValueError, and changes nothing, when they hold requests and every other engine is fenced.
        """
        names = [name for name in dict.fromkeys(engines) if name in self._engines]
        n_held = sum(self.held(name) for name in names)
        if n_held and not set(self.open_engines()).difference(names):
            raise ValueError(f"no engine is open beside {', '.join(names)}, which hold {n_held} requests")
        held: dict[Request, int] = {}
        for name in names:
            self._engines[name].released = True
            held |= self._emptied(self._engines[name])
        moved = {
            request: self.place(request, held[request]) for request in sorted(held, key=lambda r: -held[r])
        }
        return {request: engine for request, engine in moved.items() if engine is not None}

    def take_back(self, engines: Iterable[str]) -> None:
        """These engines were released and may get requests again."""
        for name in engines:
            if name in self._engines:
                self._engines[name].released = False
                self._push(name)

    def require(self, version: int) -> None:
        """Fence every engine whose weights are older than `version`."""
        self.required_version = version

    def fence(self, engine: str) -> str:
        """Why the engine gets nothing; empty when it may."""
        entry = self._engines.get(engine)
        if entry is None or not entry.up:
            return "down"
        if entry.released:
            return "released to training"
        if entry.refused:
            return f"its weight update was refused: {entry.refused}"
        if self.required_version is not None and entry.version < self.required_version:
            return f"its weights are of version {entry.version}, {self.required_version} is required"
        return ""

    # --- requests --------------------------------------------------------------------------------

    def place(self, request: Request, n_tokens: int, near: str | None = None) -> str | None:
        """The engine for a request that may need `n_tokens` more, or None when every engine is fenced.

        `near` is taken, whatever its load, unless it is fenced: it has the request's prefix in its cache. (Episodes
        are spread by load at their first turn, and stay.) Raises ValueError for a request that is placed already.
        """
        stays = near is not None and not self.fence(near)
        return self._place([request], n_tokens, near if stays else self._lightest())

    def place_together(self, requests: Sequence[Request], n_tokens: int) -> str | None:
        """One engine for all of these requests, which may need `n_tokens` more each."""
        return self._place(requests, n_tokens, self._lightest())

    def _place(self, requests: Sequence[Request], n_tokens: int, engine: str | None) -> str | None:
        for request in requests:
            if request in self._where:
                raise ValueError(f"request {request!r} is placed on {self._where[request]} already")
        if engine is None:
            return None
        entry = self._engines[engine]
        for request in requests:
            entry.requests[request] = n_tokens
            self._where[request] = engine
        entry.load_tokens += n_tokens * len(requests)
        self._push(engine)
        return engine

    def done(self, request: Request) -> str | None:
        """The request ended; returns the engine that held it, None when none did (a late answer)."""
        engine = self._where.pop(request, None)
        if engine is None:
            return None
        entry = self._engines[engine]
        entry.load_tokens -= entry.requests.pop(request)
        self._push(engine)
        return engine

    def where(self, request: Request) -> str | None:
        return self._where.get(request)

    def held(self, engine: str) -> int:
        """How many requests the engine holds."""
        entry = self._engines.get(engine)
        return len(entry.requests) if entry else 0

    def open_engines(self) -> list[str]:
        """Engines that may get requests, by name."""
        return sorted(name for name in self._engines if not self.fence(name))

    def load(self) -> dict[str, tuple[int, int]]:
        """Requests and outstanding tokens of each engine."""
        return {name: (len(e.requests), e.load_tokens) for name, e in self._engines.items()}

    def _push(self, engine: str) -> None:
        entry = self._engines[engine]
        entry.stamp += 1
        heapq.heappush(self._heap, (entry.load_tokens, len(entry.requests), engine, entry.stamp))

    def _lightest(self) -> str | None:
        fenced: list[tuple[int, int, str, int]] = []
        found = None
        while self._heap:
            top = self._heap[0]
            entry = self._engines[top[2]]
            if top[3] != entry.stamp:
                heapq.heappop(self._heap)
                continue
            if self.fence(top[2]):
                fenced.append(heapq.heappop(self._heap))  # it may be open again later
                continue
            found = top[2]
            break
        for item in fenced:
            heapq.heappush(self._heap, item)
        return found
