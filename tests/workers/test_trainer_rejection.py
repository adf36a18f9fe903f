"""Responses that a correction rejects leave the optimizer step; every loss takes steps through the trainer."""

import dataclasses
import itertools

import numpy as np
import pytest
import torch

from roll_ray.algorithms.aggregation import AGGREGATIONS
from roll_ray.algorithms.losses import LOSSES
from roll_ray.batch import Batch
from roll_ray.sample import Role
from tests.workers.trainer_cases import SAMPLES, settings_of, starter, step_on


@pytest.fixture(scope="module")
def started(tmp_path_factory):
    with starter(tmp_path_factory.mktemp("model")) as start:
        yield start


def as_sampled_by(trainer, samples, far=()):
    """The samples with the trainer's log-probabilities as the engine's; those named in `far` lie e^9 beside."""
    moved = []
    for s in samples:
        mask_T = s.roles_T == Role.POLICY
        logprobs_T = trainer.logprobs(Batch.of([s])) - np.where(mask_T & (s.id in far), 9.5, 0)
        moved.append(dataclasses.replace(s, logprobs_T=logprobs_T.astype(np.float32)))
    return moved


def weights_of(trainer):
    return torch.cat([t.flatten().clone() for _, t in trainer._backend.named_tensors()])


@pytest.mark.parametrize("aggregation", [name for name, a in AGGREGATIONS.items() if not a.per_prompt])
@pytest.mark.parametrize("level", ["token", "sequence"])
def test_rejected_responses_leave_loss_and_gradient_as_if_they_had_not_been_sampled(
    started, aggregation, level
):
    words = [
        "correction.name=rejection",
        f"correction.level={level}",
        f"aggregation={aggregation}",
        "adv_estimator=reinforce",
        "kl_coefficient=0.1",
    ]
    settings = settings_of(*words)
    whole, without = started(*words), started(*words)
    rejected = list(SAMPLES)[3:6:2] + list(SAMPLES)[9:]
    samples = as_sampled_by(whole, SAMPLES.values(), rejected)
    (a,) = step_on(whole, settings, samples)
    (b,) = step_on(without, settings, [s for s in samples if s.id not in rejected])
    assert a["rejected_sequences"] == len(rejected)
    assert b["rejected_sequences"] == 0
    for name in ("loss", "denominator", "grad_norm"):
        assert a[name] == pytest.approx(b[name], rel=1e-5), name
    assert torch.allclose(weights_of(whole), weights_of(without), atol=1e-6)


def test_a_step_of_which_every_response_is_rejected_changes_nothing(started):
    words = ["correction.name=rejection"]
    trainer = started(*words)
    before = weights_of(trainer)
    (metrics,) = step_on(trainer, settings_of(*words), as_sampled_by(trainer, SAMPLES.values(), SAMPLES))
    assert metrics["step_skipped"] == 1.0
    assert metrics["denominator"] == 0.0
    assert torch.equal(weights_of(trainer), before)


def test_rejections_of_one_step_do_not_shrink_the_denominator_of_the_next(started):
    words = ["correction.name=rejection", "optimizer_steps_per_batch=2"]
    trainer, settings = started(*words), settings_of(*words)
    first_half = list(SAMPLES)[:5]
    samples = as_sampled_by(trainer, SAMPLES.values(), first_half)
    (metrics,) = step_on(trainer, settings, samples)
    later = [s for s in samples if s.id not in list(SAMPLES)[:6] and s.reward.valid]
    assert metrics["denominator"] == sum(s.n_policy_tokens for s in later)


@pytest.mark.parametrize(
    ("loss", "correction"),
    [*itertools.product(sorted(LOSSES), ["none"]), ("ppo", "icepop"), ("gspo", "truncated_is")],
)
def test_every_loss_takes_trainer_steps_on_several_mini_batches(started, loss, correction):
    words = [f"loss={loss}", f"correction.name={correction}", "optimizer_steps_per_batch=2"]
    trainer = started(*words)
    before = weights_of(trainer)
    (metrics,) = step_on(trainer, settings_of(*words))
    assert metrics["optimizer_steps"] == 2.0
    assert not torch.equal(weights_of(trainer), before)
