"""One trainer rank in this process: cuts, streams, proximal log-probabilities, precision, faults."""

import dataclasses
import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import AutoModelForCausalLM, Qwen3Config, Qwen3ForCausalLM

from roll_ray.algorithms.aggregation import denominator
from roll_ray.algorithms.loss_settings import LossSettings
from roll_ray.algorithms.losses import build_loss
from roll_ray.algorithms.metric_sums import merge_sums
from roll_ray.batch import Batch
from roll_ray.recording import load_batch
from roll_ray.sample import Reward, Role, Sample, SamplingDistribution
from schedulers.protocol import SampleId, Visit
from workers.backends.base import OptimizerSettings
from workers.backends.fsdp2 import FSDP2Backend
from workers.backends.process_group import free_address, join_alone, leave
from workers.trainer import PolicyTrainer, TrainerSpec

VOCAB = 24


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    folder = tmp_path_factory.mktemp("model")
    torch.manual_seed(0)
    config = Qwen3Config(
        vocab_size=VOCAB,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=8,
        max_position_embeddings=64,
        tie_word_embeddings=True,
        initializer_range=0.2,
    )
    Qwen3ForCausalLM(config).save_pretrained(folder)
    return str(folder)


@pytest.fixture(scope="module", autouse=True)
def process_group():
    torch.set_num_threads(1)
    join_alone()
    yield
    leave()


@pytest.fixture
def started(model, monkeypatch):
    """Makes trainers in the group of one that this module is in."""
    monkeypatch.setattr("workers.backends.process_group.join", lambda *a, **k: None)

    def start(**options):
        optimizer = OptimizerSettings(options.pop("learning_rate", 1e-2))
        trainer = PolicyTrainer(TrainerSpec(model, optimizer, **options))
        trainer.start(*free_address())
        return trainer

    return start


def sample(i, temperature=1.0):
    random = np.random.default_rng(i)
    length = int(random.integers(3, 12))
    roles = np.full(length, Role.POLICY)
    roles[:2] = Role.PROMPT
    return Sample(
        id=SampleId(Visit(f"p{i // 2}", 0), i % 2),
        attempt=0,
        tokens_T=random.integers(0, VOCAB, length).astype(np.int32),
        roles_T=roles.astype(np.int8),
        logprobs_T=np.where(roles == Role.POLICY, random.normal(-3, 0.2, length), 0).astype(np.float32),
        versions_T=np.zeros(length, np.int32),
        reward=Reward(1.0),
        finish_reason="stop",
        sampling=SamplingDistribution(temperature=temperature),
    )


def batch_of(n=10, temperature=1.0):
    batch = Batch.of([sample(i, temperature) for i in range(n)])
    batch.extra_B["advantages"] = np.random.default_rng(1).normal(size=n).astype(np.float32)
    return batch


def gradients(trainer):
    backend = getattr(trainer, "_backend", trainer)
    return torch.cat([p.grad.to_local().flatten().clone() for p in backend._shards.values()])


def clear(trainer):
    getattr(trainer, "_backend", trainer).module.zero_grad()


@pytest.fixture(scope="module")
def backend(model):
    return FSDP2Backend(model, OptimizerSettings(1e-2), tokens_per_device=1000)


LOSS = build_loss(LossSettings(aggregation="seq_mean_token_mean", proximal="engine"))


@settings(max_examples=25, deadline=None)
@given(
    tokens_per_device=st.integers(1, 80),
    order=st.permutations(range(10)),
    cuts=st.sets(st.integers(1, 9), max_size=3),
)
def test_any_order_stream_and_micro_batch_size_gives_the_same_gradient(
    backend, tokens_per_device, order, cuts
):
    """Case 8: also streamed in parts, of which only the last is final."""
    batch = batch_of()
    backend.tokens_per_device = 1000
    whole = backend.accumulate(batch, LOSS)
    expected = gradients(backend)
    clear(backend)
    backend.tokens_per_device = tokens_per_device
    ends = [*sorted(cuts), 10]
    sums = []
    for a, b in zip([0, *ends], ends, strict=False):
        sums.append(backend.accumulate(batch.select(list(order[a:b])), LOSS, final=b == 10))
    assert float((gradients(backend) - expected).norm() / expected.norm()) < 1e-6
    clear(backend)
    for name, metric in merge_sums(sums).items():
        assert metric.value == pytest.approx(whole[name].value, rel=1e-5, abs=1e-5), name


def test_a_batch_that_was_not_closed_cannot_be_stepped(started):
    trainer = started()
    trainer.accumulate(batch_of(), final=False)
    with pytest.raises(RuntimeError, match="final=True"):
        trainer.step(1.0)
    trainer.accumulate(batch_of().select([]))  # an empty share closes it
    assert trainer.step(10.0)["step_skipped"] == 0.0


