"""What a runner tells the rollout manager: kept until acknowledged, so that neither side's restart loses it."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from roll_ray.receipts import Receipt
from schedulers.protocol import Event, Visit

LINGER_S = 0.005
"""After the first event of a report, so that what happens at about the same time travels together."""


@dataclass(frozen=True, slots=True)
class Reports:
    """Events of a runner up to number `sequence`, and the receipts of the samples that they say are scored.

    `incarnation` differs when the runner's process is another than before.
    """

    runner: str
    incarnation: str
    sequence: int
    events: tuple[Event, ...] = ()
    receipts: tuple[Receipt, ...] = ()


@dataclass(frozen=True, slots=True)
class Fenced:
    """A runner's answer to `fence`: it holds nothing now. `prompts` are the handles that it had been given."""

    incarnation: str
    prompts: tuple[tuple[tuple[Visit, ...], Any], ...]


@dataclass(slots=True)
class ReportBox:
    """Numbered events that wait to be fetched. What was fetched stays until the next call acknowledges it."""

    runner: str
    incarnation: str
    _first: int = 1  # the number of _events[0]
    _events: list[Event] = field(default_factory=list)
    _receipts: list[tuple[int, Receipt]] = field(default_factory=list)
    _news: asyncio.Event = field(default_factory=asyncio.Event)

    def put(self, events: Sequence[Event], receipts: Sequence[Receipt] = ()) -> None:
        self._events += events
        last = self._first + len(self._events) - 1
        self._receipts += [(last, receipt) for receipt in receipts]
        self._news.set()

    def clear(self) -> None:
        self._first += len(self._events)
        self._events, self._receipts = [], []
        self._news.clear()

    async def fetch(self, acknowledged: int, timeout_s: float) -> Reports:
        """Everything after event `acknowledged`, as soon as there is any, else nothing after `timeout_s`."""
        self._forget(acknowledged)
        if not self._events:
            self._news.clear()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(timeout_s):
                    await self._news.wait()
            await asyncio.sleep(LINGER_S)
        sequence = self._first + len(self._events) - 1
        receipts = tuple(receipt for _, receipt in self._receipts)
        return Reports(self.runner, self.incarnation, sequence, tuple(self._events), receipts)

    def _forget(self, acknowledged: int) -> None:
        n = max(0, min(acknowledged - self._first + 1, len(self._events)))
        if n:
            self._events = self._events[n:]
            self._first += n
            self._receipts = [(number, r) for number, r in self._receipts if number >= self._first]
