"""Real gloo processes: any number of ranks, any split of the batch, is plain torch on the whole batch.

Cases 8 and 36, and equality with `torch.optim.AdamW` over five steps.
"""

import json
import math
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM, Qwen2Config, Qwen2ForCausalLM, Qwen3Config, Qwen3ForCausalLM

from roll_ray.algorithms.aggregation import AGGREGATIONS, denominator
from roll_ray.algorithms.metric_sums import merge_sums
from roll_ray.batch import Batch
from roll_ray.recording import save_batch
from roll_ray.sample import Reward, Role, Sample, SamplingDistribution
from roll_ray.weights.buckets import read_tensors
from roll_ray.weights.manifest import WeightManifest
from schedulers.protocol import SampleId, Visit
from workers.backends.base import OptimizerSettings
from workers.backends.process_group import free_address, join_alone, leave
from workers.trainer import PolicyTrainer, TrainerSpec

SIZE = {
    "vocab_size": 33,  # 33 and 3 ranks leave shards of unlike size
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": 64,
    "initializer_range": 0.2,
}
LOSS = {"clip_low": 0.2, "clip_high": 0.28, "dual_clip": 3.0, "aggregation": "seq_mean_token_mean"}
CASES = {"tied": "balanced", "untied": "last rank empty"}
PROGRAM = Path(__file__).parent / "fsdp2_rank_program.py"


def sample(i):
    random = np.random.default_rng(i)
    length = int(random.integers(4, 14))
    roles = np.full(length, Role.POLICY)
    roles[:3] = Role.PROMPT
    roles[6:8] = Role.ENVIRONMENT
    if i == 5:
        roles[3:] = Role.ENVIRONMENT  # an answer of no tokens (case 5)
    return Sample(
        id=SampleId(Visit(f"p{i // 3}", 0), i % 3),
        attempt=0,
        tokens_T=random.integers(0, SIZE["vocab_size"], length).astype(np.int32),
        roles_T=roles.astype(np.int8),
        logprobs_T=np.where(roles == Role.POLICY, random.normal(-3.5, 0.3, length), np.nan).astype(
            np.float32
        ),
        versions_T=np.zeros(length, np.int32),
        reward=Reward(1.0),
        finish_reason="length" if i % 4 == 0 else "stop",
        sampling=SamplingDistribution(temperature=(1.0, 0.6)[i % 2]),
    )


def whole_batch():
    batch = Batch.of([sample(i) for i in range(11)])
    batch.extra_B["advantages"] = np.random.default_rng(0).normal(size=11).astype(np.float32)
    return batch


def shares_of(batch, split, world_size):
    """Unlike shares: rank r gets samples r, r + n, ...; or the last rank gets none."""
    n = world_size if split == "balanced" or world_size == 1 else world_size - 1
    rows = [list(range(len(batch)))[r::n] for r in range(n)] + [[]] * (world_size - n)
    return [batch.select(r) for r in rows]


@dataclass
class Outcome:
    name: str
    folder: Path
    world_size: int
    batch: Batch
    ranks: list[dict]
    expected: dict


def make_models(folder):
    torch.manual_seed(0)
    Qwen3ForCausalLM(Qwen3Config(**SIZE, tie_word_embeddings=True)).save_pretrained(folder / "tied")
    Qwen2ForCausalLM(Qwen2Config(**SIZE, tie_word_embeddings=False)).save_pretrained(folder / "untied")


