"""A runner's side of generation: requests out to the least-loaded engine, tokens back, nothing lost.

Invariant. A request is with one engine, or waits because every engine is fenced; the tokens it has so far
are kept here with the log-probability and weight version of each. When its engine dies, or a weight update
aborts it, it goes on elsewhere from prompt + tokens so far, so its prefix keeps what it was sampled under.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine, Sequence
from dataclasses import dataclass, field
from typing import Any

from roll_ray.actors import Actor, ActorUnavailable
from roll_ray.errors import WeightUpdateError, WorkerDiedError
from roll_ray.generation import GenerationDelta, GenerationRequest
from schedulers.router import Router
from workers.generation_types import Asked, Engine, Generation, GenerationFailedError

log = logging.getLogger(__name__)

COLLECT_TIMEOUT_S = 5.0
RETRY_INTERVAL_S = 0.5
GREETING_S = 10.0
SEEDS = 1 << 63


@dataclass(slots=True, eq=False)
class _Open:
    asked: Asked
    future: asyncio.Future[Generation]
    submissions: int = 0

    @property
    def so_far(self) -> Generation:
        return self.asked.so_far

    @property
    def id(self) -> str:
        """Differs by submission, so that an old engine's late tokens are not mistaken for the new one's."""
        return f"{self.asked.id}#{self.submissions}"

    @property
    def remaining(self) -> int:
        return self.asked.max_new_tokens - len(self.so_far.tokens)


@dataclass(slots=True, eq=False)
class _Link:
    """An engine as the client sees it."""

    actor: Actor[Engine]
    outbox: list[_Open] = field(default_factory=list)
    wake_send: asyncio.Event = field(default_factory=asyncio.Event)
    wake_collect: asyncio.Event = field(default_factory=asyncio.Event)
    down: str = ""
    dead: bool = False


class EngineClient:
    """Generates through several engines. One per episode runner; its tasks live until `close`."""

    def __init__(self, name: str, engines: Sequence[Actor[Engine]]) -> None:
        self.name = name
        self._links = {actor.name: _Link(actor) for actor in engines}
        self._router: Router[str] = Router()
        self._open: dict[str, _Open] = {}
        self._waiting: list[_Open] = []
        self._tasks: set[asyncio.Task[None]] = set()
        self._announced = False
        self.counters = {"resubmitted": 0, "stale_deltas": 0, "engines_lost": 0, "tokens": 0}

    async def start(self) -> None:
        """Begin to send and collect; returns when the engines said which version they hold, or after a while."""
        if self._tasks:
            return
        for link in self._links.values():
            link.down = "not heard of yet"
            self._spawn(self._send(link))
            self._spawn(self._collect(link))
        await asyncio.wait(
            {self._spawn(self._greet(link)) for link in self._links.values()}, timeout=GREETING_S
        )

    async def close(self) -> None:
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def generate(self, asked: Asked) -> Generation:
        """The whole response; its finish is "stop" or "length". Cancelling the call aborts the request.

        Raises `GenerationFailedError` for what the engine refuses, `WorkerDiedError` when all engines are dead.
        """
        request = _Open(asked, asyncio.get_running_loop().create_future())
        self._place(request)
        try:
            return await request.future
        finally:
            self._forget(request)

    def weights_version(self, version: int, ready: Sequence[str]) -> None:
        """The engines `ready` hold weights `version`; the others are fenced until they do."""
        self._announced = True
        self._router.require(version)
        for name in ready:
            if name in self._links and not self._links[name].down:
                self._router.engine_up(name, version)
        self._place_waiting()

    def waiting_for(self) -> dict[str, int]:
        """Open requests of each engine, and under the reason for it, those that no engine takes."""
        held = {name: n for name, (n, _) in self._router.load().items() if n}
        if self._waiting:
            fences = ", ".join(f"{name}: {self._router.fence(name)}" for name in sorted(self._links))
            held[f"no engine ({fences})"] = len(self._waiting)
        return held

    def _spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: asyncio.Task[None]) -> None:
        """No task of the client ends in silence: what broke it is the failure of every open request."""
        self._tasks.discard(task)
        error = None if task.cancelled() else task.exception()
        if error is not None:
            log.error("%s: the engine client broke", self.name, exc_info=error)
            for request in list(self._open.values()):
                self._settle(request, GenerationFailedError(f"{self.name}: {type(error).__name__}: {error}"))

    # --- placing ---------------------------------------------------------------------------------

    def _place(self, request: _Open) -> None:
        if all(link.dead for link in self._links.values()):
            self._settle(request, error=self._all_dead())
            return
        request.submissions += 1
        self._open[request.id] = request
        engine = self._router.place(request.id, request.remaining, request.asked.near)
        if engine is None:
            self._waiting.append(request)
            return
        request.so_far.engine = engine
        link = self._links[engine]
        link.outbox.append(request)
        link.wake_send.set()

    def _place_waiting(self) -> None:
        waiting, self._waiting = self._waiting, []
        for request in waiting:
            self._open.pop(request.id, None)
            if not request.future.done():
                self._place(request)

    def _again(self, request: _Open) -> None:
        """Go on from the tokens so far, on whichever engine is free for it."""
        self._open.pop(request.id, None)
        self._router.done(request.id)
        if request.future.done():
            return
        if request.remaining <= 0:
            request.so_far.finish = "length"
            self._settle(request)
            return
        self.counters["resubmitted"] += 1
        self._place(request)

    def _settle(self, request: _Open, error: Exception | None = None) -> None:
        if request.future.done():
            return
        if error is None:
            request.future.set_result(request.so_far)
        else:
            request.future.set_exception(error)

    def _forget(self, request: _Open) -> None:
        """The caller has its answer or has gone; an engine that still works on it is told to stop."""
        known = self._open.pop(request.id, None)
        engine = self._router.done(request.id)
        if request in self._waiting:
            self._waiting.remove(request)
        if known is None or engine is None:
            return
        link = self._links[engine]
        if request in link.outbox:
            link.outbox.remove(request)
            return
        self._spawn(self._abort(link, request.id))

    async def _abort(self, link: _Link, request_id: str) -> None:
        try:
            await link.actor.call(Engine.abort, [request_id])
        except Exception as error:  # the boundary to the engine
            self._lost(link, error)

    # --- one engine ------------------------------------------------------------------------------

    async def _send(self, link: _Link) -> None:
        """Whatever gathered since the last call goes out in one call, in id order."""
        while not link.dead:
            await link.wake_send.wait()
            await asyncio.sleep(0)  # let everything that this tick begins come along
            link.wake_send.clear()
            requests, link.outbox = sorted(link.outbox, key=lambda r: r.id), []
            if not requests:
                continue
            link.wake_collect.set()
            try:
                await link.actor.call(Engine.submit, [self._request(r) for r in requests])
            except (ActorUnavailable, WorkerDiedError) as error:
                self._lost(link, error)
            except WeightUpdateError as error:
                self._refused(link, requests, error)
            except Exception as error:
                # The boundary to the engine: its refusal is the failure of these requests only.
                for request in requests:
                    self._settle(request, error=GenerationFailedError(f"{link.actor.name}: {error}"))

    def _refused(self, link: _Link, requests: Sequence[_Open], error: WeightUpdateError) -> None:
        """The engine is fenced by a failed weight update: others take its requests until it is announced."""
        log.warning("%s: %s takes no requests: %s", self.name, link.actor.name, error.what)
        self._router.refuse(link.actor.name, error.what)
        for request in requests:
            self._again(request)

    def _request(self, request: _Open) -> GenerationRequest:
        asked, so_far = request.asked, request.so_far
        return GenerationRequest(
            id=request.id,
            client=self.name,
            prompt_token_ids=(*asked.prompt_tokens, *so_far.tokens),
            sampling=asked.sampling,
            max_new_tokens=request.remaining,
            stop_token_ids=asked.stop_token_ids,
            seed=None if asked.seed is None else (asked.seed + len(so_far.tokens)) % SEEDS,
        )

    async def _collect(self, link: _Link) -> None:
        while not link.dead:
            if link.down or not self._router.held(link.actor.name):
                link.wake_collect.clear()
                await link.wake_collect.wait()
                continue
            try:
                deltas = await link.actor.call(Engine.collect, self.name, COLLECT_TIMEOUT_S)
            except Exception as error:  # the boundary to the engine: whatever it is, its tokens do not come
                self._lost(link, error)
                continue
            for delta in deltas:
                self._take(delta)

    def _take(self, delta: GenerationDelta) -> None:
        request = self._open.get(delta.id)
        if request is None or request.future.done():
            self.counters["stale_deltas"] += 1
            return
        try:
            self._extend(request, delta)
        except GenerationFailedError as error:
            self._settle(request, error)
            return
        if delta.finish is None:
            return
        if delta.finish == "abort":
            self._again(request)
            return
        self._open.pop(delta.id)
        self._router.done(delta.id)
        request.so_far.finish = delta.finish
        failed = delta.finish == "error"
        self._settle(request, GenerationFailedError(delta.error) if failed else None)

    def _extend(self, request: _Open, delta: GenerationDelta) -> None:
        first = not request.so_far.tokens and delta.tokens
        request.so_far.extend(delta)
        self.counters["tokens"] += len(delta.tokens)
        if first and request.asked.started is not None:
            request.asked.started(delta.versions[0])

    # --- engines that go and come ----------------------------------------------------------------

    def _lost(self, link: _Link, error: Exception) -> None:
        """The engine is gone: what it held goes on elsewhere, and it is asked until it answers again."""
        if link.down:
            return
        name = link.actor.name
        link.down = str(error) or type(error).__name__
        self.counters["engines_lost"] += 1
        log.warning("%s: %s is lost and its requests go on elsewhere: %s", self.name, name, link.down)
        link.outbox.clear()
        held = self._router.engine_down(name)
        if isinstance(error, WorkerDiedError):
            link.dead = True
        else:
            self._spawn(self._greet(link))
        for request_id in held:
            request = self._open.get(request_id)
            if request is not None:
                self._again(request)
        if all(link.dead for link in self._links.values()):
            for request in list(self._open.values()):
                self._settle(request, error=self._all_dead())

    async def _greet(self, link: _Link) -> None:
        """Ask an engine for its version until it answers, then let it take part."""
        while True:
            try:
                stats = await link.actor.call(Engine.stats)
            except WorkerDiedError as error:
                link.dead, link.down = True, str(error)
                self._place_waiting()
                return
            except Exception as error:  # the boundary to the engine: asked again until it answers
                link.down = f"{type(error).__name__}: {error}"
                await asyncio.sleep(RETRY_INTERVAL_S)
                continue
            link.down = ""
            self._router.engine_up(link.actor.name, stats.version)
            if not self._announced:
                self._router.require(max(stats.version, self._router.required_version or 0))
            link.wake_collect.set()
            self._place_waiting()
            return

    def _all_dead(self) -> WorkerDiedError:
        reasons = "; ".join(f"{name}: {link.down}" for name, link in sorted(self._links.items()))
        return WorkerDiedError("every rollout engine is dead", why=reasons)
