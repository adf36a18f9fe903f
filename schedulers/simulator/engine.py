"""A rollout engine in virtual time: continuous batching, a KV cache of bounded size, preemption by recompute.

It follows vLLM's rules (V1, first come first served). Messages are read between steps. A step needs room for one
more token of each running request; if there is none, the request that was admitted last gives its cache back and
waits at the head of the queue, to be computed anew. The head of the queue is admitted when its whole context fits
beside a step of all. Between two boundaries at which one of these things happens, nothing is simulated: the time
is `StepCosts.decode_s`.

Invariant. At a boundary, the tokens in the cache are the contexts of the running requests and leave room for the
step that follows; every request is running, waiting or gone, and goes once: ended or removed.

Left out, on purpose: blocks of 16 tokens, shared prefixes, chunks of prefill (an admission's prefill holds the
other requests up for its whole time), and the token that a prefill yields.
"""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass, field
from heapq import heappop, heappush

from schedulers.protocol import SampleId
from schedulers.simulator.step_time import StepCosts

Key = tuple[SampleId, int]
"""A response: the sample and its attempt."""


@dataclass(slots=True, eq=False)
class Request:
    """One response to generate: `length` tokens after `prompt_tokens`; `generated` of them exist already, and have
    to be computed anew where it is admitted."""

    key: Key
    prompt_tokens: int
    length: int
    generated: int = 0
    started: bool = False
    running: bool = False
    gone: bool = False
    admitted_at_step: int = 0
    ends_at_step: int = 0


@dataclass(slots=True)
class Boundary:
    """What happened between two steps, at `t_s`."""

    t_s: float
    started: list[Request] = field(default_factory=list)
    ended: list[Request] = field(default_factory=list)
    removed: list[Request] = field(default_factory=list)


