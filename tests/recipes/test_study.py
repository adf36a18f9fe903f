"""The study of tricks: its cells, what each changes, and the table of what came out."""

import json

import pytest

from recipes import tricks
from recipes.cells import Cell
from recipes.engine_house import engine_seed
from recipes.study import Study
from recipes.study_results import RunOutcome, table, write_results
from recipes.task import Task
from roll_ray.errors import SettingsError
from roll_ray.sample import Prompt
from roll_ray.settings_io import read_settings
from roll_ray.tracking.report import how_it_ended, write_report
from roll_ray.tracking.run_folder import RunRecord, prepare

TASK = Task([Prompt(id="p", text="x")], rewards={"default": float})


def study(tmp_path, cells, *words, seeds=(0,)):
    settings = read_settings(tricks.Settings, ["model=/models/none", *words])
    settings = settings.model_copy(update={"run_dir": tmp_path / "study", "run_name": "study"})
    return Study(settings, TASK, cells, seeds, tmp_path / "recipe.py")


def test_one_factor_at_a_time_is_lite_ppo_and_seven_single_changes(tmp_path):
    cells = tricks.cells_of("one_factor")
    assert len(cells) == 8
    assert cells[0] == Cell("lite_ppo", {})
    factors = [cell.name.split("-")[0] for cell in cells[1:]]
    assert factors == ["norm", "norm", "norm", "clip", "clip", "loss", "overlong"]
    settings = {c.name: study(tmp_path, cells)._settings_of(c, 0) for c in cells}
    base = settings["lite_ppo"]
    assert (base.adv_estimator, base.clip_high, base.aggregation) == ("lite_ppo", 0.2, "token_mean")
    assert settings["norm-nostd"].normalisation.std == "none"
    assert settings["clip-0.28"].clip_high == 0.28
    assert settings["loss-sequence"].aggregation == "seq_mean_token_mean"
    assert settings["overlong-filtered"].filters.overlong
    for name, changed in settings.items():
        same = changed.model_dump(exclude={"run_dir", "run_name"})
        differs = same != base.model_dump(exclude={"run_dir", "run_name"})
        assert differs == (name != "lite_ppo"), name


def test_the_full_grid_is_every_combination_once():
    cells = tricks.cells_of("full")
    assert len(cells) == len({c.name for c in cells}) == 4 * 3 * 2 * 2
    assert len({json.dumps(c.changes, sort_keys=True) for c in cells}) == 48


def test_seeds_go_round_outermost_and_each_run_has_a_folder_of_its_own(tmp_path):
    cells = [Cell("a", {}), Cell("b", {"clip_high": 0.3})]
    made = study(tmp_path, cells, seeds=range(2))
    assert [(cell.name, seed) for cell, seed in made.runs] == [("a", 0), ("b", 0), ("a", 1), ("b", 1)]
    settings = made._settings_of(cells[1], 1)
    assert settings.run_dir == tmp_path / "study" / "runs" / "b-seed1"
    assert (settings.seed, settings.clip_high, settings.resume) == (1, 0.3, False)


def test_a_cell_that_cannot_run_is_named_before_any_run(tmp_path):
    with pytest.raises(SettingsError, match="cell wrong: adv_estimator=gae needs values of a critic"):
        study(tmp_path, [Cell("good", {}), Cell("wrong", {"adv_estimator": "gae"})])


def test_plan_lists_the_cells_and_names_the_one_that_cannot_run():
    settings = read_settings(tricks.Settings, ["model=/models/none"])
    assert settings.plan_lines()[0] == "8 cells x 3 seeds = 24 runs of 100 steps"
    assert any(line.startswith("clip-0.28 ") and "clip_high=0.28" in line for line in settings.plan_lines())
    assert settings.plan_problems() == []
    ungrouped = read_settings(tricks.Settings, ["model=/models/none", "adv_estimator=opo"])
    assert any(problem.startswith("cell norm-group: ") for problem in ungrouped.plan_problems())


def test_each_engine_of_a_run_has_a_seed_of_its_own():
    seeds = [engine_seed(seed, rank) for seed in range(20) for rank in range(20)]
    assert len(set(seeds)) == len(seeds)
    assert all(0 <= seed < 2**31 for seed in seeds)
    assert engine_seed(3, 1) == engine_seed(3, 1)


def outcome(cell, seed, accuracies, clip=0.1):
    rows = [
        {"step": i, "heldout_accuracy": a, "clip_fraction": clip, "entropy": 1.0, "reward_mean": 0.5}
        for i, a in enumerate(accuracies)
    ]
    return RunOutcome(cell, seed, tuple(rows))


def test_the_table_has_a_row_a_cell_with_the_mean_and_the_spread_of_its_seeds(tmp_path):
    outcomes = [
        outcome("lite_ppo", 0, [0.6, None, 0.8]),
        outcome("lite_ppo", 1, [0.6, None, 0.9], clip=0.3),
        outcome("other", 0, [0.6, 0.7, 0.5]),
    ]
    rows = table(outcomes).splitlines()
    assert len(rows) == 4
    cells = [cell.strip() for cell in rows[2].split("|")[1:-1]]
    assert cells[:4] == ["lite_ppo", "2", "0.850 (0.800 to 0.900)", "0.725"]
    assert cells[5] == "0.2"  # clip fraction
    assert cells[7] == "nan"  # response length was not measured
    assert rows[3].startswith("| other | 1 | 0.500 (0.500 to 0.500) | 0.6 |")
    for path in write_results(tmp_path, outcomes):
        assert path.stat().st_size
    assert len((tmp_path / "results.csv").read_text().splitlines()) == 4
    assert "lite_ppo" in (tmp_path / "curves.html").read_text()


def test_the_report_of_a_study_is_its_table_and_does_not_speak_of_steps(tmp_path):
    prepare(tmp_path, read_settings(tricks.Settings, []), RunRecord.now("tricks", tmp_path / "tricks.py"))
    write_results(tmp_path, [outcome("lite_ppo", 0, [0.6, 0.8])])
    page = write_report(tmp_path).read_text()
    assert "| lite_ppo | 1 | 0.800" in page
    assert 'href="curves.html"' in page
    assert "No step" not in page
    assert how_it_ended(tmp_path) == []
