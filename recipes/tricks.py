"""Tricks or traps, at home (2508.08221): one factor at a time around Lite PPO, on the demo, three seeds each.

Eight cells: Lite PPO; advantages normalised by the group, by the batch, and without a standard deviation;
clip-higher at 0.28 and 0.32; the loss as a mean over responses; the overlong filter. `grid=full` runs every
combination. Results (results.md, results.csv, curves.html) are written after each run; `roll-ray resume` goes
on with what is left.
"""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any, Literal

from pydantic import Field

from recipes import grpo_qwen, lite_ppo
from recipes.cells import Cell, cell_lines
from recipes.running import Program, run_recipe
from roll_ray.settings import EvaluationSettings, SamplingSettings

FACTORS: dict[str, dict[str, dict[str, Any]]] = {
    "norm": {
        "lite": {},
        "group": {"normalisation.mean": "group", "normalisation.std": "group"},
        "batch": {"normalisation.mean": "batch", "normalisation.std": "batch"},
        "nostd": {"normalisation.mean": "group", "normalisation.std": "none"},
    },
    "clip": {"0.20": {}, "0.28": {"clip_high": 0.28}, "0.32": {"clip_high": 0.32}},
    "loss": {"token": {}, "sequence": {"aggregation": "seq_mean_token_mean"}},
    "overlong": {"kept": {}, "filtered": {"filters.overlong": True}},
}
"""The first choice of each factor is Lite PPO's."""


class Settings(lite_ppo.Settings):
    """`max_steps` is of one run. The batch is cut into four optimizer steps: with one, no ratio ever leaves 1."""

    max_steps: int = Field(100, gt=0, description="Training steps of each run.")
    optimizer_steps_per_batch: int = Field(4, gt=0, description="Mini-batches of one batch.")
    seeds: int = Field(3, gt=0, description="Runs of each cell.")
    grid: Literal["one_factor", "full"] = Field(
        "one_factor", description="One factor at a time (8 cells), or every combination (48)."
    )
    checkpoint_every_steps: int = Field(
        0, ge=0, description="Checkpoint interval of a run; 0: at its end and on Ctrl-C."
    )
    evaluation: EvaluationSettings = Field(
        default_factory=lambda: EvaluationSettings(
            every_steps=25, sampling=SamplingSettings(temperature=0.0, max_new_tokens=12)
        ),
        description="Held-out evaluation.",
    )

    def plan_problems(self) -> list[str]:
        """What is wrong with single cells."""
        own = self.problems()
        cells = [(cell, cell.of(self).problems()) for cell in cells_of(self.grid)]
        return [f"cell {cell.name}: {p}" for cell, found in cells for p in found if p not in own]

    def plan_lines(self) -> list[str]:
        return cell_lines(cells_of(self.grid), self.seeds, self.max_steps)


def cells_of(grid: str) -> list[Cell]:
    """The cells of a grid, Lite PPO first."""
    if grid == "full":
        combinations = itertools.product(*(choices.items() for choices in FACTORS.values()))
        return [
            Cell("_".join(name for name, _ in chosen), {k: v for _, c in chosen for k, v in c.items()})
            for chosen in combinations
        ]
    others = [
        Cell(f"{factor}-{name}", changes)
        for factor, choices in FACTORS.items()
        for name, changes in choices.items()
        if changes
    ]
    return [Cell("lite_ppo", {}), *others]


def build(settings: Settings) -> Program:
    """The study that these settings describe."""
    from recipes.study import Study

    settings, task = grpo_qwen.with_task(settings)
    return Study(settings, task, cells_of(settings.grid), range(settings.seeds), Path(__file__))


if __name__ == "__main__":
    run_recipe(Settings, build)
