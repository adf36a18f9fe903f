"""What came out of a study: a table (results.csv, results.md) and curves (curves.html) of all its runs."""

from __future__ import annotations

import csv
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from roll_ray.tracking.report import STUDY_CURVES, STUDY_TABLE
from roll_ray.tracking.run_folder import read_metrics

LAST_STEPS = 20
COLUMNS = {
    "accuracy": "held-out accuracy at the end",
    "accuracy_mean": "mean of its evaluations",
    "reward": f"reward, last {LAST_STEPS} steps",
    "clip_fraction": "clip fraction",
    "entropy": f"entropy, last {LAST_STEPS} steps",
    "response_tokens": f"response length, last {LAST_STEPS} steps",
    "grad_norm": "gradient norm",
}
CURVES = {
    "heldout_accuracy": "held-out accuracy",
    "clip_fraction": "clip fraction",
    "entropy": "entropy (nats)",
    "response_tokens_mean": "response length (tokens)",
}


@dataclass(frozen=True, slots=True)
class RunOutcome:
    """The metrics of one run, a row a step."""

    cell: str
    seed: int
    rows: tuple[dict[str, Any], ...]

    @staticmethod
    def read(folder: Path, cell: str, seed: int) -> RunOutcome:
        return RunOutcome(cell, seed, tuple(read_metrics(folder)))

    def series(self, name: str) -> list[tuple[int, float]]:
        """Step and value, where there is one."""
        return [(row["step"], row[name]) for row in self.rows if row.get(name) is not None]

    def summary(self) -> dict[str, float]:
        """One number for each of `COLUMNS`; NaN where nothing was measured."""

        def mean(name: str, last: int | None = None) -> float:
            values = [value for _, value in self.series(name)]
            return statistics.fmean(values[-last:] if last else values) if values else float("nan")

        return {
            "accuracy": mean("heldout_accuracy", 1),
            "accuracy_mean": mean("heldout_accuracy"),
            "reward": mean("reward_mean", LAST_STEPS),
            "clip_fraction": mean("clip_fraction"),
            "entropy": mean("entropy", LAST_STEPS),
            "response_tokens": mean("response_tokens_mean", LAST_STEPS),
            "grad_norm": mean("grad_norm"),
        }


def write_results(folder: Path, outcomes: Sequence[RunOutcome]) -> list[Path]:
    """The table and the curves; the paths of what was written."""
    paths = [folder / STUDY_TABLE, folder / "results.csv", folder / STUDY_CURVES]
    paths[0].write_text(table(outcomes), encoding="utf-8")
    _write_csv(paths[1], outcomes)
    _write_curves(paths[2], outcomes)
    return paths


def table(outcomes: Sequence[RunOutcome]) -> str:
    """Markdown: a row a cell, mean over its seeds and, in brackets, lowest and highest accuracy."""
    lines = ["| cell | seeds | " + " | ".join(COLUMNS.values()) + " |", "|---" * (len(COLUMNS) + 2) + "|"]
    for cell, runs in _by_cell(outcomes).items():
        summaries = [run.summary() for run in runs]
        accuracies = [s["accuracy"] for s in summaries]
        shown = [f"{statistics.fmean(s[name] for s in summaries):.3g}" for name in COLUMNS]
        shown[0] = f"{statistics.fmean(accuracies):.3f} ({min(accuracies):.3f} to {max(accuracies):.3f})"
        lines.append(f"| {cell} | {len(runs)} | " + " | ".join(shown) + " |")
    return "\n".join(lines) + "\n"


def _write_csv(path: Path, outcomes: Sequence[RunOutcome]) -> None:
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(["cell", "seed", *COLUMNS])
        for run in outcomes:
            writer.writerow([run.cell, run.seed, *run.summary().values()])


def _write_curves(path: Path, outcomes: Sequence[RunOutcome]) -> None:
    """A plot for each of `CURVES`: the mean over seeds of each cell; a click on a cell's name hides it."""
    from plotly.colors import qualitative
    from plotly.subplots import make_subplots

    figure = make_subplots(rows=2, cols=2, subplot_titles=list(CURVES.values()))
    for i, (cell, runs) in enumerate(_by_cell(outcomes).items()):
        color = qualitative.D3[i % len(qualitative.D3)]
        for j, name in enumerate(CURVES):
            steps, means = _mean_over_runs(runs, name)
            figure.add_scatter(
                x=steps,
                y=means,
                name=cell,
                legendgroup=cell,
                showlegend=j == 0,
                line={"color": color},
                row=j // 2 + 1,
                col=j % 2 + 1,
            )
    figure.update_layout(height=800, title=f"{path.parent.name}: mean over seeds")
    figure.write_html(path, include_plotlyjs=True)


def _mean_over_runs(runs: Sequence[RunOutcome], name: str) -> tuple[list[int], list[float]]:
    values: dict[int, list[float]] = {}
    for run in runs:
        for step, value in run.series(name):
            values.setdefault(step, []).append(value)
    steps = sorted(values)
    return steps, [statistics.fmean(values[step]) for step in steps]


def _by_cell(outcomes: Sequence[RunOutcome]) -> dict[str, list[RunOutcome]]:
    cells: dict[str, list[RunOutcome]] = {}
    for run in outcomes:
        cells.setdefault(run.cell, []).append(run)
    return cells
