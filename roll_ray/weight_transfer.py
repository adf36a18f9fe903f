"""How weights travel from the trainer to the engines: what `engine.weight_transfer` means on the devices of a run.

- "shm": buckets in shared memory, and through the object store to other nodes. Everywhere, and the way in which a
  late or restarted engine gets its weights in every case.
- "ipc": handles to a GPU's memory, between a trainer rank and an engine that share the GPU.
- "nccl": a broadcast from trainer rank 0 to engines on other GPUs. NCCL refuses two ranks on one GPU.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal

from roll_ray.errors import SettingsError

if TYPE_CHECKING:
    from roll_ray.settings import RunSettings

WeightTransfer = Literal["shm", "ipc", "nccl"]


def weight_transfer(settings: RunSettings, on_gpu: bool) -> WeightTransfer:
    """The transport of a run; what `auto` stands for. Raises SettingsError for one that cannot work there."""
    if problems := transfer_problems(settings, on_gpu):
        raise SettingsError("\n".join(problems))
    asked = settings.engine.weight_transfer
    if asked != "auto":
        return asked
    if not on_gpu:
        return "shm"
    if _all_shared(settings):
        return "ipc"
    return "shm" if _sender_shared(settings) else "nccl"


def transfer_problems(settings: RunSettings, on_gpu: bool | None) -> list[str]:
    """A sentence for each contradiction; `on_gpu` is None as long as nobody knows."""
    if settings.replay is not None:
        return []
    asked, devices = settings.engine.weight_transfer, settings.devices
    lists = f"devices.rollout={list(devices.rollout)} and devices.train={list(devices.train)}"
    found = []
    if asked in ("ipc", "nccl") and on_gpu is False:
        found.append(
            f"engine.weight_transfer={asked} needs GPUs and this run is on CPUs: "
            "set engine.weight_transfer=auto or shm"
        )
    if asked == "ipc" and not _all_shared(settings):
        found.append(
            f"engine.weight_transfer=ipc is for engines whose devices all train too, with {lists} some do not: "
            "set engine.weight_transfer=auto, or name devices.rollout among devices.train"
        )
    if asked == "nccl" and _sender_shared(settings):
        found.append(
            f"engine.weight_transfer=nccl needs the first training device for itself, with {lists} an engine "
            "shares it: set engine.weight_transfer=auto, or name other devices"
        )
    degree = settings.engine.tensor_parallel
    if on_gpu and degree > 1 and _any_shared(settings):
        found.append(
            f"engine.tensor_parallel={degree} with {lists}: Ray gives no worker a share of several GPUs: "
            "set engine.tensor_parallel=1, or let devices.rollout and devices.train name different devices"
        )
    return found


def trains_too(devices: Sequence[int], settings: RunSettings) -> bool:
    """Whether an engine on these devices shares one with the trainer, and so computes in turns with it."""
    return not set(devices).isdisjoint(settings.devices.train)


def _any_shared(settings: RunSettings) -> bool:
    return trains_too(settings.devices.rollout, settings)


def _all_shared(settings: RunSettings) -> bool:
    return set(settings.devices.rollout) <= set(settings.devices.train)


def _sender_shared(settings: RunSettings) -> bool:
    return settings.devices.train[0] in settings.devices.rollout