def run_ranks(folder, world_size):
    """All cases on `world_size` processes; what they saw, by case."""
    make_models(folder)
    batch, job = whole_batch(), []
    for name, split in CASES.items():
        for rank, share in enumerate(shares_of(batch, split, world_size)):
            save_batch(folder / f"{name}-{rank}.npz", share)
            np.save(folder / f"{name}-{rank}-advantages.npy", share.extra_B["advantages"])
        divisor = denominator(LOSS["aggregation"], batch.policy_tokens_B)
        job.append(
            {
                "name": name,
                "model": str(folder / name),
                "loss": LOSS,
                "tokens_per_device": 30,
                "denominator": divisor,
                # a port each: a quick rank would find the store of the case before on the same one
                "port": free_address()[1],
            }
        )
    (folder / "job.json").write_text(json.dumps(job))
    root = Path(__file__).parents[2]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(root)}
    ranks = [
        subprocess.Popen(
            [sys.executable, str(PROGRAM), str(folder), str(rank), str(world_size)],
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for rank in range(world_size)
    ]
    try:
        outputs = [rank.communicate(timeout=120)[0] for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()
    assert all(rank.returncode == 0 for rank in ranks), "\n".join(outputs)
    return {
        name: Outcome(
            name,
            folder,
            world_size,
            batch,
            [torch.load(folder / f"{name}-{r}.pt", weights_only=False) for r in range(world_size)],
            plain_torch(folder / name, batch),
        )
        for name in CASES
    }


def plain_loss_sum(model, batch):
    """The summed loss, a sequence at a time, written out as in the papers."""
    total = torch.zeros(())
    logprobs = np.zeros(len(batch.tokens_T), np.float32)
    weights_B = AGGREGATIONS[LOSS["aggregation"]].weights_B(batch.policy_tokens_B)
    for i in range(len(batch)):
        span = batch.token_span(i)
        tokens = torch.tensor(batch.tokens_T[span], dtype=torch.int64)
        mask_T = torch.tensor(batch.policy_mask_T[span])
        logits = model(input_ids=tokens[None], use_cache=False).logits[0] / batch.sampling[i].temperature
        lp_T = torch.log_softmax(logits[:-1], -1).gather(-1, tokens[1:, None])[:, 0][mask_T[1:]]
        logprobs[span][mask_T.numpy()] = lp_T.detach().numpy()
        ratio_T, A = (lp_T - lp_T.detach()).exp(), float(batch.extra_B["advantages"][i])
        loss_T = -torch.minimum(ratio_T * A, ratio_T.clamp(0.8, 1.28) * A)
        total = total + float(weights_B[i]) * loss_T.sum()
    return total, logprobs


def plain_torch(folder, batch):
    """Five steps of torch.optim.AdamW on the whole batch."""
    model = AutoModelForCausalLM.from_pretrained(
        folder, dtype=torch.float32, attn_implementation="eager"
    ).eval()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1.0, weight_decay=0.0)
    divisor = denominator(LOSS["aggregation"], batch.policy_tokens_B)
    seen = {"losses": [], "norms": []}
    for step in range(5):
        total, logprobs = plain_loss_sum(model, batch)
        optimizer.zero_grad()
        if step == 0:
            total.backward()
            seen |= {"sum": float(total.detach()), "logprobs": logprobs}
            seen["gradients"] = {name: p.grad.clone() for name, p in model.named_parameters()}
            optimizer.zero_grad()
            total, _ = plain_loss_sum(model, batch)
        (total / divisor).backward()
        seen["losses"].append(float(total.detach()) / divisor)
        seen["norms"].append(float(torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5)))
        rate = 1e-2 * (step + 1) / 2 if step < 2 else 1e-2 * (20 - step) / 18
        optimizer.param_groups[0]["lr"] = rate
        optimizer.step()
    seen["weights"] = {name: p.detach().clone() for name, p in model.named_parameters()}
    return seen


@pytest.fixture(
    scope="module",
    params=[2, *(pytest.param(n, marks=pytest.mark.engine) for n in (1, 3))],
    ids=lambda n: f"{n} ranks",
)
def outcomes(request, tmp_path_factory):
    return run_ranks(tmp_path_factory.mktemp(f"ranks{request.param}"), request.param)


@pytest.fixture(params=CASES)
def outcome(request, outcomes):
    return outcomes[request.param]


def relative(a, b):
    return float((a - b).norm() / (b.norm() + 1e-12))


def test_gradients_equal_plain_torch_on_the_whole_batch(outcome):
    """The sum over ranks, not yet divided."""
    expected = outcome.expected["gradients"]
    largest = max(g.norm() for g in expected.values())
    for seen in outcome.ranks:
        assert set(seen["gradients"]) == set(expected)
        for name, gradient in seen["gradients"].items():
            # a gradient that is zero in exact arithmetic (a key bias) is compared with the largest
            assert float((gradient - expected[name]).norm()) <= 1e-6 * float(
                expected[name].norm() + largest
            ), name
    whole = torch.cat([g.flatten() for g in outcome.ranks[0]["gradients"].values()])
    assert relative(whole, torch.cat([expected[n].flatten() for n in outcome.ranks[0]["gradients"]])) <= 1e-6


def test_the_loss_sum_and_the_token_count_are_those_of_the_whole_batch(outcome):
    sums = merge_sums(seen["sums"] for seen in outcome.ranks)
    assert sums["loss_sum"].value == pytest.approx(outcome.expected["sum"], rel=1e-6, abs=1e-6)
    assert sums["policy_tokens"].value == outcome.batch.policy_tokens_B.sum()


def test_ratios_are_one_before_the_first_update_at_any_temperature(outcome):
    """Case 36: temperature 0.6 is replayed."""
    sums = merge_sums(seen["sums"] for seen in outcome.ranks)
    assert sums["ratio_max"].value == sums["ratio_mean"].value == 1.0


def test_log_probabilities_equal_one_sequence_at_a_time(outcome):
    shares = shares_of(outcome.batch, CASES[outcome.name], outcome.world_size)
    for share, seen in zip(shares, outcome.ranks, strict=True):
        position = {sample: i for i, sample in enumerate(outcome.batch.ids)}
        spans = [outcome.batch.token_span(position[s]) for s in share.ids]
        expected = np.concatenate([outcome.expected["logprobs"][s] for s in spans] or [np.empty(0)])
        assert seen["logprobs"] == pytest.approx(expected, abs=2e-5)
        assert seen["logprobs"].dtype == np.float32


