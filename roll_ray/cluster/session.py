"""Connecting to Ray: the job's cluster, a named one, or a local one that lives as long as the run."""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import socket
import threading
import uuid
from collections.abc import Iterator
from dataclasses import dataclass

import ray
from ray.exceptions import AuthenticationError, RaySystemError

from roll_ray.errors import RollRayError
from roll_ray.home import inside_ray_job
from roll_ray.placement import device_slots
from roll_ray.settings import RunSettings

OBJECT_STORE_BYTES = 512 << 20
DAEMONS_GONE_S = "20"
KNOCK_S = 10.0


@dataclass(frozen=True, slots=True)
class Session:
    """A live connection. `resource` is what a device is called in this cluster: "GPU", "device" or "CPU"."""

    resource: str
    devices: int
    local: bool
    namespace: str


@contextlib.contextmanager
def session(settings: RunSettings, name: str) -> Iterator[Session]:
    """Connect to Ray for one run, and part from it at the end; a cluster that this started ends with it.

    The run's namespace begins with `name` and is its own, so that runs of one name do not meet. A process that
    has connected to Ray itself keeps its connection (and its namespace)."""
    if ray.is_initialized():
        yield _described(settings, local=False)
        return
    address = settings.devices.ray_address or os.environ.get("RAY_ADDRESS") or None
    local = address is None and not inside_ray_job()
    options: dict[str, object] = {
        "namespace": f"{name}/{uuid.uuid4().hex[:8]}",
        "log_to_driver": False,
        "logging_level": logging.ERROR,
    }
    if local:
        slots = device_slots(settings, len(os.sched_getaffinity(0)))
        options |= {
            "address": "local",  # not a cluster that happens to run on this machine, or ran there and was killed
            "include_dashboard": False,
            "object_store_memory": OBJECT_STORE_BYTES,
            "resources": {} if settings.devices.kind == "gpu" else {"device": slots},
        }
        # A signal to the whole process group (`timeout`, a batch system) ends Ray's daemons too; then this program
        # and its workers shall not wait a whole minute for them.
        os.environ.setdefault("RAY_gcs_rpc_server_reconnect_timeout_s", DAEMONS_GONE_S)
    else:
        options["address"] = address or "auto"
    os.environ["RAY_IGNORE_UNHANDLED_ERRORS"] = "1"  # errors are raised where results are awaited
    try:
        if address:
            _knock(address)
        with _own_signal_handlers():
            ray.init(**options)
    except (OSError, RaySystemError, AuthenticationError, RuntimeError, ValueError) as error:
        where = f"the Ray cluster at {address}" if address else "Ray"
        raise RollRayError(
            f"cannot connect to {where}",
            why=str(error).strip().splitlines()[-1] if str(error).strip() else type(error).__name__,
            next_step="check that the cluster is up (`ray status`) and, with token authentication, that "
            "RAY_AUTH_MODE and the token are the same here and there; unset RAY_ADDRESS for a local run",
        ) from error
    except BaseException:
        ray.shutdown()  # what had been started when the user ended it
        raise
    try:
        yield _described(settings, local)
    finally:
        ray.shutdown()


def _knock(address: str) -> None:
    """Raise OSError at once where nobody listens: ray.init would try for minutes. Other forms of address pass."""
    host, _, port = address.rpartition(":")
    if host and port.isdigit() and "/" not in address:
        socket.create_connection((host, int(port)), KNOCK_S).close()


@contextlib.contextmanager
def _own_signal_handlers() -> Iterator[None]:
    """Keep this program's SIGTERM handler: ray.init puts one in its place that ends the process there and then."""
    before = signal.getsignal(signal.SIGTERM)
    try:
        yield
    finally:
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, before)


def _described(settings: RunSettings, local: bool) -> Session:
    resource = _device_resource(settings)
    devices = int(ray.cluster_resources().get(resource, 0))
    return Session(resource, devices, local, ray.get_runtime_context().namespace)


def _device_resource(settings: RunSettings) -> str:
    resources = ray.cluster_resources()
    if settings.devices.kind == "gpu" or (settings.devices.kind == "auto" and resources.get("GPU", 0) >= 1):
        return "GPU"
    return "device" if "device" in resources else "CPU"