def test_a_step_without_a_gradient_is_an_error(started):
    with pytest.raises(RuntimeError, match="without accumulate"):
        started().step(1.0)


@pytest.mark.parametrize("advantage", [1.0, -1.0])
def test_a_positive_advantage_makes_the_answer_likelier(started, advantage):
    trainer, batch = started(), batch_of(4)
    batch.extra_B["advantages"] = np.full(4, advantage, np.float32)
    before = trainer.logprobs(batch).sum()
    trainer.accumulate(batch)
    trainer.step(float(batch.policy_tokens_B.sum()))
    assert (trainer.logprobs(batch).sum() - before) * advantage > 0.1


def test_several_optimizer_steps_on_one_batch_measure_the_ratio_from_its_start(started):
    trainer, batch = started(), batch_of()
    first, second = batch.select(range(5)), batch.select(range(5, 10))
    before = trainer.logprobs(second)
    trainer.remember_proximal(first)
    trainer.remember_proximal(second)
    advantages = batch.extra_B["advantages"]
    sums = trainer.train_on({"advantages": advantages[:5]}, first)
    assert sums["ratio_max"].value == pytest.approx(1.0, abs=1e-6)
    trainer.step(10.0)
    now = trainer.logprobs(second)
    sums = trainer.train_on({"advantages": advantages[5:]}, second.select([0, 1]), second.select([2, 3, 4]))
    mask_T = second.policy_mask_T
    assert sums["ratio_mean"].value == pytest.approx(float(np.exp(now - before)[mask_T].mean()), rel=1e-5)
    assert sums["ratio_max"].value > 1.001
    difference = np.abs(before - second.logprobs_T)[mask_T].max()
    assert sums["logprob_difference_max"].value == pytest.approx(float(difference), rel=1e-5)
    # what was remembered is used once
    assert trainer.train_on({"advantages": advantages[5:]}, second)["ratio_max"].value == 1.0


def test_a_share_of_which_some_samples_have_no_proximal_is_an_error(started):
    trainer, batch = started(), batch_of()
    trainer.remember_proximal(batch.select([0]))
    with pytest.raises(ValueError, match="1 of 10 samples"):
        trainer.train_on({}, batch)


def test_a_recorded_share_trains_as_the_share_itself(started, tmp_path):
    trainer, batch = started(), batch_of()
    advantages = batch.extra_B.pop("advantages")
    trainer.record(str(tmp_path / "rank-0.npz"), batch.select(range(5)), batch.select(range(5, 10)))
    trainer.train_on({"advantages": advantages}, batch)
    direct = gradients(trainer)
    clear(trainer)
    trainer.train_on({"advantages": advantages}, load_batch(tmp_path / "rank-0.npz"))
    assert torch.equal(gradients(trainer), direct)


def test_an_empty_share_is_trained_without_complaint(started):
    trainer = started()
    assert trainer.train_on({"advantages": np.empty(0, np.float32)}) == {}
    assert trainer.step(4.0)["grad_norm"] == 0.0
    assert trainer.logprobs(batch_of().select([])).shape == (0,)


def test_the_reference_stays_where_it_began(started):
    trainer, batch = started(loss=LossSettings(kl_coefficient=0.5)), batch_of()
    reference = trainer.logprobs(batch)
    first = trainer.accumulate(batch)
    assert first["kl_k3_max"].value == pytest.approx(0.0, abs=1e-6)
    trainer.step(10.0)
    now = trainer.logprobs(batch)
    second = trainer.accumulate(batch)
    d = (now - reference)[batch.policy_mask_T].astype(np.float64)
    assert second["kl_k3"].value == pytest.approx(float((np.exp(-d) - 1 + d).mean()), rel=1e-3)
    assert second["kl_k3"].value > 1e-4


def test_ratios_are_one_at_temperature_0_6_against_the_engines_logprobs(started):
    """Case 36, with an engine that reports log-probabilities of the tempered distribution."""
    batch = batch_of(temperature=0.6)
    logprobs = started().logprobs(batch)
    engine = dataclasses.replace(batch, logprobs_T=logprobs)
    sums = started(loss=LossSettings(proximal="engine")).accumulate(engine)
    assert sums["ratio_max"].value == pytest.approx(1.0, abs=1e-5)
    assert sums["logprob_difference_max"].value < 1e-5


