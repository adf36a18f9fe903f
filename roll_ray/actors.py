"""Calling an actor, wherever it lives: the same typed call on a Ray actor and on an object of this process.

    deltas = await engine.call(RolloutEngine.collect, "runner-0", 0.5)

The method is named by the function itself, so the type checker knows arguments and result, and "find
usages" works. `roll_ray.cluster` has the Ray side; `LocalActor` is for tests and single-process use.
"""

from __future__ import annotations

import asyncio
import inspect
import os
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Concatenate, Generic, ParamSpec, Protocol, TypeVar, overload

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)
P = ParamSpec("P")
R = TypeVar("R")


class ActorUnavailable(Exception):
    """The actor died or is restarting; the call may or may not have run. A later call can succeed."""

    def __init__(self, name: str, reason: str) -> None:
        super().__init__(f"{name} is unavailable: {reason}")
        self.name, self.reason = name, reason

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.name, self.reason)


@dataclass(frozen=True, slots=True)
class Identity:
    """Which process answers under a name, and on which node; it changes when the actor is restarted."""

    pid: int
    node: str
    worker_id: str


class Actor(Protocol[T_co]):
    """A handle. `call` raises `ActorUnavailable` when the actor is down for now, `WorkerDiedError` when for good."""

    name: str

    @overload
    def call(
        self, method: Callable[Concatenate[T_co, P], Awaitable[R]], *args: P.args, **kwargs: P.kwargs
    ) -> Awaitable[R]: ...
    @overload
    def call(
        self, method: Callable[Concatenate[T_co, P], R], *args: P.args, **kwargs: P.kwargs
    ) -> Awaitable[R]: ...

    async def refer(self, method: Callable[..., Any], *args: Any) -> Any:
        """Call, wait until the result exists, and leave it where it was made.

        The handle that comes back stands for the result as an argument of other calls; the result itself
        never passes through the caller. Raises what `call` would raise.
        """

    async def identity(self) -> Identity:
        """Who answers now. Raises what `call` would raise."""


class LocalActor(Generic[T]):
    """An `Actor` whose object lives in this process; handles are the results themselves."""

    def __init__(self, instance: T, name: str) -> None:
        self.instance, self.name = instance, name

    async def call(self, method: Any, *args: Any, **kwargs: Any) -> Any:
        result = getattr(self.instance, method.__name__)(*args, **kwargs)
        return await result if inspect.isawaitable(result) else result

    async def refer(self, method: Any, *args: Any) -> Any:
        return await self.call(method, *args)

    async def identity(self) -> Identity:
        return Identity(os.getpid(), "here", "")


class Pool(Generic[T]):
    """The actors of one role, in rank order."""

    def __init__(self, role: str, actors: Sequence[Actor[T]]) -> None:
        self.role, self.actors = role, tuple(actors)

    def __len__(self) -> int:
        return len(self.actors)

    def __iter__(self) -> Iterator[Actor[T]]:
        return iter(self.actors)

    def __getitem__(self, rank: int) -> Actor[T]:
        return self.actors[rank]

    @overload
    async def broadcast(
        self, method: Callable[Concatenate[T, P], Awaitable[R]], *args: P.args, **kwargs: P.kwargs
    ) -> list[R]: ...
    @overload
    async def broadcast(
        self, method: Callable[Concatenate[T, P], R], *args: P.args, **kwargs: P.kwargs
    ) -> list[R]: ...
    async def broadcast(self, method: Any, *args: Any, **kwargs: Any) -> list[Any]:
        """The same call on every actor at once; results in rank order. The first failure is raised at once."""
        return list(await asyncio.gather(*(a.call(method, *args, **kwargs) for a in self.actors)))

    async def scatter(self, method: Callable[..., Any], args_by_rank: Sequence[Sequence[Any]]) -> list[Any]:
        """One call per actor, each with its own arguments; results in rank order."""
        if len(args_by_rank) != len(self.actors):
            raise ValueError(
                f"{self.role}: arguments for {len(args_by_rank)} ranks, but the pool has {len(self.actors)}"
            )
        calls = (a.call(method, *args) for a, args in zip(self.actors, args_by_rank, strict=True))
        return list(await asyncio.gather(*calls))
