"""What a run writes down, a step at a time, and what is cut on resume."""

from __future__ import annotations

import json
import os
import re
import socket
from pathlib import Path

import pytest

from roll_ray.errors import RollRayError
from roll_ray.settings import RunSettings
from roll_ray.settings_values import to_yaml
from roll_ray.tracking import metrics as registry
from roll_ray.tracking.report import how_it_ended, write_report
from roll_ray.tracking.run_folder import (
    RunFolder,
    RunRecord,
    begin,
    last_heldout_accuracy,
    prepare,
    read_metrics,
    read_record,
    read_settings_of,
    record_failure,
)
from roll_ray.tracking.run_lock import held, writer_of
from roll_ray.tracking.tensorboard_sink import TensorBoardSink
from roll_ray.tracking.trajectories import Trajectory

SHOWN = Trajectory(
    "p1",
    "maths",
    "What is 1 + 1?",
    "<b>3</b>",
    "2",
    0.0,
    "3 is not 2",
    "3",
    "stop",
    4,
    weight_version=1,
    attempt=0,
)


def prepared(folder: Path) -> RunFolder:
    prepare(folder, RunSettings(model="m"), RunRecord.now("toy", folder / "toy.py"))
    return RunFolder(folder)


def test_a_line_a_step_with_the_required_metrics_null_where_missing(tmp_path: Path) -> None:
    run = RunFolder(tmp_path)
    run.record(1, {"reward_mean": 0.5})
    (line,) = (tmp_path / "metrics.jsonl").read_text().splitlines()  # flushed, though the run is not closed
    row = json.loads(line)
    assert row["step"] == 1
    assert row["reward_mean"] == 0.5
    assert {name: row[name] for name in registry.REQUIRED if name != "reward_mean"} == {
        "heldout_accuracy": None,
        "tokens_per_s": None,
        "logprob_difference_max": None,
        "weight_version": None,
    }


def test_an_undeclared_metric_is_an_error_and_writes_nothing(tmp_path: Path) -> None:
    run = RunFolder(tmp_path)
    with pytest.raises(registry.UndeclaredMetricError, match="los, rewrd"):
        run.record(1, {"rewrd": 0.5, "los": 1.0, "loss": 1.0})
    assert read_metrics(tmp_path) == []


def test_a_metric_is_declared_once() -> None:
    loss = registry.DECLARED["loss"]
    again = registry.declare(loss.name, loss.unit, loss.reduction, loss.meaning, loss.section)
    assert again == loss
    with pytest.raises(ValueError, match="declared twice"):
        registry.declare("loss", "kg", "sum", "Something else.", "speed")


def test_a_number_that_is_not_finite_is_null_and_named(tmp_path: Path) -> None:
    RunFolder(tmp_path).record(1, {"loss": float("nan"), "grad_norm": float("inf"), "entropy": 1.0})
    text = (tmp_path / "metrics.jsonl").read_text()
    row = json.loads(text, parse_constant=lambda word: pytest.fail(f"{word} is not JSON"))
    assert (row["loss"], row["grad_norm"], row["entropy"]) == (None, None, 1.0)
    assert row["not_finite"] == ["loss", "grad_norm"]


def test_resume_cuts_the_lines_of_steps_that_are_done_again(tmp_path: Path) -> None:
    run = RunFolder(tmp_path)
    for step in range(1, 6):
        run.record(step, {"reward_mean": step / 10})
        run.record_trajectories(step, [SHOWN])
        run.record_warning(step, "w")
    run.close()
    with (tmp_path / "metrics.jsonl").open("a") as file:
        file.write('{"step": 6, "rew')  # a crash in the middle of a line
    resumed = RunFolder(tmp_path, resumed_step=3)
    resumed.record(4, {"reward_mean": 0.9})
    assert [(r["step"], r["reward_mean"]) for r in read_metrics(tmp_path)] == [
        (1, 0.1),
        (2, 0.2),
        (3, 0.3),
        (4, 0.9),
    ]
    for name in ("trajectories", "warnings"):
        lines = (tmp_path / f"{name}.jsonl").read_text().splitlines()
        assert [json.loads(line)["step"] for line in lines] == [1, 2, 3]


