"""When half of the rollout engines are freed to train while the rest goes on (RollPacker, 2509.21009, Algorithm 1).

Attempts are made at 20, 25, ... 50 % of the step's responses complete, once each, until one succeeds: half the engines
are released if the requests that remain are projected to fit the KV cache of those that stay. The half is made of whole
groups: engines that share a device with one training replica belong together, and a tensor-parallel group is one
engine, so neither is ever split. It is the half with the highest devices, and must hold a whole training replica; no
such half, no release.

Projection. A remaining request has p prompt tokens and has written s; it gets longer than x with probability S(x) (the
run's length history), so that t tokens from now it is still there with probability S(s + t) / S(s), and then holds
p + s + t tokens. All write at one pace, and the expected KV use t tokens from now is

    U(t) = sum over requests of (p + s + t) S(s + t) / S(s),    S(x) = 0 from the token limit on,

requests leaving as they end. Where the history says nothing (S(s) = 0: nothing was ever that long) a request is taken
to run to the limit. The peak is the largest of 128 upper bounds, one for each span of t: the tokens of its end with the
survivors of its beginning.

Invariant. At most one release in a step, at a milestone that was not tried before, of half the engines, no group split.
Equal histories, requests and milestones give equal decisions.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from schedulers.length_history import LengthHistory
from schedulers.protocol import ReleaseEngines

MILESTONES = (0.20, 0.25, 0.30, 0.35, 0.40, 0.45, 0.50)
_SPANS = 128


@dataclass(frozen=True, slots=True)
class EngineSeat:
    """A rollout engine: the devices of its tensor-parallel group and how many tokens its KV cache holds."""

    name: str
    devices: tuple[int, ...]
    kv_tokens: int


@dataclass(frozen=True, slots=True)
class Remaining:
    """A request that is generating or waits: tokens of its prompt, and those it has written."""

    prompt_tokens: int
    written: int


class StreamTrigger:
    """One for a run. `training_groups` are the devices of each training replica, `max_new_tokens` the token limit of a
    response."""

    def __init__(
        self,
        engines: Sequence[EngineSeat],
        training_groups: Sequence[Sequence[int]],
        max_new_tokens: int,
    ) -> None:
        self.max_new_tokens = max_new_tokens
        self.history = LengthHistory()
        self._half = half_of(engines, training_groups)
        self._kv_tokens_left = sum(engine.kv_tokens for engine in engines if engine.name not in self._half)
        self._total = self._complete = self._tried = 0
        self._released = False

    def begin(self, n_responses: int) -> None:
        """A step begins whose batch is complete with so many responses."""
        self._total, self._complete, self._tried, self._released = n_responses, 0, 0, False

    def generated(self, n_tokens: int) -> None:
        """A response ended, whether or not it will be in the batch."""
        self.history.add(n_tokens)

    def aborted(self, n_tokens: int) -> None:
        """A response was stopped at this length."""
        self.history.add(n_tokens, ended=False)

    def completed(self, n_responses: int) -> None:
        """So many responses of the step's batch are complete by now."""
        self._complete = n_responses

    def due(self) -> bool:
        """Whether a milestone was reached that was not tried: then ask `decide`."""
        return bool(self._half) and not self._released and self._reached() > self._tried and not self._past()

    def decide(self, remaining: Sequence[Remaining]) -> ReleaseEngines | None:
        """An attempt at the milestone reached. `remaining` are all requests that are not over."""
        if not self.due():
            return None
        self._tried = self._reached()
        if self.projected_peak_tokens(remaining) > self._kv_tokens_left:
            return None
        self._released = True
        return ReleaseEngines(self._half)

    def projected_peak_tokens(self, remaining: Sequence[Remaining]) -> float:
        """The most KV tokens that these requests are expected to hold at once, from now to their end."""
        if not remaining:
            return 0.0
        prompt_N = np.asarray([r.prompt_tokens for r in remaining], np.float64)
        written_N = np.asarray([r.written for r in remaining], np.float64)
        begins_K = np.linspace(0, max(self.max_new_tokens - written_N.min(), 0), _SPANS + 1)
        now_N = self.history.survival(written_N)
        length_N_K = written_N[:, None] + begins_K[None, :-1]
        later_N_K = np.where(
            now_N[:, None] > 0, self.history.survival(length_N_K) / np.maximum(now_N[:, None], 1e-12), 1.0
        )
        later_N_K[length_N_K >= self.max_new_tokens] = 0.0
        held_N_K = prompt_N[:, None] + np.minimum(
            written_N[:, None] + begins_K[None, 1:], self.max_new_tokens
        )
        return float((held_N_K * later_N_K).sum(axis=0).max())

    def _reached(self) -> int:
        """How many milestones lie at or below the present share."""
        return (
            sum(self._complete >= milestone * self._total for milestone in MILESTONES) if self._total else 0
        )

    def _past(self) -> bool:
        return self._complete > MILESTONES[-1] * self._total

    # --- state -------------------------------------------------------------------------------------

    def state(self) -> dict[str, Any]:
        return {
            "history": self.history.state(),
            "total": self._total,
            "complete": self._complete,
            "tried": self._tried,
            "released": self._released,
        }

    def load(self, state: Mapping[str, Any]) -> None:
        self.history.load(state["history"])
        self._total, self._complete, self._tried = state["total"], state["complete"], state["tried"]
        self._released = state["released"]


def half_of(engines: Sequence[EngineSeat], training_groups: Sequence[Sequence[int]]) -> tuple[str, ...]:
    """The names of half the engines that can be freed together; empty when whole groups do not make half of them, or
    no training replica lies on them alone."""
    groups = sorted(_together(engines, training_groups), key=lambda group: max(max(e.devices) for e in group))
    half: list[EngineSeat] = []
    for group in reversed(groups):
        if len(half) + len(group) <= len(engines) // 2:
            half += group
    freed = {device for engine in half for device in engine.devices}
    if len(half) < len(engines) // 2 or not any(freed.issuperset(group) for group in training_groups):
        return ()
    return tuple(sorted(engine.name for engine in half))


def _together(
    engines: Sequence[EngineSeat], training_groups: Sequence[Sequence[int]]
) -> list[list[EngineSeat]]:
    """Engines joined by training replicas that lie on both, as groups."""
    groups = [([engine], set(engine.devices)) for engine in engines]
    for replica in training_groups:
        touched = [group for group in groups if group[1].intersection(replica)]
        rest = [group for group in groups if not group[1].intersection(replica)]
        joined = [engine for members, _ in touched for engine in members]
        devices = {device for _, held in touched for device in held}
        groups = [*rest, (joined, devices)] if joined else rest
    return [members for members, _ in groups]
