"""SIGKILL to any worker in mid rollout: the run goes on, and every batch is whole and on-policy (case 33)."""

import asyncio
import json

import pytest

from roll_ray.recording import load_batch
from tests.live.runs import (
    P,
    R,
    kill,
    leftovers,
    letter_task,
    metrics_of,
    run_pipeline,
    settings_for,
    step_reached,
)

STEPS = 22


@pytest.fixture(scope="module")
def sabotaged(letter_model, tmp_path_factory):
    """A run in which an engine, a runner, a reward worker, a store and the manager are killed, one after another."""
    folder = tmp_path_factory.mktemp("sabotaged")
    settings = settings_for(letter_model, folder / "run", f"max_steps={STEPS}", f"record={folder / 'record'}")
    killed = []

    async def sabotage(pipeline):
        await step_reached(settings.run_dir, 1)
        staff = pipeline.staff
        assert len(leftovers("run")) > 5, "the check for what is left behind must see the workers of a run"
        for victim in (staff.engines[0], staff.runners[0], staff.rewards[0], staff.stores[0], staff.manager):
            steps = metrics_of(settings.run_dir)[-1]["step"]
            await asyncio.sleep(0.05)  # into the rollout of the next step
            await kill(victim)
            killed.append((steps, victim.name))
            await step_reached(settings.run_dir, steps + 3)

    result = run_pipeline(settings, letter_task(), sabotage)
    return folder, result, killed


@pytest.mark.engine
def test_the_run_goes_on_to_its_last_step(sabotaged):
    _, result, killed = sabotaged
    assert [name for _, name in killed] == [
        "rollout-0",
        "runner-0",
        "reward-default-0",
        "store-0",
        "rollout-manager",
    ]
    assert result.step == STEPS


@pytest.mark.engine
def test_no_engine_repeats_what_another_sampled(sabotaged):
    """All prompts are equal here, so engines with equal random numbers would give equal responses."""
    folder, _, _ = sabotaged
    batches = [load_batch(path) for path in (folder / "record" / "step-000001").glob("*.npz")]
    responses = [
        tuple(b.tokens_T[b.token_span(i)][b.policy_mask_T[b.token_span(i)]])
        for b in batches
        for i in range(len(b))
    ]
    long = [r for r in responses if len(r) >= 4]
    assert len(long) >= P * R // 2
    assert len(set(long)) == len(long)
    tails = {r[-4:] for r in long}
    assert len(tails) == len(long), "the same words after another beginning"


@pytest.mark.engine
def test_every_batch_is_whole_and_every_sample_is_trained_once(sabotaged):
    folder, _, _ = sabotaged
    seen = set()
    for step in range(1, STEPS + 1):
        receipts = json.loads((folder / "record" / f"step-{step:06d}" / "receipts.json").read_text())
        ids = [json.dumps(r["sample"]) for r in receipts]
        assert len(ids) == len(set(ids)) == P * R
        assert seen.isdisjoint(ids)
        seen.update(ids)


@pytest.mark.engine
def test_every_token_was_sampled_by_the_weights_of_its_step(sabotaged):
    folder, _, _ = sabotaged
    for step in range(1, STEPS + 1):
        for file in (folder / "record" / f"step-{step:06d}").glob("*.npz"):
            batch = load_batch(file)
            assert set(batch.versions_T[batch.policy_mask_T].tolist()) == {step - 1}


@pytest.mark.engine
def test_engine_and_trainer_agree_after_every_restart(sabotaged):
    folder, _, _ = sabotaged
    assert max(row["logprob_difference_max"] for row in metrics_of(folder / "run")) < 1e-4


@pytest.mark.engine
def test_nothing_is_left_behind(sabotaged):
    assert leftovers("run") == []
