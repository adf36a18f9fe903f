"""report.html: curves, warnings, settings and answers of a run in one file, made from the run folder alone."""

from __future__ import annotations

import html
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from roll_ray.settings_io import flat
from roll_ray.settings_values import shown
from roll_ray.tracking.jsonl import read_lines
from roll_ray.tracking.metrics import SECTIONS, in_order, metric_of
from roll_ray.tracking.run_folder import (
    TRAJECTORIES,
    WARNINGS,
    Failure,
    RunRecord,
    read_failure,
    read_metrics,
    read_record,
    read_settings_of,
)
from roll_ray.tracking.run_lock import writer_of

MAX_TRAJECTORIES = 60
STUDY_TABLE = "results.md"
"""A folder with this file is that of a study: many runs, each in a folder of its own, compared in this table."""
STUDY_CURVES = "curves.html"

_BREAKDOWN = ("rollout_s", "train_s", "update_s", "control_s")
_LOG_SCALE = frozenset({"logprob_difference_max", "logprob_difference_mean", "learning_rate"})
_STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; max-width: 75rem; margin: 2rem auto; padding: 0 1rem; color: #222 }
h1 { font-size: 1.5rem } h2 { font-size: 1.15rem; margin-top: 2.5rem; border-bottom: 1px solid #ddd }
.charts { display: grid; grid-template-columns: repeat(auto-fill, minmax(22rem, 1fr)); gap: 1rem }
.meaning { color: #666; font-size: .85rem }
table { border-collapse: collapse; width: 100%; font-size: .85rem }
td, th { border-bottom: 1px solid #eee; padding: .3rem .6rem; text-align: left; vertical-align: top }
pre { white-space: pre-wrap; margin: 0; font-size: .8rem } .warning { background: #fff4d6; padding: .6rem 1rem }
.failure { background: #ffe1dd; padding: .6rem 1rem }
"""


def write_report(folder: Path) -> Path:
    """Write `report.html` into the folder of a run, whatever it has got to, and give its path."""
    record, metrics = read_record(folder), read_metrics(folder)
    parts = [_heading(folder, record, metrics, read_failure(folder))]
    if _is_study(folder):
        parts.append(_study(folder))
    else:
        parts += [
            _warnings(list(read_lines(folder / WARNINGS))),
            _curves(metrics),
            _trajectories(list(read_lines(folder / TRAJECTORIES))),
        ]
    parts.append(_settings(read_settings_of(folder)))
    path = folder / "report.html"
    title = html.escape(f"roll-ray: {folder.name}")
    path.write_text(
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>{title}</title>'
        f"<style>{_STYLE}</style></head>\n<body>\n" + "\n".join(parts) + "\n</body></html>\n",
        encoding="utf-8",
    )
    return path


def how_it_ended(folder: Path) -> list[str]:
    """What to know before opening the page: that no step was finished, and the error that ended the run."""
    failure, lines = read_failure(folder), []
    if not _finished_steps(read_metrics(folder)) and not _is_study(folder):
        lines.append("no step was finished")
    if failure is not None:
        lines.append(f"the run ended with an error, {failure.when}:\n{failure.text}")
    elif lines:
        writer = writer_of(folder)
        lines.append(
            f"the run is under way ({writer})"
            if writer
            else "no error is recorded: the run was interrupted, or killed from outside"
        )
    return lines


def _finished_steps(metrics: Sequence[Mapping[str, Any]]) -> list[int]:
    """Without step 0, which is the evaluation before the first."""
    return [row["step"] for row in metrics if row["step"] > 0]


def _is_study(folder: Path) -> bool:
    return (folder / STUDY_TABLE).is_file()


def _study(folder: Path) -> str:
    table = html.escape((folder / STUDY_TABLE).read_text(encoding="utf-8"))
    return (
        f'<h2>Results</h2><pre>{table}</pre>\n<p><a href="{STUDY_CURVES}">Curves</a>; '
        'every run has a folder below <a href="runs/">runs</a>.</p>'
    )


def _heading(
    folder: Path, record: RunRecord, metrics: Sequence[Mapping[str, Any]], failure: Failure | None
) -> str:
    lines = [
        f"Recipe {record.recipe}, roll-ray {record.version}, last started {record.started}.",
        f"Command: {' '.join(record.command)}",
    ]
    accuracy = [row["heldout_accuracy"] for row in metrics if row.get("heldout_accuracy") is not None]
    if accuracy:
        lines.append(f"Held-out accuracy: {accuracy[0]:.3f} at first, {accuracy[-1]:.3f} at last.")
    steps = _finished_steps(metrics)
    none = "No step is finished yet." if failure is None else "No step was finished."
    if not _is_study(folder):
        lines.append(f"Last finished step: {steps[-1]}." if steps else none)
    return (
        f"<h1>{html.escape(folder.name)}</h1>\n"
        + _failure(failure)
        + "\n".join(f"<p>{html.escape(line)}</p>" for line in lines)
    )


def _failure(failure: Failure | None) -> str:
    if failure is None:
        return ""
    text = html.escape(failure.trace or failure.text)
    return f'<div class="failure">The run ended with an error, {failure.when}:<pre>{text}</pre></div>\n'


def _warnings(rows: Sequence[Mapping[str, Any]]) -> str:
    if not rows:
        return "<h2>Warnings</h2><p>None.</p>"
    items = (f'<p class="warning">step {r["step"]}:<pre>{html.escape(r["text"])}</pre></p>' for r in rows)
    return "<h2>Warnings</h2>\n" + "\n".join(items)


def _curves(metrics: Sequence[Mapping[str, Any]]) -> str:
    """A chart for each metric that was measured, by section; the first one carries the plotting library."""
    if not metrics:
        return "<h2>Curves</h2><p>There is nothing to draw yet.</p>"
    from plotly.offline import get_plotlyjs  # a second to load, 5 MB to embed: only where it is used

    out = [f"<script>{get_plotlyjs()}</script>"]
    measured = in_order(_measured(metrics))
    for section in SECTIONS:
        names = [name for name in measured if metric_of(name).section == section]
        charts = [_chart(metrics, name) for name in names]
        if section == "speed":
            charts.insert(0, _breakdown(metrics))
        if charts:
            out.append(
                f'<h2>{html.escape(section.capitalize())}</h2><div class="charts">{"".join(charts)}</div>'
            )
    return "\n".join(out)


def _measured(metrics: Sequence[Mapping[str, Any]]) -> set[str]:
    """What has a value at some step."""
    return {name for row in metrics for name, value in row.items() if value is not None}


def _chart(metrics: Sequence[Mapping[str, Any]], name: str) -> str:
    import plotly.graph_objects as go

    points = [(row["step"], row[name]) for row in metrics if row.get(name) is not None]
    mode = "lines+markers" if len(points) < 40 else "lines"
    figure = go.Figure(go.Scatter(x=[p[0] for p in points], y=[p[1] for p in points], mode=mode))
    metric = metric_of(name)
    return _figure_html(
        figure, f"{name} [{metric.unit}]" if metric.unit else name, metric.meaning, name in _LOG_SCALE
    )


def _breakdown(metrics: Sequence[Mapping[str, Any]]) -> str:
    import plotly.graph_objects as go

    measured = _measured(metrics)
    names = [n for n in _BREAKDOWN if n in measured]
    if not names:
        return ""
    steps = [row["step"] for row in metrics]
    figure = go.Figure(
        [go.Scatter(x=steps, y=[row.get(n) for row in metrics], name=n, stackgroup="step") for n in names]
    )
    return _figure_html(
        figure, "where the step's time goes [s]", "Stacked parts of the step's wall time.", False
    )


def _figure_html(figure: Any, title: str, meaning: str, log_scale: bool) -> str:
    figure.update_layout(
        title=title, height=280, margin={"l": 50, "r": 10, "t": 40, "b": 35}, template="plotly_white"
    )
    if log_scale:
        figure.update_yaxes(type="log", exponentformat="e")
    chart = figure.to_html(full_html=False, include_plotlyjs=False, config={"displaylogo": False})
    return f'<div>{chart}<div class="meaning">{html.escape(meaning)}</div></div>'


def _trajectories(rows: Sequence[Mapping[str, Any]]) -> str:
    columns = ("step", "prompt", "response", "reference", "reward", "reason")
    last = rows[-MAX_TRAJECTORIES:]
    body = _table(columns, ([_reward(row) if c == "reward" else row.get(c) for c in columns] for row in last))
    note = (
        f"The last {len(last)} of {len(rows)} kept; all are in {TRAJECTORIES}." if rows else "None kept yet."
    )
    return f"<h2>Answers</h2><p>{note}</p>" + (body if rows else "")


def _reward(row: Mapping[str, Any]) -> str:
    return "invalid" if row["reward"] is None else f"{row['reward']:g}"


def _settings(plain: Mapping[str, Any]) -> str:
    return "<h2>Settings</h2>" + _table(("setting", "value"), flat(plain).items())


def _table(columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    head = "".join(f"<th>{html.escape(c)}</th>" for c in columns)
    body = "\n".join(
        "<tr>" + "".join(f"<td><pre>{html.escape(shown(v))}</pre></td>" for v in row) + "</tr>"
        for row in rows
    )
    return f"<table><thead><tr>{head}</tr></thead><tbody>\n{body}\n</tbody></table>"