def test_a_fresh_run_in_a_folder_without_finished_steps_starts_empty(tmp_path: Path) -> None:
    (tmp_path / "trajectories.jsonl").write_text('{"step": 1}\n')
    RunFolder(tmp_path)
    assert (tmp_path / "trajectories.jsonl").read_text() == ""


def test_settings_and_record_are_read_back(tmp_path: Path) -> None:
    prepared(tmp_path)
    assert read_settings_of(tmp_path) == RunSettings(model="m").plain()
    assert read_record(tmp_path).recipe == "toy"


def test_a_folder_without_a_run_is_said_to_be_none(tmp_path: Path) -> None:
    with pytest.raises(RollRayError, match="not the folder of a run"):
        read_record(tmp_path)
    (tmp_path / "run.json").write_text('{"recipe": "x"}')
    with pytest.raises(RollRayError, match="not the folder of a run"):
        read_record(tmp_path)


def test_a_run_folder_that_cannot_be_made_is_an_error_for_the_user(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(RollRayError, match="cannot be written"):
        prepared(tmp_path / "file" / "run")


def test_tensorboard_reads_the_scalars_back(tmp_path: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    sink = TensorBoardSink(tmp_path)
    for step in (0, 1, 2):
        sink.record(step, {"reward_mean": step / 4, "heldout_accuracy": None})
    # not closed: a killed run has its steps on disk all the same
    TensorBoardSink(tmp_path, resumed_step=1).record(2, {"reward_mean": 0.75})
    events = EventAccumulator(str(tmp_path)).Reload()
    assert events.Tags()["scalars"] == ["learning/reward_mean"]
    assert [(e.step, e.value) for e in events.Scalars("learning/reward_mean")] == [
        (0, 0.0),
        (1, 0.25),
        (2, 0.75),
    ]


def test_the_report_is_one_file_made_from_the_run_folder_alone(tmp_path: Path) -> None:
    run = prepared(tmp_path)
    for step in range(4):
        run.record(
            step, {"reward_mean": step / 4, "heldout_accuracy": 0.1 * step, "rollout_s": 1.0, "train_s": 2.0}
        )
    run.record_trajectories(1, [SHOWN])
    run.record_warning(3, "all rewards are 0")
    run.close()
    page = write_report(tmp_path).read_text()
    assert "Held-out accuracy: 0.000 at first, 0.300 at last." in page
    assert "all rewards are 0" in page
    assert "3 is not 2" in page
    assert "&lt;b&gt;3&lt;/b&gt;" in page, "what a model writes is text, never markup"
    assert "samples_per_prompt" in page
    assert "where the step" in page
    assert not re.search(r"<(script|link|img)[^>]+(src|href)=", page), "nothing is loaded from elsewhere"


def test_a_report_of_a_run_without_a_finished_step_says_so(tmp_path: Path) -> None:
    prepared(tmp_path).record(0, {"heldout_accuracy": 0.1})
    assert "No step is finished yet." in write_report(tmp_path).read_text()
    assert how_it_ended(tmp_path) == [
        "no step was finished",
        "no error is recorded: the run was interrupted, or killed from outside",
    ]


def test_a_report_of_a_run_that_failed_begins_with_the_failure(tmp_path: Path) -> None:
    prepared(tmp_path)
    record_failure(tmp_path, RollRayError("no <room>", why="it is full", next_step="mend it"))
    page = write_report(tmp_path).read_text()
    assert "no &lt;room&gt;\n  why:  it is full" in page
    assert page.index("no &lt;room&gt;") < page.index("Recipe toy") < page.index("No step was finished.")
    assert how_it_ended(tmp_path)[0] == "no step was finished"
    assert how_it_ended(tmp_path)[1].endswith("no <room>\n  why:  it is full\n  next: mend it")


def test_the_failure_of_an_earlier_start_is_forgotten(tmp_path: Path) -> None:
    prepared(tmp_path).record(1, {})
    record_failure(tmp_path, ZeroDivisionError("ours"))
    assert how_it_ended(tmp_path)[0].endswith("ZeroDivisionError: ours")
    prepare(tmp_path, RunSettings(model="m"), RunRecord.now("toy", tmp_path / "toy.py"))
    assert how_it_ended(tmp_path) == []


def test_the_report_shows_settings_as_yaml_has_them(tmp_path: Path) -> None:
    prepared(tmp_path)
    page = write_report(tmp_path).read_text()
    for name, value in {"data": "null", "deterministic": "false", "devices.rollout": "[0, 1]"}.items():
        assert f"<td><pre>{name}</pre></td><td><pre>{value}</pre></td>" in page


def test_the_last_known_accuracy_is_that_of_the_last_evaluation(tmp_path: Path) -> None:
    run = RunFolder(tmp_path)
    assert last_heldout_accuracy(tmp_path) is None
    for step, accuracy in enumerate([0.1, None, 0.0, None]):
        run.record(step, {"heldout_accuracy": accuracy})
    assert last_heldout_accuracy(tmp_path) == 0.0


def test_settings_yaml_can_be_given_back_to_a_recipe(tmp_path: Path) -> None:
    from roll_ray.settings_io import read_settings

    settings = RunSettings(model="m", learning_rate=1e-6, run_name="1e3")
    (tmp_path / "s.yaml").write_text(to_yaml(settings.plain()))
    assert read_settings(RunSettings, [f"@{tmp_path}/s.yaml"]) == settings


def test_a_folder_that_a_run_is_writing_is_refused_until_that_run_has_ended(tmp_path: Path) -> None:
    folder = tmp_path / "runs" / "a"
    with held(folder):
        with pytest.raises(RollRayError, match="is under way") as raised, held(folder):
            pass
        assert f"process {os.getpid()} on {socket.gethostname()}" in raised.value.why
        assert f"kill -INT {os.getpid()}" in raised.value.next_step
        assert writer_of(folder) is not None
    assert writer_of(folder) is None
    with held(folder):
        pass


def fail_in(folder: Path, *written: str, started: bool = False) -> None:
    """A start that writes these files and fails."""

    def run() -> None:
        with held(folder):
            prepare(folder, RunSettings(model="m"), RunRecord.now("toy", folder / "toy.py"))
            if started:
                begin(folder)
            for name in written:
                (folder / name).parent.mkdir(parents=True, exist_ok=True)
                (folder / name).write_text("")
            record_failure(folder, RollRayError("no luck"))
            raise RollRayError("no luck")

    with pytest.raises(RollRayError, match="no luck"):
        run()


def test_a_folder_in_which_nothing_ran_is_gone_after_a_fault(tmp_path: Path) -> None:
    fail_in(tmp_path / "runs" / "a")
    assert not (tmp_path / "runs" / "a").exists()


@pytest.mark.parametrize("kept", ["events.jsonl", "notes.txt", "checkpoints/step-000001/manifest.json"])
def test_a_folder_with_anything_else_in_it_is_kept_after_a_fault(tmp_path: Path, kept: str) -> None:
    fail_in(tmp_path / "a", kept)
    assert (tmp_path / "a" / kept).exists()
    assert how_it_ended(tmp_path / "a")[1].endswith("no luck")


def test_a_folder_that_was_there_before_is_kept_after_a_fault(tmp_path: Path) -> None:
    fail_in(tmp_path)
    assert tmp_path.is_dir()


def test_a_folder_is_kept_once_workers_start(tmp_path: Path) -> None:
    fail_in(tmp_path / "a", started=True)
    assert how_it_ended(tmp_path / "a")[1].endswith("no luck")


def test_a_place_where_no_folder_can_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for place in (tmp_path / "file" / "run", Path("/proc/nowhere/run")):
        with pytest.raises(RollRayError, match=f"the run folder {place} cannot be written"), held(place):
            pass
