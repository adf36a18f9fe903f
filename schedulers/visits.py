"""The visits that a scheduler has open: their responses, and how far each has come.

Invariant. Attempts of a response only rise, and only the highest is listened to, until it is scored or out. A visit is
complete when it was said to be and has lost no response since. Every visit stands in one *place*, the domain whose
share of the batch it may fill; visits and complete visits are counted by place.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from schedulers.protocol import SampleId, Visit

ResponseState = Literal["running", "generated", "scored", "out"]
"""`out`: not listened to. It was stopped because its siblings suffice, or it failed and they do."""


@dataclass(slots=True)
class Response:
    """One of the responses of an open visit. `n_tokens` and `reward` are of the present attempt."""

    attempt: int = 0
    failures: int = 0
    state: ResponseState = "running"
    n_tokens: int = 0
    reward: float = 0.0


@dataclass(slots=True)
class OpenVisit:
    """The responses of one visit by sample index."""

    domain: str
    place: str
    responses: list[Response]

    def count(self, *states: ResponseState) -> int:
        return sum(r.state in states for r in self.responses)

    def indices(self, *states: ResponseState) -> tuple[int, ...]:
        return tuple(i for i, r in enumerate(self.responses) if r.state in states)

    def scored_tokens(self) -> int:
        return sum(r.n_tokens for r in self.responses if r.state == "scored")

    def unscored_by_attempt(self) -> list[tuple[int, ...]]:
        """The indices of responses that are under way, those of one attempt together."""
        by_attempt: dict[int, list[int]] = {}
        for i in self.indices("running", "generated"):
            by_attempt.setdefault(self.responses[i].attempt, []).append(i)
        return [tuple(indices) for _, indices in sorted(by_attempt.items())]

    def rewards(self) -> list[float]:
        """Of the scored responses, by index."""
        return [r.reward for r in self.responses if r.state == "scored"]


@dataclass(slots=True)
class OpenVisits:
    """In the order in which they were opened."""

    by_id: dict[Visit, OpenVisit] = field(default_factory=dict)
    complete: set[Visit] = field(default_factory=set)
    n_open: Counter[str] = field(default_factory=Counter)
    n_complete: Counter[str] = field(default_factory=Counter)

    def __len__(self) -> int:
        return len(self.by_id)

    def __contains__(self, visit: Visit) -> bool:
        return visit in self.by_id

    def open(self, visit: Visit, opened: OpenVisit) -> None:
        self.by_id[visit] = opened
        self.n_open[opened.place] += 1

    def close(self, visit: Visit) -> OpenVisit:
        self.reopen(visit)
        closed = self.by_id.pop(visit)
        self.n_open[closed.place] -= 1
        return closed

    def completed(self, visit: Visit) -> None:
        self.complete.add(visit)
        self.n_complete[self.by_id[visit].place] += 1

    def reopen(self, visit: Visit) -> None:
        """The visit is not complete (any more)."""
        if visit in self.complete:
            self.complete.discard(visit)
            self.n_complete[self.by_id[visit].place] -= 1

    def listening(self, sample: SampleId, attempt: int) -> Response | None:
        """The response, if its visit is open, this is its attempt and it is not out."""
        opened = self.by_id.get(sample.visit)
        if opened is None or not 0 <= sample.index < len(opened.responses):
            return None
        response = opened.responses[sample.index]
        return response if response.attempt == attempt and response.state != "out" else None

    def samples(self, *states: ResponseState) -> tuple[SampleId, ...]:
        """Those of all open visits, in order."""
        return tuple(SampleId(v, i) for v, opened in self.by_id.items() for i in opened.indices(*states))

    def state(self) -> dict[str, Any]:
        return {
            "complete": [list(visit) for visit in sorted(self.complete)],
            "visits": [
                [
                    *visit,
                    opened.domain,
                    opened.place,
                    [[r.attempt, r.failures, r.state, r.n_tokens, r.reward] for r in opened.responses],
                ]
                for visit, opened in self.by_id.items()
            ],
        }

    @classmethod
    def of(cls, state: Mapping[str, Any]) -> OpenVisits:
        """The inverse of `state`."""
        made = cls()
        for prompt_id, number, domain, place, responses in state["visits"]:
            made.open(Visit(prompt_id, number), OpenVisit(domain, place, [Response(*r) for r in responses]))
        for visit in state["complete"]:
            made.completed(Visit(*visit))
        return made
