"""Ray actors behind the typed `Actor` interface: made from plain classes, named, placed, supervised."""

from __future__ import annotations

import asyncio
import glob
import importlib.util
import inspect
import os
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any, Generic, TypeVar

import ray
from ray.exceptions import (
    ActorDiedError,
    ActorUnavailableError,
    ActorUnschedulableError,
    GetTimeoutError,
    ObjectLostError,
    RayActorError,
    RayTaskError,
)
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy, PlacementGroupSchedulingStrategy

from roll_ray.actors import ActorUnavailable, Identity
from roll_ray.errors import RollRayError, WorkerDiedError

T = TypeVar("T")

LOG_LINES = 12
LOG_CHARACTERS_PER_LINE = 400
_RAY_HEADERS = (":job_id:", ":actor_name:", ":task_name:")


class RayActor(Generic[T]):
    """An `Actor` in a Ray worker process. Picklable: actors hold one another by name, so that one that is
    restarted finds its peers whatever became of the processes that made them."""

    def __init__(self, name: str, handle: Any = None) -> None:
        self.name, self._handle = name, handle
        self.last_identity: Identity | None = None

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.name,)

    @property
    def handle(self) -> Any:
        if self._handle is None:
            self._handle = ray.get_actor(self.name)
        return self._handle

    def __repr__(self) -> str:
        return f"RayActor({self.name})"

    async def call(self, method: Any, *args: Any, **kwargs: Any) -> Any:
        try:
            return await getattr(self.handle, method.__name__).remote(*args, **kwargs)
        except Exception as error:
            raise self._translated(error, method.__name__) from error

    async def refer(self, method: Any, *args: Any) -> Any:
        call = self.handle.referred.options(num_returns=2)
        try:
            reference, done = call.remote(method.__name__, *args)
            await done
        except Exception as error:
            raise self._translated(error, method.__name__) from error
        return reference

    async def identity(self) -> Identity:
        """Who answers now; kept, so that the log of a dead process can still be found."""
        self.last_identity = await self.call(_Hosted.identity)
        return self.last_identity  # type: ignore[return-value]

    def _translated(self, error: Exception, method: str) -> Exception:
        """The runtime's own error for a Ray error; what a method raised comes back as it was raised."""
        if isinstance(error, RayTaskError):
            cause = error.cause
            return cause if isinstance(cause, RollRayError | ActorUnavailable) else error
        if isinstance(error, ActorUnavailableError | GetTimeoutError):
            return ActorUnavailable(self.name, f"{type(error).__name__} in {method}")
        if isinstance(error, ActorDiedError | ActorUnschedulableError | RayActorError):
            return WorkerDiedError(
                f"{self.name} died during {method}",
                why=last_log_lines(self.last_identity) or _first_line(error),
                next_step="`roll-ray resume RUN_DIR` goes on from the last checkpoint",
            )
        if isinstance(error, ObjectLostError):
            return ActorUnavailable(
                self.name, f"an object that {method} needed was lost: {_first_line(error)}"
            )
        return error


class _Hosted:
    """What every hosted class has beside its own methods."""

    def identity(self) -> Identity:
        context = ray.get_runtime_context()
        return Identity(os.getpid(), context.get_node_id(), context.get_worker_id())

    def referred(self, method: str, *args: Any) -> tuple[Any, None]:
        """A result and, beside it, the news that it exists: the caller awaits the second alone."""
        return getattr(self, method)(*args), None


class _HostedAsync(_Hosted):
    """The same for classes with coroutine methods (one of them makes the whole actor asynchronous)."""

    async def referred(self, method: str, *args: Any) -> tuple[Any, None]:  # type: ignore[override]
        result = getattr(self, method)(*args)
        return (await result if inspect.isawaitable(result) else result), None


