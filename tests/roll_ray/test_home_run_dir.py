"""Where a run is written, and what happens when something is there already."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path

import pytest

from roll_ray.errors import RollRayError, SettingsError
from roll_ray.home import home, inside_ray_job, models_dir, resolve_run_dir
from roll_ray.settings import RunSettings
from roll_ray.tracking.run_lock import held

NOW = datetime(2030, 1, 2, 3, 4, 5)


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("ROLL_RAY_HOME", str(tmp_path / "home"))


def settings(**given: object) -> RunSettings:
    return RunSettings.model_validate({"model": "m", **given})


def checkpoint(folder: Path, step: int = 3) -> Path:
    (folder / "checkpoints" / f"step-{step:06d}").mkdir(parents=True)
    (folder / "checkpoints" / f"step-{step:06d}" / "manifest.json").write_text("{}")
    return folder


def test_home_is_the_users_data_folder_unless_the_variable_names_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert models_dir() == tmp_path / "home" / "models"
    monkeypatch.delenv("ROLL_RAY_HOME")
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    assert home() == tmp_path / "data" / "roll-ray"


def test_a_run_goes_below_the_folder_it_was_started_in(tmp_path: Path) -> None:
    place = resolve_run_dir(settings(), "grpo", in_ray_job=False, now=NOW)
    assert (place.folder, place.name) == (tmp_path / "runs" / "grpo-20300102-030405", "grpo-20300102-030405")
    assert not place.folder.exists(), "nothing is made"


def test_a_ray_job_writes_outside_the_working_directory_that_ray_deletes(tmp_path: Path) -> None:
    place = resolve_run_dir(settings(run_name="a"), "grpo", in_ray_job=True)
    assert place.folder == tmp_path / "home" / "runs" / "a"


def test_a_relative_run_dir_in_a_ray_job_is_an_error() -> None:
    with pytest.raises(SettingsError, match="relative"):
        resolve_run_dir(settings(run_dir="out"), "grpo", in_ray_job=True)


def test_a_submitted_job_is_recognised_by_the_variable_that_rays_supervisor_sets() -> None:
    from ray._private.runtime_env.constants import RAY_JOB_CONFIG_JSON_ENV_VAR

    assert inside_ray_job({RAY_JOB_CONFIG_JSON_ENV_VAR: "{}"})
    assert not inside_ray_job({})


def test_a_run_name_that_exists_is_an_error_without_resume(tmp_path: Path) -> None:
    checkpoint(tmp_path / "runs" / "a")
    with pytest.raises(SettingsError, match="exists"):
        resolve_run_dir(settings(run_name="a"), "grpo", in_ray_job=False)
    assert resolve_run_dir(settings(run_name="a", resume=True), "grpo", in_ray_job=False).resumes


def test_a_run_with_finished_steps_and_no_checkpoint_is_not_written_over(tmp_path: Path) -> None:
    (tmp_path / "runs" / "a").mkdir(parents=True)
    (tmp_path / "runs" / "a" / "metrics.jsonl").write_text('{"step": 1}\n')
    with pytest.raises(SettingsError, match="exists"):
        resolve_run_dir(settings(run_name="a"), "grpo", in_ray_job=False)


def test_a_run_that_never_finished_a_step_can_be_started_again(tmp_path: Path) -> None:
    (tmp_path / "runs" / "a").mkdir(parents=True)
    (tmp_path / "runs" / "a" / "run.json").write_text("{}")
    assert not resolve_run_dir(settings(run_name="a"), "grpo", in_ray_job=False).resumes


def test_a_start_that_was_killed_in_its_first_moment_leaves_the_name_usable(tmp_path: Path) -> None:
    (tmp_path / "runs" / "a").mkdir(parents=True)
    (tmp_path / "runs" / "a" / "run.lock").write_text("")
    assert not resolve_run_dir(settings(run_name="a"), "grpo", in_ray_job=False).resumes


def test_a_run_that_is_under_way_is_said_to_be(tmp_path: Path) -> None:
    folder = tmp_path / "runs" / "a"
    with held(folder):
        checkpoint(folder)
        for given in (
            {"run_name": "a"},
            {"run_name": "a", "resume": True},
            {"resume": True, "run_dir": folder},
        ):
            with pytest.raises(RollRayError, match=f"the run {folder} is under way"):
                resolve_run_dir(settings(**given), "grpo", in_ray_job=False)


def test_a_folder_of_something_else_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("x")
    with pytest.raises(SettingsError, match="not a run"):
        resolve_run_dir(settings(run_dir=tmp_path), "grpo", in_ray_job=False)


def test_resume_on_the_first_launch_starts_fresh_and_says_so() -> None:
    place = resolve_run_dir(settings(resume=True, run_name="a"), "grpo", in_ray_job=False)
    assert not place.resumes
    assert "starting fresh" in place.note


def test_resume_without_a_name_goes_on_with_the_newest_run_of_the_recipe(tmp_path: Path) -> None:
    for day in (1, 2):
        checkpoint(tmp_path / "runs" / f"grpo-2030010{day}-000000")
    checkpoint(tmp_path / "runs" / "sft-20300109-000000")
    (tmp_path / "runs" / "grpo-20300103-000000").mkdir()
    place = resolve_run_dir(settings(resume=True), "grpo", in_ray_job=False, now=NOW)
    assert place.resumes
    assert place.name == "grpo-20300102-000000"
    assert not resolve_run_dir(settings(resume=True), "dapo", in_ray_job=False, now=NOW).resumes


def test_a_run_name_that_is_a_path_is_an_error() -> None:
    with pytest.raises(SettingsError, match="not a folder name"):
        resolve_run_dir(settings(run_name="../x"), "grpo", in_ray_job=False)
