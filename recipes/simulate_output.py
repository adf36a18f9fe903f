"""What a simulation shows: tables on the terminal and as markdown, a Perfetto timeline, a plot of the devices' use."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from rich.console import Console
from rich.table import Table

from roll_ray.tracking.timeline import Timeline
from schedulers.simulator.records import StepRecord, TracePoint, mean


@dataclass(frozen=True, slots=True)
class ResultTable:
    """Rows of text under `columns`; `notes` say what a reader must know of them."""

    title: str
    columns: tuple[str, ...]
    rows: Sequence[tuple[str, ...]]
    notes: tuple[str, ...] = field(default=())

    def markdown(self) -> str:
        lines = [f"### {self.title}", "", f"| {' | '.join(self.columns)} |", "|---" * len(self.columns) + "|"]
        lines += [f"| {' | '.join(row)} |" for row in self.rows]
        return "\n".join([*lines, "", *(f"- {note}" for note in self.notes)]).rstrip() + "\n"


def show(tables: Sequence[ResultTable], console: Console) -> None:
    for result in tables:
        table = Table(title=result.title, title_justify="left", title_style="bold")
        for i, column in enumerate(result.columns):
            table.add_column(column, justify="left" if i == 0 else "right")
        for row in result.rows:
            table.add_row(*row)
        console.print(table)
        for note in result.notes:
            console.print(f"  {note}", highlight=False)


def write_tables(path: Path, tables: Sequence[ResultTable]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join(t.markdown() for t in tables), encoding="utf-8")
    return path


def steps_table(title: str, records: Sequence[StepRecord], devices: int) -> ResultTable:
    """A row for each kind of step and one for all."""
    kinds = sorted({r.kind for r in records})
    rows = []
    for kind in [*kinds, None] if len(kinds) > 1 else kinds:
        chosen = [r for r in records if kind in (None, r.kind)]
        seconds = {
            name: mean(chosen, name) for name in ("step_s", "rollout_s", "reward_s", "train_s", "update_s")
        }
        generated = sum(r.generated for r in chosen)
        busy = sum(r.busy_device_s for r in chosen) / (devices * max(1e-9, sum(r.rollout_s for r in chosen)))
        rows.append(
            (
                kind or "all",
                str(len(chosen)),
                *(f"{value:.1f}" for value in seconds.values()),
                f"{sum(r.wasted for r in chosen) / max(1, generated):.1%}",
                f"{mean(chosen, 'preemptions'):.0f}",
                f"{mean(chosen, 'longest_trained'):.0f}",
                f"{busy:.0%}",
            )
        )
    columns = ("steps", "number", "step s", "rollout", "reward", "train", "update")
    return ResultTable(
        title, (*columns, "tokens wasted", "preemptions", "longest", "engines busy"), rows,
        (
            "means of simulated steps; rollout ends when the last engine is idle, reward and train: what is left then",
        ),
    )  # fmt: skip


def write_timeline(path: Path, records: Sequence[StepRecord], trace: Sequence[TracePoint]) -> Path:
    """Phases of each step and curves of the devices, in virtual seconds since the start; opens in ui.perfetto.dev."""
    path.unlink(missing_ok=True)
    clock_s = 0.0
    timeline = Timeline(path, "simulation", clock=lambda: clock_s)
    with contextlib.closing(timeline):
        for record in records:
            clock_s = record.starts_s
            with timeline.phase(f"step {record.step} ({record.kind})", "steps", degree=record.degree):
                for name in ("rollout", "reward", "train", "update"):
                    with timeline.phase(name, "phases"):
                        clock_s += getattr(record, f"{name}_s")
            if record.released_after_s is not None:
                clock_s = record.starts_s + record.released_after_s
                with timeline.phase("stream training on half the engines", "stream"):
                    clock_s = record.starts_s + record.rollout_s
        for point in trace:
            clock_s = point.t_s
            timeline.counter("devices that generate", point.generating_devices)
            timeline.counter("devices that train", point.training_devices)
            timeline.counter("running responses", point.running)
    return path


def write_plot(path: Path, trace: Sequence[TracePoint], devices: int, title: str) -> Path:
    """Devices that generate and train over time, and running responses, as one HTML file."""
    from plotly.subplots import make_subplots

    seconds = [p.t_s for p in trace]
    figure = make_subplots(rows=2, cols=1, shared_xaxes=True, subplot_titles=["devices", "running responses"])
    for name, values in (
        ("generate", [p.generating_devices for p in trace]),
        ("train", [p.training_devices for p in trace]),
    ):
        figure.add_scatter(
            x=seconds, y=values, name=name, stackgroup="devices", line={"shape": "hv"}, row=1, col=1
        )
    figure.add_scatter(
        x=seconds, y=[p.running for p in trace], name="running", line={"shape": "hv"}, row=2, col=1
    )
    figure.update_yaxes(range=[0, devices], row=1, col=1)
    figure.update_xaxes(title="virtual seconds", row=2, col=1)
    figure.update_layout(height=650, title=title)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.write_html(path, include_plotlyjs=True)
    return path