def host(
    cls: type[T],
    *args: Any,
    name: str,
    seat: PlacementGroupSchedulingStrategy | NodeAffinitySchedulingStrategy | None = None,
    resources: Mapping[str, float] | None = None,
    env: Mapping[str, str] | None = None,
    restarts: int = 0,
    concurrency: int | None = None,
) -> RayActor[T]:
    """Start `cls(*args)` as an actor called `name`. `restarts` -1 means always; state is then lost each time."""
    wanted = dict(resources or {})
    options: dict[str, Any] = {
        "name": name,
        "num_cpus": wanted.pop("CPU", 0),
        "num_gpus": wanted.pop("GPU", 0),
        "resources": wanted or None,
        "max_restarts": restarts,
        "max_task_retries": 0,
        "runtime_env": {"env_vars": dict(env)} if env else None,
    }
    if seat is not None:
        options["scheduling_strategy"] = seat
    if concurrency is not None:
        options["max_concurrency"] = concurrency
    is_async = any(inspect.iscoroutinefunction(m) for _, m in inspect.getmembers(cls))
    beside = _HostedAsync if is_async else _Hosted
    hosted = type(cls.__name__, (cls, beside), {"__module__": cls.__module__, "__doc__": cls.__doc__})
    options = {key: value for key, value in options.items() if value is not None}
    handle = ray.remote(hosted).options(**options).remote(*args)
    return RayActor(name, handle)


def kill(actor: Any) -> None:
    """End an actor for good."""
    ray.kill(actor.handle, no_restart=True)


async def names_free(names: Iterable[str], timeout_s: float = 30.0) -> None:
    """Wait until no actor of this namespace has one of these names any more; TimeoutError after `timeout_s`."""
    left = set(names)
    async with asyncio.timeout(timeout_s):
        while left := {name for name in left if _is_taken(name)}:
            await asyncio.sleep(0.1)


def _is_taken(name: str) -> bool:
    try:
        ray.get_actor(name)
    except ValueError:
        return False
    return True


def beside_the_driver() -> NodeAffinitySchedulingStrategy:
    """A seat on the driver's own node, whose loss ends the run anyway, for workers that ask for no device."""
    return NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=False)


def pickled_by_value(module: ModuleType | None) -> None:
    """Let functions of this module travel whole, unless workers can import the module under its name."""
    if module is None or module.__name__ == "__main__":
        return
    try:
        importable = importlib.util.find_spec(module.__name__) is not None
    except ValueError:
        importable = False
    if not importable:
        ray.cloudpickle.register_pickle_by_value(module)


def check_picklable(what: str, function: Any) -> None:
    """Raise RollRayError when a function cannot be sent to a worker process, with what in it cannot."""
    pickled_by_value(sys.modules.get(getattr(function, "__module__", "")))
    try:
        ray.cloudpickle.dumps(function)
    except Exception as error:  # user's objects raise what they like when they are pickled
        name = getattr(function, "__qualname__", repr(function))
        raise RollRayError(
            f"{what}, {name}, cannot be sent to a worker process",
            why=f"{type(error).__name__}: {_first_line(error)}",
            next_step="let it open files, connections, locks and models itself at its first call, not hold them "
            "as globals, defaults or closures",
        ) from error


def last_log_lines(identity: Identity | None) -> str:
    """The last lines that a worker process wrote, or where to look when its log is on another node."""
    if identity is None:
        return ""
    pattern = f"worker-{identity.worker_id}-*-{identity.pid}"
    folder = Path(_session_folder()) / "logs"
    lines: list[str] = []
    for kind in ("out", "err"):
        for path in glob.glob(str(folder / f"{pattern}.{kind}")):
            written = Path(path).read_text(errors="replace").splitlines()[-LOG_LINES:]
            lines += [line for line in written if not line.startswith(_RAY_HEADERS)]
    if lines:
        return "its last log lines:\n    " + "\n    ".join(
            x[:LOG_CHARACTERS_PER_LINE] for x in lines[-LOG_LINES:]
        )
    return f"it left no log lines here; see {folder} on node {identity.node[:8]} (pid {identity.pid})"


def _session_folder() -> str:
    node = ray._private.worker._global_node
    return str(node.get_session_dir_path()) if node is not None else "/tmp/ray/session_latest"


def _first_line(error: Exception) -> str:
    text = str(error).strip()
    return text.splitlines()[0] if text else type(error).__name__
