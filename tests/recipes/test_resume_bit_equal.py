"""Under replay, a run that stops after any step and goes on is equal, to the last bit, to one that never stopped."""

import asyncio
import contextlib

import numpy as np
import pytest
import torch
from transformers import Qwen3Config, Qwen3ForCausalLM

from recipes.rules import default_rules
from recipes.staff import trainer_spec_of
from roll_ray.actors import LocalActor, Pool
from roll_ray.batch import Batch
from roll_ray.checkpoint import CheckpointFolder
from roll_ray.controller import Controller
from roll_ray.parts import MiniBatch, Part, Share
from roll_ray.receipts import Cut, Receipt
from roll_ray.recording import Recorder, ReplayRollouts
from roll_ray.sample import Reward, Role, Sample, SamplingDistribution, TrajectoryBuilder
from roll_ray.scoring import Scorer
from roll_ray.settings import RunSettings
from roll_ray.trainers import TrainerGroup
from schedulers.protocol import SampleId, Visit
from workers.trainer import PolicyTrainer

STEPS, PROMPTS, SAMPLES = 7, 4, 4


@pytest.fixture(scope="module")
def settings(tmp_path_factory):
    folder = tmp_path_factory.mktemp("model")
    torch.manual_seed(0)
    sizes = {"hidden_size": 64, "intermediate_size": 64, "num_hidden_layers": 2, "head_dim": 32}
    heads = {"num_attention_heads": 2, "num_key_value_heads": 1}
    config = Qwen3Config(
        vocab_size=32, tie_word_embeddings=True, max_position_embeddings=64, **sizes, **heads
    )
    Qwen3ForCausalLM(config).save_pretrained(folder)
    return RunSettings(
        model=str(folder),
        prompts_per_step=PROMPTS,
        samples_per_prompt=SAMPLES,
        optimizer_steps_per_batch=2,
        tokens_per_device=64,
        max_steps=STEPS,
        learning_rate=1e-3,
        warmup_steps=2,
        lr_schedule="linear",
        kl_coefficient=0.05,
    )


def make_sample(rng, step, prompt, index):
    builder = TrajectoryBuilder()
    builder.append_given(rng.integers(0, 32, rng.integers(2, 6)).tolist(), Role.PROMPT)
    n = int(rng.integers(1, 10))
    builder.append_policy(rng.integers(0, 32, n).tolist(), rng.uniform(-4, -3, n).tolist(), [step - 1] * n)
    return Sample(
        id=SampleId(Visit(f"prompt-{prompt}", step), index),
        attempt=0,
        reward=Reward(float(rng.integers(0, 2)), "drawn"),
        finish_reason="stop",
        sampling=SamplingDistribution(),
        **builder.arrays(),
    )


class Drawn:
    """Rollouts that are drawn at random: what a record is made of here."""

    async def parts(self, step):
        rng = np.random.default_rng(step)
        samples = [make_sample(rng, step, p, i) for p in range(PROMPTS) for i in range(SAMPLES)]
        receipts = tuple(
            Receipt(
                s.id,
                0,
                "drawn",
                len(s.tokens_T),
                s.n_policy_tokens,
                False,
                s.reward.value,
                "",
                "default",
                0,
                0,
                0,
                0,
            )
            for s in samples
        )
        halves = [range(8), range(8, 16)]
        rows = [
            MiniBatch((Share(tuple(receipts[i] for i in h), (Batch.of([samples[i] for i in h]),)),))
            for h in halves
        ]
        yield Part(Cut(step, receipts), tuple(rows))


class Silent:
    """A tracker that keeps what was trained, and interrupts after a given step."""

    def __init__(self, trainer, stop_after=None):
        self.trainer, self.stop_after, self.controller, self.metrics = trainer, stop_after, None, {}

    def phase(self, name):
        return contextlib.nullcontext()

    def begun(self, step, evaluation):
        pass

    def step_done(self, step, part, evaluation):
        self.metrics[step] = self.trainer.take_metrics()
        if step == self.stop_after:
            self.controller.interrupt.set()

    def interrupted(self, step):
        pass


def train(settings, record, folder, stop_after=None):
    """A run from its last checkpoint in `folder`, if there is one: its metrics by step and its last weights."""

    async def run():
        rank = PolicyTrainer(trainer_spec_of(settings, default_rules(settings), "cpu"))
        rank.start(*rank.rendezvous_address())
        try:
            pool = Pool("actor-train", [LocalActor(rank, "actor-train-0")])
            rules, trainer = default_rules(settings), TrainerGroup(pool)
            tracker = Silent(trainer, stop_after)
            checkpoints = CheckpointFolder(folder, keep=1)
            tracker.controller = Controller(
                max_steps=settings.max_steps,
                rollouts=ReplayRollouts(record, settings.optimizer_steps_per_batch, 1),
                score=Scorer(rules.estimator, rules.weigh, pool, keeps_proximal=True),
                trainer=trainer,
                publish=lambda version: asyncio.sleep(0),
                evaluate=lambda step: asyncio.sleep(0, {}),
                checkpoints=checkpoints,
                checkpoint_every_steps=0,
                tracker=tracker,
            )
            result = await tracker.controller.run(checkpoints.latest()[0])
            return result.step, tracker.metrics, {n: t.clone() for n, t in rank._backend.named_tensors()}
        finally:
            rank.stop()

    return asyncio.run(run())


@pytest.fixture(scope="module")
def record(settings, tmp_path_factory):
    folder = tmp_path_factory.mktemp("record")

    async def write():
        rank = Pool(
            "actor-train",
            [LocalActor(PolicyTrainer(trainer_spec_of(settings, default_rules(settings), "cpu")), "r")],
        )
        for step in range(1, STEPS + 1):
            async for _ in Recorder(Drawn(), rank, folder).parts(step):
                pass

    asyncio.run(write())
    return folder


@pytest.fixture(scope="module")
def uninterrupted(settings, record, tmp_path_factory):
    return train(settings, record, tmp_path_factory.mktemp("uninterrupted"))


def test_training_moves_the_weights(settings, uninterrupted, record, tmp_path):
    one_step = train(settings.model_copy(update={"learning_rate": 0.0}), record, tmp_path)
    assert any(not torch.equal(one_step[2][n], t) for n, t in uninterrupted[2].items())


def test_a_replay_is_bit_equal_to_the_replay_before_it(settings, record, uninterrupted, tmp_path):
    assert_equal(train(settings, record, tmp_path), uninterrupted)


@pytest.mark.parametrize("stop", range(1, STEPS))
def test_resume_after_any_step_is_bit_equal(settings, record, uninterrupted, tmp_path, stop):
    step, metrics, _ = train(settings, record, tmp_path, stop_after=stop)
    assert (step, sorted(metrics)) == (stop, list(range(1, stop + 1)))
    last_step, later, weights = train(settings, record, tmp_path)
    assert sorted(later) == list(range(stop + 1, STEPS + 1))
    assert_equal((last_step, {**metrics, **later}, weights), uninterrupted)


def assert_equal(run, reference):
    assert run[0] == reference[0]
    assert run[1] == reference[1]
    assert set(run[2]) == set(reference[2])
    for name, tensor in reference[2].items():
        assert torch.equal(run[2][name], tensor), name
