"""A study on kept engines: each run begins from the model's own weights, and an interrupted study goes on."""

import asyncio

import pytest

from recipes.cells import Cell
from recipes.study import Study
from roll_ray.checkpoint import CheckpointFolder
from tests.live.runs import leftovers, letter_task, metrics_of, settings_for, step_reached

CELLS = [Cell("low", {}), Cell("high", {"clip_high": 0.3})]


def study(letter_model, folder):
    settings = settings_for(letter_model, folder / "study", "max_steps=4")
    evaluation = settings.evaluation.model_copy(update={"every_steps": 4})
    settings = settings.model_copy(update={"evaluation": evaluation, "learning_rate": 1e-2})
    return Study(settings, letter_task(), CELLS, range(1), folder / "recipe.py")


@pytest.fixture(scope="module")
def interrupted(letter_model, tmp_path_factory):
    """A study that is interrupted in its second run, and then goes on to its end."""
    folder = tmp_path_factory.mktemp("interrupted")
    first = study(letter_model, folder)

    async def until_the_second_run():
        run = asyncio.create_task(first.run())
        await step_reached(folder / "study/runs/high-seed0", 2)
        first.interrupt.set()
        return await run

    result = asyncio.run(until_the_second_run())
    between = CheckpointFolder(folder / "study", 1).latest()[0].state["finished"]
    end = asyncio.run(study(letter_model, folder).run())
    return folder / "study", result, between, end


@pytest.mark.engine
def test_the_interrupted_study_keeps_what_is_finished(interrupted):
    _, result, between, _ = interrupted
    assert (result.step, result.max_steps, result.interrupted) == (1, 2, True)
    assert between == ["low-seed0"]


@pytest.mark.engine
def test_it_goes_on_in_the_middle_of_the_run_and_ends(interrupted):
    folder, _, _, end = interrupted
    assert (end.step, end.max_steps, end.interrupted) == (2, 2, False)
    for name in ("low-seed0", "high-seed0"):
        assert [row["step"] for row in metrics_of(folder / "runs" / name)] == [0, 1, 2, 3, 4]
    assert "| high | 1 |" in (folder / "results.md").read_text()


@pytest.mark.engine
def test_a_kept_engine_serves_each_run_its_own_weights(interrupted):
    """The second run has versions of its own that begin anew; weights or prefix caches of the first would show."""
    folder, *_ = interrupted
    first, second = (metrics_of(folder / "runs" / name) for name in ("low-seed0", "high-seed0"))
    assert first[0]["heldout_accuracy"] == second[0]["heldout_accuracy"]  # greedy, version 0
    for rows in (first, second):
        assert [row["weight_version"] for row in rows] == [0, 1, 2, 3, 4]
        assert max(row["logprob_difference_max"] or 0 for row in rows) < 1e-4


@pytest.mark.engine
def test_nothing_is_left_behind(interrupted):
    assert leftovers("high-seed0") == leftovers("low-seed0") == []
