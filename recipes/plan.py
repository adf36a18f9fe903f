"""What a run would do, from its settings alone: starts nothing, loads neither torch nor Ray nor vLLM."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from recipes.recipe_files import Recipe
from recipes.sources import look_at_sources
from roll_ray.errors import RollRayError
from roll_ray.home import inside_ray_job, resolve_run_dir
from roll_ray.placement import Placement, device_slots, missing_devices, place
from roll_ray.settings import RunSettings
from roll_ray.settings_io import default_values, flat
from roll_ray.settings_values import shown
from roll_ray.weight_transfer import transfer_problems


@dataclass(frozen=True, slots=True)
class Machine:
    """What this machine has, as far as can be told without torch and Ray. `cluster` is a Ray address in use."""

    gpus: int
    cores: int
    cluster: str | None

    @staticmethod
    def this() -> Machine:
        nodes = [p for p in Path("/dev").glob("nvidia*") if p.name.removeprefix("nvidia").isdigit()]
        visible = os.environ.get("CUDA_VISIBLE_DEVICES")
        named = [d for d in (visible or "").split(",") if d.strip() and d.strip() != "-1"]
        gpus = len(nodes) if visible is None else len(named)
        return Machine(gpus, len(os.sched_getaffinity(0)), os.environ.get("RAY_ADDRESS"))


@dataclass(frozen=True, slots=True)
class Plan:
    """`problems` keep the run from starting, `notes` do not."""

    lines: tuple[str, ...]
    notes: tuple[str, ...]
    problems: tuple[str, ...]


def make_plan(recipe: Recipe, settings: RunSettings, machine: Machine) -> Plan:
    """Everything that can be said before a run starts."""
    problems = settings.problems() + settings.plan_problems()
    seats, folder = ["nobody: the devices do not fit"], "?"
    try:
        seats = _seat_lines(place(settings))
    except RollRayError as error:
        if not problems:
            problems.append(error.what)
    try:
        run_place = resolve_run_dir(settings, recipe.name, in_ray_job=inside_ray_job())
        folder = str(run_place.folder) + (f" ({run_place.note})" if run_place.note else "")
    except RollRayError as error:
        problems.append(error.what)
    device_problems, notes = _check_devices(settings, machine)
    source_problems, source_notes = look_at_sources(settings)
    lines = [
        f"{recipe.name}: {recipe.doc.splitlines()[0] if recipe.doc else recipe.file}",
        "",
        "Settings (* differs from the recipe's default)",
        *_setting_lines(recipe, settings),
        "",
        "Batch",
        f"  {batch_sentence(settings)}",
        *(f"  {line}" for line in settings.plan_lines()),
        "",
        "Who sits where",
        *(f"  {line}" for line in seats + _deviceless(settings)),
        "",
        f"Run folder: {folder}",
    ]
    return Plan(
        tuple(lines), tuple(notes + source_notes), tuple(problems + device_problems + source_problems)
    )


def batch_sentence(settings: RunSettings) -> str:
    """The batch in one sentence; micro-batches are counted at full length."""
    longest = settings.max_prompt_tokens + settings.sampling.max_new_tokens
    return f"{settings.batch_sentence(longest)} (if every sample has the full {longest} tokens)"


def _setting_lines(recipe: Recipe, settings: RunSettings) -> list[str]:
    defaults = default_values(recipe.settings_class)
    values = flat(settings.plain())
    width = max(map(len, values))
    return [
        f"  {' ' if name in defaults and defaults[name] == value else '*'} {name:<{width}}  {shown(value)}"
        for name, value in values.items()
    ]


def _seat_lines(placement: Placement) -> list[str]:
    """A line a device: the workers on it, the share that each declares, tensor-parallel groups as such."""
    lines = []
    for device in sorted({d for seat in placement.seats for d in seat.devices}):
        here = []
        for seat in placement.seats:
            if device in seat.devices:
                group = (
                    f", tensor parallel with {_others(seat.devices, device)}" if len(seat.devices) > 1 else ""
                )
                here.append(f"{seat.name} (share {seat.share}{group})")
        lines.append(f"device {device}: {', '.join(here)}")
    return lines


def _others(devices: Sequence[int], device: int) -> str:
    return ", ".join(str(d) for d in devices if d != device)


def _deviceless(settings: RunSettings) -> list[str]:
    runners, rewards = settings.episode_runners, settings.reward_workers
    workers = [
        "driver",
        "rollout manager",
        f"{runners} episode runner{'s' * (runners > 1)}",
        f"{rewards} reward worker{'s' * (rewards > 1)} for each domain",
        "a sample store on each node",
    ]
    inside = ["the reference model lives inside the trainer"] if settings.kl_coefficient > 0 else []
    return [f"no device: {', '.join(workers)}", *inside]


def _check_devices(settings: RunSettings, machine: Machine) -> tuple[list[str], list[str]]:
    """Problems and notes: the devices named against those that there are."""
    devices = settings.devices
    address = devices.ray_address or machine.cluster
    if address is not None:
        return [], [f"the devices are checked against the Ray cluster at {address} when the run starts"]
    on_gpu = devices.kind == "gpu" or (devices.kind == "auto" and machine.gpus > 0)
    if on_gpu and not machine.gpus:
        return ["devices.kind=gpu and this machine has no GPU: set devices.kind=cpu or auto"], []
    problems = missing_devices(settings, machine.gpus if on_gpu else device_slots(settings, machine.cores))
    said = transfer_problems(settings, None if devices.kind == "auto" else on_gpu)  # by RunSettings.problems
    return problems + [p for p in transfer_problems(settings, on_gpu) if p not in said], []