class SimulatedEngine:
    """One replica on `devices` devices. `wake_s` is when something happens next (infinite while idle): call `wake`
    then, and again ask for `wake_s`, also after every message."""

    def __init__(
        self, name: str, costs: StepCosts, kv_capacity_tokens: int, max_running: int = 256, devices: int = 1
    ) -> None:
        self.name, self.costs, self.devices = name, costs, devices
        self.kv_capacity_tokens, self.max_running = kv_capacity_tokens, max_running
        self.wake_s = math.inf
        self.busy_s = 0.0
        self.preemptions = 0
        self.recomputed_tokens = 0
        self.generated_tokens = 0
        self.peak_context_tokens = 0
        self._decode_from_s = 0.0
        self._steps = 0  # since the start
        self._steps_planned = 0  # of this stretch, from _decode_from_s to wake_s
        self._context_tokens = 0
        self._running: dict[Key, Request] = {}  # in the order of admission
        self._waiting: deque[Request] = deque()
        self._requests: dict[Key, Request] = {}
        self._ends: list[tuple[int, int, Request]] = []
        self._inbox: list[Request | Key] = []
        self._admissions = 0

    @property
    def n_running(self) -> int:
        return len(self._running)

    @property
    def n_waiting(self) -> int:
        return len(self._requests) - len(self._running)

    @property
    def kv_use(self) -> float:
        """Share of the KV cache in use at the last boundary."""
        return self._context_tokens / self.kv_capacity_tokens

    def keys(self) -> list[Key]:
        """The requests that it holds, in the order in which they came."""
        return list(self._requests)

    def remaining(self, t_s: float) -> list[tuple[int, int]]:
        """Prompt tokens and tokens written by `t_s`, of each request that is not over."""
        steps = self.costs.steps_to_reach(t_s - self._decode_from_s, len(self._running), self._context_tokens)
        now = self._steps + min(steps, self._steps_planned)
        return [
            (r.prompt_tokens, r.generated + (now - r.admitted_at_step if r.running else 0))
            for r in [*self._requests.values(), *(m for m in self._inbox if isinstance(m, Request))]
        ]

    # --- messages ---------------------------------------------------------------------------------

    def submit(self, t_s: float, request: Request) -> None:
        """A request to admit, read at the first boundary from `t_s` on. Raises ValueError if it can never fit."""
        if request.prompt_tokens + request.length > self.kv_capacity_tokens:
            raise ValueError(
                f"{self.name}: a request of {request.prompt_tokens} + {request.length} tokens does not fit in a "
                f"KV cache of {self.kv_capacity_tokens}"
            )
        self._send(t_s, request)

    def remove(self, t_s: float, key: Key) -> None:
        """Abort, or take out to move it elsewhere; of a request that is gone by then, nothing is heard."""
        self._send(t_s, key)

    def _send(self, t_s: float, message: Request | Key) -> None:
        self._inbox.append(message)
        if self.wake_s == math.inf:
            self._decode_from_s = self.wake_s = t_s
            self._steps_planned = 0
            return
        if t_s >= self.wake_s:
            return
        n, context = len(self._running), self._context_tokens
        steps = self.costs.steps_to_reach(t_s - self._decode_from_s, n, context)
        if steps < self._steps_planned:
            self._steps_planned = steps
            self.wake_s = self._decode_from_s + self.costs.decode_s(steps, n, context)

    # --- boundaries -------------------------------------------------------------------------------

    def wake(self) -> Boundary:
        """Go on to `wake_s`: finish what ends there, read messages, make room, admit, and plan the next stretch."""
        boundary = Boundary(self.wake_s)
        self._advance(boundary)
        if self._inbox:
            self._read(boundary)
        prefill_tokens = 0
        if self._running:
            self._make_room()
        if self._waiting:
            prefill_tokens = self._admit(boundary)
        self._plan(boundary.t_s, prefill_tokens)
        return boundary

    def _advance(self, boundary: Boundary) -> None:
        n, steps = len(self._running), self._steps_planned
        if steps:
            self._context_tokens += n * steps
            self._steps += steps
            self.generated_tokens += n * steps
            self.busy_s += boundary.t_s - self._decode_from_s
            self.peak_context_tokens = max(self.peak_context_tokens, self._context_tokens)
        ends = self._ends
        while ends and ends[0][0] <= self._steps:
            ends_at, _, request = heappop(ends)
            if request.running and request.ends_at_step == ends_at:
                self._leave(request)
                request.gone = True
                del self._requests[request.key]
                boundary.ended.append(request)

    def _leave(self, request: Request) -> None:
        """Out of the batch: its cache is free, its tokens so far are known."""
        del self._running[request.key]
        request.running = False
        request.generated += self._steps - request.admitted_at_step
        self._context_tokens -= request.prompt_tokens + request.generated

    def _read(self, boundary: Boundary) -> None:
        for message in self._inbox:
            if isinstance(message, Request):
                self._requests[message.key] = message
                self._waiting.append(message)
                continue
            request = self._requests.pop(message, None)
            if request is None:
                continue
            if request.running:
                self._leave(request)
            request.gone = True
            boundary.removed.append(request)
        self._inbox.clear()

    def _make_room(self) -> None:
        while self._context_tokens + len(self._running) > self.kv_capacity_tokens:
            request = self._running[next(reversed(self._running))]
            self._leave(request)
            self._waiting.appendleft(request)
            self.preemptions += 1

    def _admit(self, boundary: Boundary) -> int:
        """Take from the head of the queue what fits; returns the tokens to prefill."""
        prefill_tokens = 0
        while self._waiting and len(self._running) < self.max_running:
            request = self._waiting[0]
            if request.gone:
                self._waiting.popleft()
                continue
            context = request.prompt_tokens + request.generated
            if self._context_tokens + context + len(self._running) + 1 > self.kv_capacity_tokens:
                break
            self._waiting.popleft()
            prefill_tokens += context
            self.recomputed_tokens += context if request.started else 0
            self._enter(request, context)
            if not request.started:
                request.started = True
                boundary.started.append(request)
        return prefill_tokens

    def _enter(self, request: Request, context_tokens: int) -> None:
        self._running[request.key] = request
        self._context_tokens += context_tokens
        self._admissions += 1
        request.running = True
        request.admitted_at_step = self._steps
        request.ends_at_step = self._steps + request.length - request.generated
        heappush(self._ends, (request.ends_at_step, self._admissions, request))

    def _plan(self, now_s: float, prefill_tokens: int) -> None:
        n = len(self._running)
        prefill_s = prefill_tokens * self.costs.prefill_token_s
        self.busy_s += prefill_s
        self._decode_from_s = now_s + prefill_s
        if not n:
            self.wake_s, self._steps_planned = math.inf, 0
            return
        ends = self._ends
        while not (ends[0][2].running and ends[0][2].ends_at_step == ends[0][0]):
            heappop(ends)
        until_full = (self.kv_capacity_tokens - self._context_tokens) // n
        self._steps_planned = min(ends[0][0] - self._steps, until_full)
        self.wake_s = self._decode_from_s + self.costs.decode_s(self._steps_planned, n, self._context_tokens)
