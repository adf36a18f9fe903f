"""All rollout engines of a simulation: requests placed by the live Router, wakes in the order of time, engines
released and brought back, replicas rebuilt with another tensor-parallel degree."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from heapq import heappop, heappush

from schedulers.router import Router
from schedulers.simulator.engine import Boundary, Key, Request, SimulatedEngine

BuildEngines = Callable[[int], list[SimulatedEngine]]
"""Engines for all devices at a tensor-parallel degree, in the order of their devices."""


class Totals:
    """Sums over engines, those of earlier degrees included."""

    def __init__(self) -> None:
        self.busy_device_s = 0.0
        self.generated_tokens = self.recomputed_tokens = self.preemptions = self.wakes = 0

    def add(self, engines: Iterable[SimulatedEngine]) -> None:
        for engine in engines:
            self.busy_device_s += engine.busy_s * engine.devices
            self.generated_tokens += engine.generated_tokens
            self.recomputed_tokens += engine.recomputed_tokens
            self.preemptions += engine.preemptions


class Fleet:
    """`next_s` is when the next engine wakes; `wake` lets it. `limit_tokens` is the longest response allowed: what the
    router counts a request for, since nobody knows how long it will be."""

    def __init__(self, build: BuildEngines, degree: int) -> None:
        self._build = build
        self._past = Totals()
        self._wakes: list[tuple[float, int]] = []
        self._moving: set[Key] = set()
        self.limit_tokens = 0
        self.n_wakes = self.n_running = self.busy_devices = 0
        self._set_up(degree)

    def _set_up(self, degree: int) -> None:
        self.degree = degree
        self.engines = self._build(degree)
        self.devices = sum(engine.devices for engine in self.engines)
        self._index = {engine.name: i for i, engine in enumerate(self.engines)}
        self._router: Router[Key] = Router()
        self._wakes.clear()
        self.bring_back()

    def reshape(self, degree: int) -> None:
        """Replicas of another degree. Raises ValueError while requests are held."""
        if self.next_s < math.inf:
            raise ValueError("the tensor-parallel degree changes between rollouts only")
        self._past.add(self.engines)
        self._set_up(degree)

    def totals(self) -> Totals:
        """Sums since the start."""
        totals = Totals()
        totals.add(self.engines)
        for name, value in vars(self._past).items():
            setattr(totals, name, getattr(totals, name) + value)
        return totals

    # --- requests ---------------------------------------------------------------------------------

    def submit(self, t_s: float, request: Request) -> None:
        """Place on the lightest engine."""
        name = self._router.place(request.key, self.limit_tokens - request.generated)
        if name is None:
            raise ValueError("no engine is open")
        engine = self.engines[self._index[name]]
        before_s = engine.wake_s
        engine.submit(t_s, request)
        self._note_wake(engine, before_s)

    def abort(self, t_s: float, key: Key) -> None:
        """Of a response that has ended nothing is heard."""
        self._moving.discard(key)  # on its way, it goes no further
        name = self._router.where(key)
        if name is not None:
            self._remove(t_s, self.engines[self._index[name]], key)

    def release(self, t_s: float, names: Iterable[str]) -> int:
        """Free these engines: what they hold moves to the others with its tokens and is computed anew there. Returns
        how many devices that frees."""
        devices = 0
        for name in names:
            engine = self.engines[self._index[name]]
            devices += engine.devices
            for key in self._router.engine_down(name):
                self._moving.add(key)
                self._remove(t_s, engine, key)
        return devices

    def bring_back(self) -> None:
        """Every engine is open for the next rollout."""
        for engine in self.engines:
            self._router.engine_up(engine.name, 0)

    def _remove(self, t_s: float, engine: SimulatedEngine, key: Key) -> None:
        before_s = engine.wake_s
        engine.remove(t_s, key)
        self._note_wake(engine, before_s)

    # --- time -------------------------------------------------------------------------------------

    @property
    def next_s(self) -> float:
        wakes = self._wakes
        while wakes and self.engines[wakes[0][1]].wake_s != wakes[0][0]:
            heappop(wakes)
        return wakes[0][0] if wakes else math.inf

    def wake(self) -> Boundary:
        """Let the engine of `next_s` go on; what moves is placed anew and is not among what it reports as removed."""
        engine = self.engines[heappop(self._wakes)[1]]
        n_before = engine.n_running
        self.n_wakes += 1
        boundary = engine.wake()
        self.n_running += engine.n_running - n_before
        if engine.wake_s == math.inf:
            self.busy_devices -= engine.devices
        else:
            heappush(self._wakes, (engine.wake_s, self._index[engine.name]))
        for request in boundary.ended:
            self._router.done(request.key)
        if boundary.removed:
            boundary.removed = [r for r in boundary.removed if not self._moved_on(boundary.t_s, r)]
        return boundary

    def _moved_on(self, t_s: float, request: Request) -> bool:
        key = request.key
        if key not in self._moving:
            self._router.done(key)
            return False
        self._moving.discard(key)
        again = Request(key, request.prompt_tokens, request.length, request.generated, request.started)
        self.submit(t_s, again)
        return True

    def _note_wake(self, engine: SimulatedEngine, before_s: float) -> None:
        if engine.wake_s != before_s:
            if before_s == math.inf:
                self.busy_devices += engine.devices
            heappush(self._wakes, (engine.wake_s, self._index[engine.name]))
