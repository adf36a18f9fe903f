"""Calling an actor, wherever it lives: the same typed call on a Ray actor and on an object of this process.

    delta = await engine.call(RolloutEngine.collect, "runner-0", 0.5)

The method is named by the function itself, so the type checker knows arguments and result, and "find
usages" works. `roll_ray.cluster` has the Ray side; `LocalActor` is for tests and single-process use.
"""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable
from typing import Any, Concatenate, Generic, ParamSpec, Protocol, TypeVar, overload

T = TypeVar("T")
P = ParamSpec("P")
R = TypeVar("R")


class ActorUnavailable(Exception):
    """The actor died or is restarting; the call may or may not have run. A later call can succeed."""

    def __init__(self, name: str, reason: str) -> None:
        super().__init__(f"{name} is unavailable: {reason}")
        self.name, self.reason = name, reason

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.name, self.reason)


class Actor(Protocol[T]):
    """A handle. `call` raises `ActorUnavailable` when the actor is down for now, `WorkerDiedError` when for good."""

    name: str

    @overload
    def call(
        self, method: Callable[Concatenate[T, P], Awaitable[R]], *args: P.args, **kwargs: P.kwargs
    ) -> Awaitable[R]: ...
    @overload
    def call(
        self, method: Callable[Concatenate[T, P], R], *args: P.args, **kwargs: P.kwargs
    ) -> Awaitable[R]: ...


class LocalActor(Generic[T]):
    """An `Actor` whose object lives in this process."""

    def __init__(self, instance: T, name: str) -> None:
        self.instance, self.name = instance, name

    async def call(self, method: Any, *args: Any, **kwargs: Any) -> Any:
        result = getattr(self.instance, method.__name__)(*args, **kwargs)
        return await result if inspect.isawaitable(result) else result
