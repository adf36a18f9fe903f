"""The rollout manager's side of its episode runners: placing launches, sending, fetching reports.

Invariant. Every attempt that was launched and has not ended is with one runner that is up, or held back here
(no runner is up, or the handle of its prompts is missing), or has just been reported as lost.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from roll_ray.actors import Actor
from roll_ray.errors import WorkerDiedError
from roll_ray.receipts import Receipt
from schedulers.protocol import Aborted, Event, Failed, Launch, SampleId, Scored, Visit
from schedulers.router import Router
from workers.episode_runner import EpisodeRunner

log = logging.getLogger(__name__)

REPORT_TIMEOUT_S = 5.0
STUCK_S = 30.0
"""A runner that does not answer so long after it should have is taken for lost."""
RETRY_INTERVAL_S = 0.5

Attempt = tuple[SampleId, int]
Taken = Callable[[str, int, Sequence[Event], Sequence[Receipt]], None]
Lost = Callable[[str, Sequence[Attempt], str], None]


@dataclass(slots=True, eq=False)
class _Link:
    actor: Actor[EpisodeRunner]
    incarnation: str = ""
    sequence: int = 0
    up: bool = False
    dead: bool = False
    why_down: str = "not heard of yet"
    launches: list[Launch] = field(default_factory=list)
    aborts: list[SampleId] = field(default_factory=list)
    wake: asyncio.Event = field(default_factory=asyncio.Event)


class RunnerLinks:
    """`prompts` maps each open visit to the handle through which runners get its prompt."""

    def __init__(self, runners: Sequence[Actor[EpisodeRunner]], taken: Taken, lost: Lost) -> None:
        self.prompts: dict[Visit, Any] = {}
        self.held_back: list[Launch] = []
        self._taken, self._lost = taken, lost
        self._links = {actor.name: _Link(actor) for actor in runners}
        self._router: Router[Attempt] = Router()
        self._tasks: set[asyncio.Task[None]] = set()
        self.fault: BaseException | None = None
        """What broke a task of ours (a full disk under the log, a bug): the manager raises it to the driver."""

    # --- placing -----------------------------------------------------------------------------------

    def launch(self, order: Launch) -> None:
        """Siblings stay together: their prompt is tokenised once, and its prefix is cached once."""
        if order.visit not in self.prompts:
            self.held_back.append(order)
            return
        attempts = [(SampleId(order.visit, i), order.attempt) for i in order.sample_indices]
        name = self._router.place_together(attempts, 1)
        if name is None:
            self.held_back.append(order)
            return
        link = self._links[name]
        link.launches.append(order)
        link.wake.set()

    def abort(self, samples: Iterable[SampleId]) -> None:
        """Tell the runners; they know which of the samples they hold. What was not sent yet is not sent."""
        gone = set(samples)
        self.held_back = [
            order for order in (_without(o, gone) for o in self.held_back) if order.sample_indices
        ]
        for link in self._links.values():
            self._withdraw(link, gone)
            if link.up:
                link.aborts += gone
                link.wake.set()

    def _withdraw(self, link: _Link, gone: set[SampleId]) -> None:
        orders, link.launches = link.launches, []
        for order in orders:
            kept = _without(order, gone)
            for i in set(order.sample_indices) - set(kept.sample_indices):
                self._router.done((SampleId(order.visit, i), order.attempt))
            if kept.sample_indices:
                link.launches.append(kept)

    def place_held_back(self, running: Mapping[SampleId, int]) -> None:
        """Try again what could not be placed, as far as it is still wanted."""
        held_back, self.held_back = self.held_back, []
        for order in held_back:
            if all(running.get(SampleId(order.visit, i)) == order.attempt for i in order.sample_indices):
                self.launch(order)

    def ended(self, events: Iterable[Event]) -> None:
        for event in events:
            if isinstance(event, Scored | Failed | Aborted):
                self._router.done((event.sample, event.attempt))

    def drop_placed(self) -> None:
        """Everything is to be launched anew."""
        self.held_back.clear()
        for name, link in self._links.items():
            self._router.engine_down(name)
            link.launches.clear()
            if link.up:
                self._router.engine_up(name, 0)

    async def hand_out(self, visits: Sequence[Visit], handle: Any) -> None:
        """Let every runner keep the handle before anything is launched: a manager that restarts asks for it."""
        if not visits:
            return
        self.prompts.update(dict.fromkeys(visits, handle))
        up = [link for link in self._links.values() if link.up]
        calls = (link.actor.call(EpisodeRunner.keep_prompts, visits, handle) for link in up)
        await asyncio.gather(
            *(self._guarded(link, call, STUCK_S) for link, call in zip(up, calls, strict=True))
        )

    async def forget(self, visits: Sequence[Visit]) -> None:
        """These visits are over."""
        for visit in visits:
            self.prompts.pop(visit, None)
        if not visits:
            return
        for link in self._links.values():
            if link.up:
                await self._guarded(link, link.actor.call(EpisodeRunner.forget, visits), STUCK_S)

    # --- starting and stopping ---------------------------------------------------------------------

    async def fence_all(self) -> None:
        """Make every runner that answers drop what it does; learn from them the handles of prompts."""
        await asyncio.gather(*(self._bring_up(link) for link in self._links.values()))

    def start(self) -> None:
        for link in self._links.values():
            self._spawn(self._poll(link))
            self._spawn(self._send(link))

    async def close(self) -> None:
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def describe(self) -> tuple[list[Actor[EpisodeRunner]], dict[str, str]]:
        """Runners that are up, and why the others are not."""
        up = [link.actor for link in self._links.values() if link.up]
        return up, {name: link.why_down for name, link in self._links.items() if not link.up}

    def all_dead(self) -> str:
        """Why no runner will ever answer again; empty while one may."""
        if not all(link.dead for link in self._links.values()):
            return ""
        return "; ".join(f"{name}: {link.why_down}" for name, link in self._links.items())

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        error = None if task.cancelled() else task.exception()
        if error is not None:
            log.error("a task of the rollout manager broke", exc_info=error)
            self.fault = self.fault or error

    # --- one runner --------------------------------------------------------------------------------

    async def _poll(self, link: _Link) -> None:
        """Fetch reports for as long as the runner lives; a call that fails means that it is lost for now."""
        while not link.dead:
            if not link.up and not await self._bring_up(link):
                await asyncio.sleep(RETRY_INTERVAL_S)
                continue
            call = link.actor.call(EpisodeRunner.reports, link.sequence, REPORT_TIMEOUT_S)
            reports = await self._guarded(link, call, REPORT_TIMEOUT_S + STUCK_S)
            if reports is None:
                continue
            if reports.incarnation != link.incarnation:
                self._down(link, "its process was restarted")
            elif reports.sequence > link.sequence:
                link.sequence = reports.sequence
                self._taken(link.actor.name, reports.sequence, reports.events, reports.receipts)

    async def _send(self, link: _Link) -> None:
        """What one tick decided goes out in one call for each handle."""
        while not link.dead:
            await link.wake.wait()
            await asyncio.sleep(0)
            link.wake.clear()
            aborts, link.aborts = link.aborts, []
            launches, link.launches = link.launches, []
            if aborts:
                await self._guarded(link, link.actor.call(EpisodeRunner.abort, aborts), STUCK_S)
            for handle, orders in self._by_handle(launches):
                if link.up:
                    await self._guarded(link, link.actor.call(EpisodeRunner.launch, orders, handle))

    def _by_handle(self, launches: Sequence[Launch]) -> list[tuple[Any, list[Launch]]]:
        groups: dict[int, tuple[Any, list[Launch]]] = {}
        for order in launches:
            handle = self.prompts.get(order.visit)
            if handle is not None:  # else the visit is over
                groups.setdefault(id(handle), (handle, []))[1].append(order)
        return list(groups.values())

    async def _guarded(self, link: _Link, call: Any, timeout_s: float | None = None) -> Any:
        """The answer, or None if the runner is lost."""
        try:
            async with asyncio.timeout(timeout_s):
                return await call
        except WorkerDiedError as error:
            link.dead = True
            self._down(link, str(error))
        except TimeoutError:
            self._down(link, f"it did not answer for {timeout_s} s")
        except (
            Exception
        ) as error:  # the boundary to the runner: whatever it is, the runner is fenced and asked anew
            self._down(link, str(error) or type(error).__name__)
        return None

    def _down(self, link: _Link, reason: str) -> None:
        if not link.up:
            return
        log.warning("%s is lost: %s", link.actor.name, reason)
        link.up, link.why_down = False, reason
        link.launches.clear()
        held = self._router.engine_down(link.actor.name)
        self._lost(link.actor.name, sorted(held), reason)

    async def _bring_up(self, link: _Link) -> bool:
        try:
            async with asyncio.timeout(STUCK_S):
                fenced = await link.actor.call(EpisodeRunner.fence)
        except WorkerDiedError as error:
            link.dead, link.why_down = True, str(error)
            return False
        except Exception as error:  # the boundary to the runner: it is asked again
            link.why_down = str(error) or type(error).__name__
            return False
        for visits, handle in fenced.prompts:
            for visit in visits:
                self.prompts.setdefault(visit, handle)
        link.incarnation, link.sequence, link.up, link.why_down = fenced.incarnation, 0, True, ""
        link.aborts.clear()
        self._router.engine_up(link.actor.name, 0)
        waiting, self.held_back = self.held_back, []
        for order in waiting:
            self.launch(order)
        return True


def _without(order: Launch, gone: set[SampleId]) -> Launch:
    indices = tuple(i for i in order.sample_indices if SampleId(order.visit, i) not in gone)
    return order if len(indices) == len(order.sample_indices) else replace(order, sample_indices=indices)
