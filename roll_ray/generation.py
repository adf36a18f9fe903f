"""What goes into a rollout engine and what comes out: tokens in, tokens out."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from roll_ray.sample import SamplingDistribution


@dataclass(frozen=True, slots=True)
class GenerationRequest:
    """Continue `prompt_token_ids` by at most `max_new_tokens`. `id` is unique among open requests.

    `client` names who collects the answer. `seed` fixes the draws of this request (deterministic runs).
    """

    id: str
    client: str
    prompt_token_ids: tuple[int, ...]
    sampling: SamplingDistribution
    max_new_tokens: int
    stop_token_ids: tuple[int, ...] = ()
    seed: int | None = None


@dataclass(frozen=True, slots=True)
class GenerationDelta:
    """New tokens of a request since its last delta, with the log-probability (processed: after temperature)
    and the weight version of each. `finish` is None while it goes on, then once "stop", "length", "abort"
    or "error" (`error` says what)."""

    id: str
    tokens: Sequence[int]
    logprobs: Sequence[float]
    versions: Sequence[int]
    finish: str | None = None
    error: str = ""

    def __reduce__(self) -> tuple[Any, ...]:
        """Between processes as packed arrays: unpickling is then a copy of bytes, ten times as fast."""
        tokens, versions = array("i", self.tokens), array("i", self.versions)
        return type(self), (self.id, tokens, array("f", self.logprobs), versions, self.finish, self.error)


@dataclass(frozen=True, slots=True)
class EngineStats:
    """Load of an engine, as its own counters say."""

    engine: str
    version: int
    running: int
    waiting: int
    kv_use: float
    preemptions: int
    generated_tokens: int


@dataclass(frozen=True, slots=True)
class Canary:
    """A fixed sequence with the log-probabilities that the trainer gives its tokens 1..n-1 (temperature 1)."""

    token_ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    tolerance: float
