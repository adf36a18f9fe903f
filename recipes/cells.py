"""The cells of a study: settings that differ in a few values. Light: `plan` looks at every cell."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from roll_ray.settings import RunSettings

S = TypeVar("S", bound=RunSettings)


@dataclass(frozen=True, slots=True)
class Cell:
    """One combination of settings, by dotted name, under a name of its own."""

    name: str
    changes: Mapping[str, Any]

    def of(self, settings: S) -> S:
        """The settings with this cell's changes, validated anew."""
        data = settings.model_dump()
        for name, value in self.changes.items():
            *groups, last = name.split(".")
            place = data
            for group in groups:
                place = place[group]
            place[last] = value
        return type(settings).model_validate(data)


def cell_lines(cells: Sequence[Cell], seeds: int, max_steps: int) -> list[str]:
    """What a study would run, for a person."""
    width = max(len(cell.name) for cell in cells)
    changes = (", ".join(f"{n}={v}" for n, v in cell.changes.items()) or "nothing changed" for cell in cells)
    return [
        f"{len(cells)} cells x {seeds} seeds = {len(cells) * seeds} runs of {max_steps} steps",
        *(f"{cell.name:<{width}}  {change}" for cell, change in zip(cells, changes, strict=True)),
    ]
