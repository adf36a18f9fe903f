"""A runner's side of rewards: ended responses out in batches by domain, a reward back for each, always.

A reward worker that dies or hangs costs an attempt; after `MAX_ATTEMPTS` the reward is invalid with the reason. One
that has much to do does not hang: after `timeout_s` it is asked whether it is there, and its verdicts are waited
for as long as it answers that. While a worker restarts, the others take its share, or the responses wait.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine, Sequence
from dataclasses import dataclass, field
from typing import Any

from envs.task import ScoredView
from roll_ray.actors import Actor
from roll_ray.errors import WorkerDiedError
from roll_ray.sample import Reward
from workers.reward_worker import RewardWorker

log = logging.getLogger(__name__)

MAX_ATTEMPTS = 3
MAX_BATCH = 32
RETRY_INTERVAL_S = 0.5


@dataclass(slots=True, eq=False)
class _Asked:
    view: ScoredView
    future: asyncio.Future[Reward]
    attempts: int = 0
    reason: str = ""


@dataclass(slots=True, eq=False)
class _Link:
    actor: Actor[RewardWorker]
    domains: frozenset[str] = frozenset()
    outstanding: int = 0
    up: bool = False
    dead: bool = False


@dataclass(slots=True)
class RewardClient:
    """Scores through several reward workers, the least busy one that knows the domain."""

    workers: Sequence[Actor[RewardWorker]]
    timeout_s: float
    """Without any answer; a worker has its own time-out for each response."""
    _links: list[_Link] = field(default_factory=list)
    _outbox: list[_Asked] = field(default_factory=list)
    _flush: asyncio.Task[None] | None = None
    _waiting: list[_Asked] = field(default_factory=list)
    _tasks: set[asyncio.Task[None]] = field(default_factory=set)

    async def start(self) -> None:
        """Learn which worker scores which domain. Waits for workers that are starting. Again: nothing."""
        if not self._links:
            self._links = [_Link(actor) for actor in self.workers]
            await asyncio.gather(*(self._greet(link) for link in self._links))

    async def close(self) -> None:
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def score(self, view: ScoredView) -> Reward:
        asked = _Asked(view, asyncio.get_running_loop().create_future())
        self._put(asked)
        return await asked.future

    def waiting_for(self) -> dict[str, int]:
        """Responses being scored, by worker, and those that wait for a worker to restart."""
        scoring = {link.actor.name: link.outstanding for link in self._links if link.outstanding}
        down = ", ".join(link.actor.name for link in self._links if not link.up)
        return (
            {**scoring, f"no reward worker ({down} down)": len(self._waiting)} if self._waiting else scoring
        )

    def _put(self, asked: _Asked) -> None:
        self._outbox.append(asked)
        if self._flush is None or self._flush.done():
            self._flush = asyncio.create_task(self._send_gathered())

    async def _send_gathered(self) -> None:
        """What this tick ended goes out together."""
        await asyncio.sleep(0)
        outbox, self._outbox = self._outbox, []
        by_domain: dict[str, list[_Asked]] = {}
        for asked in outbox:
            if not asked.future.done():
                by_domain.setdefault(asked.view.domain, []).append(asked)
        for domain, gathered in by_domain.items():
            for begin in range(0, len(gathered), MAX_BATCH):
                self._send(domain, gathered[begin : begin + MAX_BATCH])

    def _send(self, domain: str, batch: list[_Asked]) -> None:
        knowing = [link for link in self._links if domain in link.domains and not link.dead]
        if not knowing:
            _settle(batch, [Reward.invalid(self._nobody_for(domain))] * len(batch))
            return
        link = min((link for link in knowing if link.up), key=lambda link: link.outstanding, default=None)
        if link is None:
            self._waiting += batch
        else:
            self._spawn(self._score(link, batch))

    def _nobody_for(self, domain: str) -> str:
        known = sorted({d for link in self._links for d in link.domains})
        if domain in known:
            return f"every reward worker for domain {domain!r} is dead"
        return f"no reward function for domain {domain!r}; known: {', '.join(known)}"

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _score(self, link: _Link, batch: list[_Asked]) -> None:
        link.outstanding += len(batch)
        try:
            _settle(batch, await self._verdicts(link, [asked.view for asked in batch]))
            return
        except TimeoutError:
            reason = self._no_answer(link)
            self._down(link)
        except Exception as error:  # the boundary to the worker: its fault is the reason of the retry
            reason = f"{link.actor.name}: {error}"
            link.dead = isinstance(error, WorkerDiedError)
            self._down(link)
        finally:
            link.outstanding -= len(batch)
        log.warning("%d responses are scored again: %s", len(batch), reason)
        self._again(batch, reason)

    async def _verdicts(self, link: _Link, views: list[ScoredView]) -> list[Reward]:
        """Raises TimeoutError when the worker's process does not even say that it is there."""
        call = asyncio.ensure_future(link.actor.call(RewardWorker.score_many, views))
        try:
            while not (await asyncio.wait({call}, timeout=self.timeout_s))[0]:
                async with asyncio.timeout(self.timeout_s):
                    await link.actor.call(RewardWorker.domains)
            return call.result()
        finally:
            call.cancel()

    def _down(self, link: _Link) -> None:
        if link.up:
            link.up = False
            self._spawn(self._greet(link))

    def _no_answer(self, link: _Link) -> str:
        return f"{link.actor.name} did not answer within {self.timeout_s:g} s"

    def _again(self, batch: list[_Asked], reason: str) -> None:
        for asked in batch:
            asked.attempts, asked.reason = asked.attempts + 1, reason
            if asked.attempts >= MAX_ATTEMPTS:
                _settle([asked], [Reward.invalid(f"not scored in {MAX_ATTEMPTS} attempts: {reason}")])
            else:
                self._put(asked)

    async def _greet(self, link: _Link) -> None:
        """Ask a worker for its domains until it answers, then let it take part."""
        while not link.dead:
            try:
                async with asyncio.timeout(self.timeout_s):
                    link.domains = frozenset(await link.actor.call(RewardWorker.domains))
                link.up = True
            except TimeoutError:
                waiting, self._waiting = self._waiting, []
                self._again(waiting, self._no_answer(link))
                continue
            except WorkerDiedError as error:
                log.warning("%s", error)
                link.dead = True
            except Exception:  # the boundary to the worker: asked again until it answers
                await asyncio.sleep(RETRY_INTERVAL_S)
                continue
            break
        waiting, self._waiting = self._waiting, []
        for asked in waiting:
            self._put(asked)


def _settle(batch: Sequence[_Asked], rewards: Sequence[Reward]) -> None:
    for asked, reward in zip(batch, rewards, strict=True):
        if not asked.future.done():
            asked.future.set_result(reward)
