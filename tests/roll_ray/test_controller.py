"""The loop: order of deeds, one division per optimizer step, resume, interruption."""

import asyncio
import contextlib

import pytest

from roll_ray.checkpoint import CheckpointFolder
from roll_ray.controller import Controller
from roll_ray.errors import RollRayError
from roll_ray.parts import MiniBatch, Part
from roll_ray.receipts import Cut


class Journal:
    """Plays every part of a run and writes down what it was asked."""

    def __init__(self, tmp_path, mini_batches=1, max_steps=3, every=0):
        self.deeds = []
        self.mini_batches = mini_batches
        self.position = 0
        self.hang = asyncio.Event()
        self.hangs_at = None
        self.breaks_at = None
        self.evaluation_hangs_at = None
        self.controller = Controller(
            max_steps=max_steps,
            rollouts=self,
            score=self.score,
            trainer=self.Trainer(self.deeds),
            publish=self.publish,
            evaluate=self.evaluate,
            checkpoints=CheckpointFolder(tmp_path, keep=9),
            checkpoint_every_steps=every,
            tracker=self,
        )

    class Trainer:
        def __init__(self, deeds):
            self.deeds = deeds

        async def accumulate(self, mini_batch):
            self.deeds.append("accumulate")

        async def step(self, denominator):
            self.deeds.append(("step", denominator))

        async def save(self, folder):
            self.deeds.append("save")

        async def load(self, folder):
            self.deeds.append("load")

    async def parts(self, step):
        self.position += 1
        if step == self.hangs_at:
            await self.hang.wait()
        if step == self.breaks_at:
            raise RollRayError("every reward is invalid")
        self.deeds.append(("parts", step))
        yield Part(Cut(step, ()), tuple(MiniBatch(()) for _ in range(self.mini_batches)))

    async def trained(self, version):
        self.deeds.append(("trained", version))

    async def state(self):
        return {"position": self.position}

    async def restore(self, state):
        self.position = state["position"]

    async def score(self, part):
        return [MiniBatch((), denominator=10.0 + i, closes_step=True) for i in range(len(part.mini_batches))]

    async def publish(self, version):
        self.deeds.append(("publish", version))

    async def evaluate(self, step):
        if step == self.evaluation_hangs_at:
            await self.hang.wait()
        return {"heldout_accuracy": step / 10} if step in (0, self.controller.max_steps) else {}

    def phase(self, name):
        return contextlib.nullcontext()

    def begun(self, step, evaluation):
        self.deeds.append(("begun", step))

    def step_done(self, step, part, evaluation):
        self.deeds.append(("recorded", step, dict(evaluation)))

    def interrupted(self, step):
        self.deeds.append(("interrupted", step))


def test_a_step_is_rollout_accumulate_step_publish_trained_in_this_order(tmp_path):
    journal = Journal(tmp_path, max_steps=1)
    result = asyncio.run(journal.controller.run())
    assert journal.deeds == [
        ("publish", 0),
        ("begun", 0),
        ("parts", 1),
        "accumulate",
        ("step", 10.0),
        ("publish", 1),
        ("trained", 1),
        ("recorded", 1, {"heldout_accuracy": 0.1}),
        "save",
    ]
    assert (result.step, result.interrupted) == (1, False)
    assert (result.first_evaluation, result.last_evaluation) == (
        {"heldout_accuracy": 0.0},
        {"heldout_accuracy": 0.1},
    )


def test_each_mini_batch_is_divided_by_its_own_denominator(tmp_path):
    journal = Journal(tmp_path, mini_batches=3, max_steps=1)
    asyncio.run(journal.controller.run())
    assert [d for d in journal.deeds if d[0] == "step"] == [("step", 10.0), ("step", 11.0), ("step", 12.0)]


def test_a_resumed_run_goes_on_at_the_next_step_with_the_data_position_of_the_last(tmp_path):
    first = Journal(tmp_path, max_steps=2, every=1)
    asyncio.run(first.controller.run())
    checkpoint, _ = first.controller.checkpoints.latest()
    assert checkpoint.state == {"rollouts": {"position": 2}}
    second = Journal(tmp_path, max_steps=4)
    asyncio.run(second.controller.run(resume_from=checkpoint))
    assert second.deeds[:4] == ["load", ("publish", 2), ("begun", 2), ("parts", 3)]
    assert second.position == 4


