"""A run with tail batching: aborts stop at vLLM, and the queue outlives the run that is stopped and resumed."""

import json

import pytest

from roll_ray.checkpoint import CheckpointFolder
from roll_ray.recording import load_batch
from tests.live.runs import P, R, letter_task, metrics_of, run_pipeline, settings_for

MAX_TOKENS = 64


@pytest.fixture(scope="module")
def stopped_and_resumed(letter_model, tmp_path_factory):
    """Two short rounds of 6 prompts x 6, of which 4 x 4 are trained, then the end; resumed for the long round and
    another short one. With random weights responses end at random."""
    folder = tmp_path_factory.mktemp("tail")

    def run(*words):
        settings = settings_for(
            letter_model,
            folder / "run",
            "scheduler=tail_batching",
            "tail_batching.eta_prompts=1.5",
            "tail_batching.eta_responses=1.5",
            f"record={folder / 'record'}",
            *words,
        )
        sampling = settings.sampling.model_copy(update={"max_new_tokens": MAX_TOKENS})
        run_pipeline(settings.model_copy(update={"sampling": sampling}), letter_task())

    run("max_steps=2")
    checkpoint, _ = CheckpointFolder(folder / "run", 2).latest()
    queue = {(prompt, n) for prompt, n, *_ in checkpoint.state["rollouts"]["manager"]["scheduler"]["queue"]}
    run("max_steps=4", "resume=true")
    return folder, queue


def visits_of(folder, step):
    receipts = json.loads((folder / "record" / f"step-{step:06d}" / "receipts.json").read_text())
    assert len(receipts) == P * R
    return {tuple(receipt["sample"][0]) for receipt in receipts}


@pytest.mark.engine
def test_the_long_round_of_the_resumed_run_trains_what_the_stopped_one_deferred(stopped_and_resumed):
    folder, queue = stopped_and_resumed
    steps = [visits_of(folder, step) for step in range(1, 5)]
    assert len(queue) == P
    assert steps[2] == queue
    assert sum(map(len, steps)) == 4 * P == len(set.union(*steps)), "no visit is trained twice"


@pytest.mark.engine
def test_every_token_was_sampled_by_the_weights_of_its_step_also_those_of_the_queue(stopped_and_resumed):
    folder, _ = stopped_and_resumed
    for step in range(1, 5):
        for file in (folder / "record" / f"step-{step:06d}").glob("*.npz"):
            batch = load_batch(file)
            assert set(batch.versions_T[batch.policy_mask_T].tolist()) == {step - 1}


@pytest.mark.engine
def test_what_is_over_launched_is_stopped_in_mid_generation_and_counted_as_waste(stopped_and_resumed):
    folder, _ = stopped_and_resumed
    lines = (folder / "run" / "events.jsonl").read_text().splitlines()
    events = [event for line in lines for event in json.loads(line).get("events", [])]
    aborted = [n_tokens for name, *_, n_tokens in events if name == "Aborted"]
    assert any(0 < n_tokens < MAX_TOKENS for n_tokens in aborted)
    rows = [row for row in metrics_of(folder / "run") if row["step"] > 0]
    assert [row["deferred_prompts"] for row in rows] == [P // 2, P, 0, P // 2]
    assert sum(row["wasted_tokens"] for row in rows) > 0
    assert 0 < rows[-1]["kept_length_ratio"] < 2
