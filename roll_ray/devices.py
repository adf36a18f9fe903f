"""Device lists as users write them: `[0,1,2,3]`, `0-3`, `list(range(0,4))`. Nothing is ever passed to `eval`."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Annotated, Any

from pydantic import BeforeValidator

_RANGE_CALL = re.compile(r"^(?:list\(\s*)?range\(\s*(\d+)\s*(?:,\s*(\d+)\s*)?(?:,\s*(\d+)\s*)?\)(?:\s*\))?$")
_SPAN = re.compile(r"^(\d+)\s*-\s*(\d+)$")


def parse_devices(value: Any) -> tuple[int, ...]:
    """The device numbers that `value` names. Raises ValueError for repeats, negatives and anything else."""
    if isinstance(value, bool):
        raise ValueError(f"devices: {value!r} is not a device list")
    if isinstance(value, int):
        devices: tuple[int, ...] = (value,)
    elif isinstance(value, str):
        devices = _parse_text(value.strip())
    elif isinstance(value, Sequence):
        devices = tuple(d for item in value for d in _parse_item(item))
    else:
        raise ValueError(f"devices: cannot read {value!r}; write [0,1,2,3], 0-3 or list(range(0,4))")
    if not devices:
        raise ValueError("devices: the list is empty; at least one device is needed")
    if any(d < 0 for d in devices):
        raise ValueError(f"devices: {[d for d in devices if d < 0]} negative; devices are numbered from 0")
    repeated = sorted({d for d in devices if devices.count(d) > 1})
    if repeated:
        raise ValueError(f"devices: {repeated} named more than once")
    return devices


Devices = Annotated[tuple[int, ...], BeforeValidator(parse_devices)]
"""The type of a setting that is a device list."""


def check_against(devices: Sequence[int], available: int, setting: str) -> str | None:
    """A sentence when a device does not exist, else None."""
    missing = [d for d in devices if d >= available]
    if not missing:
        return None
    return (
        f"{setting} names device {missing[0]} of {available}: devices are numbered 0 to {available - 1}; "
        f"name existing ones or start Ray with more"
    )


def engines_of(devices: Sequence[int], tensor_parallel: int) -> list[tuple[int, ...]]:
    """The devices of each engine, `tensor_parallel` neighbours at a time. Raises ValueError if they do not divide."""
    if len(devices) % tensor_parallel:
        raise ValueError(f"{len(devices)} is not a multiple of {tensor_parallel}")
    return [tuple(devices[i : i + tensor_parallel]) for i in range(0, len(devices), tensor_parallel)]


def _parse_item(item: Any) -> tuple[int, ...]:
    if isinstance(item, str):
        return _parse_text(item)
    if isinstance(item, int) and not isinstance(item, bool):
        return (item,)
    raise ValueError(f"devices: {item!r} is not a device number")


def _parse_text(text: str) -> tuple[int, ...]:
    text = text.strip().strip("[]").strip()
    if call := _RANGE_CALL.match(text):
        first, second, step = (None if g is None else int(g) for g in call.groups())
        start, stop = (0, first) if second is None else (first, second)
        return tuple(range(start or 0, stop or 0, step or 1))
    devices: list[int] = []
    for word in (w.strip() for w in text.split(",")):
        if span := _SPAN.match(word):
            devices += range(int(span[1]), int(span[2]) + 1)
        elif re.fullmatch(r"-?\d+", word):
            devices.append(int(word))
        else:
            raise ValueError(f"devices: cannot read {word!r}; write [0,1,2,3], 0-3 or list(range(0,4))")
    return tuple(devices)
