"""Events and actions as JSON records and back: what the event log of a run is made of."""

from __future__ import annotations

import dataclasses
from typing import Any

from schedulers import protocol
from schedulers.protocol import Action, Event, SampleId, Visit

_CLASSES: dict[str, type] = {
    name: value
    for name, value in vars(protocol).items()
    if isinstance(value, type) and dataclasses.is_dataclass(value)
}
_FIELDS = {name: tuple(f.name for f in dataclasses.fields(cls)) for name, cls in _CLASSES.items()}


def to_record(item: Event | Action) -> list[Any]:
    """`[class name, field, field, ...]` in declaration order: compact, and json.dumps takes it as it is."""
    name = type(item).__name__
    return [name, *(getattr(item, field) for field in _FIELDS[name])]


def from_record(record: list[Any]) -> Any:
    """The inverse of `to_record`, after a trip through JSON (tuples have become lists)."""
    name, *values = record
    if name not in _CLASSES:
        raise ValueError(f"event log: unknown record {name!r}; known: {', '.join(sorted(_CLASSES))}")
    decoded = [_decode(field, value) for field, value in zip(_FIELDS[name], values, strict=True)]
    return _CLASSES[name](*decoded)


def _decode(field: str, value: Any) -> Any:
    if field == "visit":
        return Visit(*value)
    if field == "sample":
        return _sample_id(value)
    if field == "visits":
        return tuple(Visit(*v) for v in value)
    if field == "samples":
        return tuple(_sample_id(v) for v in value)
    return tuple(value) if isinstance(value, list) else value


def _sample_id(value: Any) -> SampleId:
    visit, index = value
    return SampleId(Visit(*visit), index)