def test_five_steps_equal_torch_adamw(outcome):
    for seen in outcome.ranks:
        steps = seen["steps"] + seen["straight"][0]
        # a float32 sum in another order; AdamW then doubts small gradients, so it grows with the steps
        assert [s["loss"] for s in steps] == pytest.approx(outcome.expected["losses"], rel=1e-4, abs=1e-5)
        assert [s["grad_norm"] for s in steps] == pytest.approx(outcome.expected["norms"], rel=1e-4)
        assert steps[0]["grad_norm"] == pytest.approx(outcome.expected["norms"][0], rel=1e-6)
        assert [s["learning_rate"] for s in steps] == pytest.approx(
            [0.5e-2, 1e-2, 1e-2, 1e-2 * 17 / 18, 1e-2 * 16 / 18]
        )
    for name, tensor in outcome.ranks[0]["straight"][1].items():
        if "k_proj.bias" not in name:  # zero gradient in exact arithmetic: AdamW blows its noise up
            assert relative(tensor, outcome.expected["weights"][name]) < 1e-3, name


def test_every_rank_steps_alike(outcome):
    for seen in outcome.ranks[1:]:
        assert seen["steps"] == outcome.ranks[0]["steps"]
        for name, tensor in seen["saved"].items():
            assert torch.equal(tensor, outcome.ranks[0]["saved"][name])


def test_a_resumed_rank_goes_on_bit_equal(outcome):
    for seen in outcome.ranks:
        steps, tensors, random_state = seen["straight"]
        resumed_steps, resumed_tensors, resumed_random_state = seen["resumed"]
        assert resumed_steps == steps
        assert torch.equal(resumed_random_state, random_state)
        for name, tensor in tensors.items():
            assert torch.equal(resumed_tensors[name], tensor), name


def test_a_step_without_tokens_or_with_a_broken_gradient_changes_nothing_and_says_so(outcome):
    for seen in outcome.ranks:
        no_tokens, broken = seen["skipped"]
        assert no_tokens["step_skipped"] == broken["step_skipped"] == 1.0
        assert no_tokens["loss"] == 0.0
        assert math.isnan(broken["grad_norm"])
        for name, tensor in seen["resumed"][1].items():
            assert torch.equal(seen["after_skips"][name], tensor)


def test_a_checkpoint_loads_on_another_number_of_ranks(outcome):
    name = outcome.name
    optimizer = OptimizerSettings(
        1e-2, warmup_steps=2, lr_schedule="linear", total_steps=20, max_grad_norm=0.5
    )
    trainer = PolicyTrainer(TrainerSpec(str(outcome.folder / name), optimizer, tokens_per_device=30))
    trainer.start(*free_address())
    try:
        trainer.load(str(outcome.folder / f"{name}-checkpoint"))
        for parameter, tensor in trainer._backend.named_tensors():
            assert torch.equal(tensor, outcome.ranks[0]["saved"][parameter]), parameter
        moments = trainer._backend._adamw.state.values()
        assert all(float(m["step"]) == 3 and float(m["exp_avg_sq"].sum()) > 0 for m in moments)
    finally:
        trainer.stop()


def test_published_and_exported_weights_are_the_trainers(outcome):
    name = outcome.name
    seen = outcome.ranks[0]["after_skips"]
    assert ("lm_head.weight" in seen) == (name == "untied")
    manifest = WeightManifest.from_plain(json.loads((outcome.folder / f"{name}-manifest.json").read_text()))
    published = dict(read_tensors(manifest))
    assert set(published) == set(seen)
    assert all(torch.equal(published[parameter], tensor) for parameter, tensor in seen.items())
    assert len(manifest.canary.logprobs) == len(manifest.canary.token_ids) - 1 == 31
    exported = AutoModelForCausalLM.from_pretrained(outcome.folder / f"{name}-export").eval()
    for parameter, tensor in exported.named_parameters():
        assert torch.equal(tensor, seen[parameter]), parameter


def test_a_publish_carries_every_tensor_and_a_canary_that_plain_torch_confirms(tmp_path):
    make_models(tmp_path)
    trainer = PolicyTrainer(TrainerSpec(str(tmp_path / "tied"), OptimizerSettings(1e-3)))
    trainer.start(*trainer.rendezvous_address())
    try:
        manifest = trainer.publish(7, str(tmp_path / "published"))
    finally:
        trainer.stop()
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "tied", dtype=torch.float32).eval()
    expected = dict(model.named_parameters())
    for name, tensor in read_tensors(manifest):
        assert torch.equal(tensor, expected.pop(name)), name
    assert not expected
    canary = manifest.canary
    ids = torch.tensor([canary.token_ids])
    logprobs = torch.log_softmax(model(ids).logits[0, :-1], -1).gather(-1, ids[0, 1:, None])[:, 0]
    assert len(canary.token_ids) == 32
    assert canary.logprobs == pytest.approx(logprobs.tolist(), abs=canary.tolerance / 10)


def test_a_group_of_one_needs_no_address():
    join_alone()
    join_alone()
    leave()