def test_read_only_shares_are_left_as_they_are(started, recwarn):
    trainer, batch = started(), batch_of()
    arrays = [batch.tokens_T, batch.roles_T, batch.logprobs_T, batch.offsets, batch.extra_B["advantages"]]
    copies = [a.copy() for a in arrays]
    for array in arrays:
        array.flags.writeable = False
    recwarn.clear()
    trainer.accumulate(batch)
    trainer.logprobs(batch)
    assert not [w for w in recwarn.list if "writ" in str(w.message)]
    assert all((a == b).all() for a, b in zip(arrays, copies, strict=True))


def test_bfloat16_runs_the_forward_only(started):
    batch = batch_of(temperature=0.6)
    exact, rounded = started(), started(dtype="bfloat16")
    difference = np.abs(exact.logprobs(batch) - rounded.logprobs(batch))
    assert 0 < difference.max() < 0.15
    exact.accumulate(batch)
    sums = rounded.accumulate(batch)
    assert sums["ratio_max"].value == 1.0
    a, b = gradients(exact), gradients(rounded)
    assert a.dtype == b.dtype == torch.float32
    assert float((a - b).norm() / a.norm()) < 0.05
    assert all(p.dtype == torch.float32 for _, p in rounded._backend.named_parameters())
    assert all(t.dtype == torch.bfloat16 for _, t in rounded._backend.named_tensors())


def test_weights_that_change_after_a_forward_reach_the_next_one(started, tmp_path):
    """A forward without backward leaves gathered weights behind, unless they are freed."""
    trainer, batch = started(), batch_of()
    before = trainer.logprobs(batch)
    trainer.save(str(tmp_path / "checkpoint"))
    trainer.accumulate(batch)
    trainer.step(1.0)
    changed = trainer.logprobs(batch)
    assert np.abs(changed - before).max() > 1e-3
    trainer.load(str(tmp_path / "checkpoint"))
    assert (trainer.logprobs(batch) == before).all()


def test_a_disk_that_is_full_while_publishing_is_an_error_after_every_rank_is_through(started, monkeypatch):
    trainer = started()
    passed = []

    def counted():
        for item in FSDP2Backend.named_tensors(trainer._backend):
            passed.append(item[0])
            yield item

    def full(*args, **options):
        next(iter(args[2]))
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(trainer._backend, "named_tensors", counted)
    monkeypatch.setattr("roll_ray.weights.buckets.write_buckets", full)
    with pytest.raises(OSError, match="No space left"):
        trainer.publish(1, "/nowhere")
    assert len(passed) == len(trainer._backend._shards)


def test_supervised_steps_through_the_backend_in_one_process(model):
    backend = FSDP2Backend(model, OptimizerSettings(1e-2))
    loss = build_loss(LossSettings(name="sft"))
    batch = batch_of()
    del batch.extra_B["advantages"]
    divisor = denominator("token_mean", batch.policy_tokens_B)
    values = []
    for _ in range(15):
        values.append(backend.accumulate(batch, loss)["loss_sum"].total / divisor)
        backend.step(divisor)
    plain = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32).eval()
    tokens = torch.tensor(batch.tokens_T[batch.token_span(0)], dtype=torch.int64)
    expected = torch.log_softmax(plain(tokens[None]).logits[0, 1:-1], -1).gather(-1, tokens[2:, None])
    first = backend.accumulate(batch.select([0]), loss)
    backend.module.zero_grad()
    assert values[0] > 2.5
    assert values[-1] < 0.5
    assert first["loss_sum"].value < -float(expected.detach().sum())


@pytest.mark.parametrize(
    ("options", "rates"),
    [
        ({}, [1.0, 1.0, 1.0, 1.0, 1.0]),
        ({"warmup_steps": 2}, [0.5, 1.0, 1.0, 1.0, 1.0]),
        ({"lr_schedule": "linear", "total_steps": 4}, [1.0, 0.75, 0.5, 0.25, 0.0]),
        ({"lr_schedule": "linear", "total_steps": 4, "warmup_steps": 2}, [0.5, 1.0, 1.0, 0.5, 0.0]),
    ],
)
def test_learning_rate_schedules(options, rates):
    optimizer = OptimizerSettings(1.0, **options)
    assert [optimizer.rate_at(k) for k in range(5)] == pytest.approx(rates)


def test_a_nan_gradient_never_reaches_the_weights(started):
    trainer, batch = started(), batch_of()
    before = trainer.logprobs(batch)
    batch.extra_B["advantages"][3] = math.inf
    trainer.accumulate(batch)
    result = trainer.step(10.0)
    assert result["step_skipped"] == 1.0
    assert not math.isfinite(result["grad_norm"])
    assert (trainer.logprobs(batch) == before).all()