def test_an_interrupt_in_mid_rollout_saves_the_last_finished_step_and_not_the_half_one(tmp_path):
    journal = Journal(tmp_path, max_steps=5)
    journal.hangs_at = 3

    async def interrupted_run():
        run = asyncio.create_task(journal.controller.run())
        await asyncio.sleep(0.05)
        journal.controller.interrupt.set()
        return await asyncio.wait_for(run, 5)

    result = asyncio.run(interrupted_run())
    assert (result.step, result.interrupted) == (2, True)
    checkpoint, _ = journal.controller.checkpoints.latest()
    assert checkpoint.step == 2
    assert checkpoint.state == {"rollouts": {"position": 2}}


def test_a_fault_in_a_part_ends_the_run_with_that_fault(tmp_path):
    journal = Journal(tmp_path)

    async def broken(part):
        raise RuntimeError("estimator broke")

    journal.controller.score = broken
    with pytest.raises(RuntimeError, match="estimator broke"):
        asyncio.run(journal.controller.run())


def test_an_interrupt_in_mid_evaluation_still_writes_the_step_down_and_saves_it(tmp_path):
    journal = Journal(tmp_path, max_steps=5)
    journal.evaluation_hangs_at = 2

    async def interrupted_run():
        run = asyncio.create_task(journal.controller.run())
        await asyncio.sleep(0.05)
        journal.controller.interrupt.set()
        return await asyncio.wait_for(run, 5)

    result = asyncio.run(interrupted_run())
    assert (result.step, result.interrupted) == (2, True)
    assert ("recorded", 2, {}) in journal.deeds
    assert journal.controller.checkpoints.latest()[0].step == 2


def test_a_fault_in_mid_rollout_ends_the_run_with_the_last_finished_step_saved(tmp_path):
    journal = Journal(tmp_path, max_steps=5)
    journal.breaks_at = 3
    with pytest.raises(RollRayError, match="every reward is invalid"):
        asyncio.run(journal.controller.run())
    checkpoint, _ = journal.controller.checkpoints.latest()
    assert (checkpoint.step, checkpoint.state) == (2, {"rollouts": {"position": 2}})


def test_a_fault_after_an_optimizer_step_saves_nothing_since_no_finished_step_has_these_weights(tmp_path):
    journal = Journal(tmp_path, max_steps=5)
    publish = journal.publish

    async def broken(version):
        if version == 3:
            raise RollRayError("no engine took the weights")
        await publish(version)

    journal.controller.publish = broken
    with pytest.raises(RollRayError, match="no engine took"):
        asyncio.run(journal.controller.run())
    assert journal.controller.checkpoints.latest() == (None, [])


def test_a_checkpoint_that_cannot_be_written_ends_the_run_and_leaves_the_last_one_alone(tmp_path):
    journal = Journal(tmp_path, max_steps=5, every=1)
    save = journal.controller.trainer.save
    saves = []

    async def full(folder):
        saves.append(folder)
        if len(saves) == 3:
            raise RollRayError("a checkpoint could not be written")
        await save(folder)

    journal.controller.trainer.save = full
    with pytest.raises(RollRayError, match="could not be written"):
        asyncio.run(journal.controller.run())
    assert len(saves) == 3
    assert journal.controller.checkpoints.latest()[0].step == 2
    assert not list(tmp_path.glob("checkpoints/.writing-*"))


def test_an_interrupt_in_mid_training_ends_after_that_step(tmp_path):
    journal = Journal(tmp_path, max_steps=5)
    accumulate = journal.controller.trainer.accumulate

    async def interrupted_accumulate(mini_batch):
        if journal.position == 3:
            journal.controller.interrupt.set()
        await accumulate(mini_batch)

    journal.controller.trainer.accumulate = interrupted_accumulate
    result = asyncio.run(journal.controller.run())
    assert (result.step, result.interrupted) == (3, True)
    assert ("publish", 3) in journal.deeds
    checkpoint, _ = journal.controller.checkpoints.latest()
    assert (checkpoint.step, checkpoint.state) == (3, {"rollouts": {"position": 3}})
