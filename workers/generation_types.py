"""What goes between a runner and its engine client: a turn to generate, and the response as it grows."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from roll_ray.generation import EngineStats, GenerationDelta, GenerationRequest
from roll_ray.sample import SamplingDistribution


class Engine(Protocol):
    """What a client needs of a rollout engine."""

    async def submit(self, requests: Sequence[GenerationRequest], /) -> None: ...

    async def collect(self, client: str, timeout_s: float, /) -> list[GenerationDelta]: ...

    async def abort(self, ids: Sequence[str], /) -> None: ...

    async def stats(self) -> EngineStats: ...


class GenerationFailedError(Exception):
    """The engine refused or broke off a request; the message is the engine's."""


@dataclass(slots=True)
class Generation:
    """A response as it grows: token ids, log-probabilities (float32) and weight versions, one of each per token.
    `engine`: which one was asked last."""

    tokens: array[int] = field(default_factory=lambda: array("i"))
    logprobs: array[float] = field(default_factory=lambda: array("f"))
    versions: array[int] = field(default_factory=lambda: array("i"))
    finish: str = ""
    engine: str = ""

    def extend(self, delta: GenerationDelta) -> None:
        if not len(delta.tokens) == len(delta.logprobs) == len(delta.versions):
            raise GenerationFailedError(
                f"the engine gave {len(delta.tokens)} tokens, {len(delta.logprobs)} log-probabilities and "
                f"{len(delta.versions)} weight versions: one of each per token is needed"
            )
        if not delta.tokens:
            return
        # Making an array of a tuple and extending by that takes a third of the time of extending by the tuple.
        self.tokens.extend(array("i", delta.tokens))
        self.logprobs.extend(array("f", delta.logprobs))
        version, n = delta.versions[0], len(delta.versions)
        one_version = delta.versions.count(version) == n
        self.versions.extend(array("i", [version]) * n if one_version else array("i", delta.versions))


@dataclass(frozen=True, slots=True)
class Asked:
    """One turn to generate. `id` is unique in the run, `so_far` grows as tokens come, and `started` is told the
    weight version of the first token. `near`: the engine that wrote the turn before, and has its prefix cached."""

    id: str
    prompt_tokens: tuple[int, ...]
    sampling: SamplingDistribution
    max_new_tokens: int
    stop_token_ids: tuple[int, ...] = ()
    seed: int | None = None
    so_far: Generation = field(default_factory=Generation)
    started: Callable[[int], None] | None = None
    near: str | None = None
