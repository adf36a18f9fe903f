"""Packed sequences compute what each sequence computes alone, in logits and in gradients."""

import numpy as np
import pytest
import torch
from transformers import (
    Gemma2Config,
    Gemma2ForCausalLM,
    GraniteConfig,
    GraniteForCausalLM,
    LlamaConfig,
    LlamaForCausalLM,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)

from roll_ray.batch import Batch
from roll_ray.errors import RollRayError
from roll_ray.sample import Reward, Role, Sample, SamplingDistribution
from schedulers.protocol import SampleId, Visit
from workers import token_logprobs as token_logprobs_module
from workers.hf_model import PackedInput, PolicyModel, check_policy, load_policy
from workers.packed_attention import PACKED_ATTENTION, PackedLayout, packed_attention
from workers.token_logprobs import token_logprobs

SIZE = {
    "vocab_size": 61,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 128,
    "initializer_range": 0.3,  # far from uniform, so that a wrong mask shows
}
MODELS = {
    "qwen3 tied": lambda: Qwen3ForCausalLM(Qwen3Config(**SIZE, tie_word_embeddings=True)),
    "qwen2 untied": lambda: Qwen2ForCausalLM(Qwen2Config(**SIZE, tie_word_embeddings=False)),
    "llama": lambda: LlamaForCausalLM(LlamaConfig(**SIZE)),
    "qwen2 sliding window": lambda: Qwen2ForCausalLM(
        Qwen2Config(**SIZE, use_sliding_window=True, sliding_window=5, max_window_layers=0)
    ),
}
LENGTHS = [9, 64, 2, 9, 30, 9]


def made(name):
    torch.manual_seed(0)
    return MODELS[name]().eval()


def sample(i, length, temperature):
    random = np.random.default_rng(i)
    roles = np.full(length, Role.POLICY)
    roles[: max(1, length // 3)] = Role.PROMPT
    roles[length // 2 : length // 2 + length // 8] = Role.ENVIRONMENT
    return Sample(
        id=SampleId(Visit(f"p{i}", 0), 0),
        attempt=0,
        tokens_T=random.integers(0, SIZE["vocab_size"], length).astype(np.int32),
        roles_T=roles.astype(np.int8),
        logprobs_T=np.zeros(length, np.float32),
        versions_T=np.zeros(length, np.int32),
        reward=Reward(0.0),
        finish_reason="stop",
        sampling=SamplingDistribution(temperature=temperature),
    )


def batch_of(lengths=LENGTHS):
    return Batch.of([sample(i, n, (1.0, 0.6, 0.0)[i % 3]) for i, n in enumerate(lengths)])


def one_at_a_time(model, batch):
    """Log-probabilities of the policy tokens from plain forwards of eager attention."""
    model.set_attn_implementation("eager")
    parts = []
    for i in range(len(batch)):
        tokens = torch.tensor(batch.tokens_T[batch.token_span(i)], dtype=torch.int64)
        logits = model(input_ids=tokens[None], use_cache=False).logits[0]
        temperature = batch.sampling[i].temperature or 1.0
        logprobs_T = torch.log_softmax(logits[:-1] / temperature, -1).gather(-1, tokens[1:, None])[:, 0]
        parts.append(logprobs_T[torch.tensor(batch.policy_mask_T[batch.token_span(i)])[1:]])
    return torch.cat(parts)


def gradients(model, logprobs_N):
    model.zero_grad()
    (logprobs_N * torch.linspace(-1, 1, len(logprobs_N))).sum().backward()
    return {name: p.grad.clone() for name, p in model.named_parameters()}


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("order", ["as given", "by length"])
def test_packed_equals_one_sequence_at_a_time(name, order):
    model, batch = made(name), batch_of()
    if order == "by length":
        batch = batch.select(np.argsort(batch.lengths_B, kind="stable").tolist())
    expected = one_at_a_time(model, batch)
    expected_gradients = gradients(model, expected)
    model.set_attn_implementation(PACKED_ATTENTION)
    logprobs_N, entropy_N = PolicyModel(model)(PackedInput.of(batch))
    assert (logprobs_N - expected).abs().max() < 2e-5
    assert ((entropy_N >= 0) & (entropy_N <= np.log(SIZE["vocab_size"]))).all()
    for parameter, gradient in gradients(model, logprobs_N).items():
        scale = expected_gradients[parameter].abs().max() + 1e-6
        assert (gradient - expected_gradients[parameter]).abs().max() / scale < 2e-4, parameter


@pytest.mark.parametrize("wrong", [{"attention_mask": "ones", "use_cache": False}, {"use_cache": True}])
def test_the_silently_wrong_ways_of_packing_would_be_seen_here(wrong):
    model, batch = made("qwen3 tied"), batch_of()
    expected = one_at_a_time(model, batch)
    packed = PackedInput.of(batch)
    model.set_attn_implementation("sdpa")
    if "attention_mask" in wrong:
        wrong = {**wrong, "attention_mask": torch.ones_like(packed.tokens_T)[None]}
    logits = model(input_ids=packed.tokens_T[None], position_ids=packed.positions_T[None], **wrong).logits[0]
    scaled = logits[packed.policy_N - 1] / packed.temperatures_N[:, None]
    logprobs_N = torch.log_softmax(scaled, -1).gather(-1, packed.tokens_T[packed.policy_N][:, None])[:, 0]
    assert (logprobs_N - expected).abs().max() > 0.1


def test_attention_without_a_layout_is_an_error():
    q = torch.zeros(1, 2, 3, 16)
    with pytest.raises(RuntimeError, match="across sequences"):
        packed_attention(torch.nn.Module(), q, q, q, None)


def test_a_layout_groups_neighbours_of_equal_length():
    layout = PackedLayout.of([3, 3, 5, 3])
    assert layout.groups == ((2, 3), (1, 5), (1, 3))
    assert layout.ends.tolist() == [0, 3, 6, 11, 14]
    assert layout.max_length == 5
    for lengths in ([], [3, 0]):
        with pytest.raises(ValueError, match="needs a token"):
            PackedLayout.of(lengths)


def test_positions_start_at_zero_and_temperatures_are_the_samples_own():
    """Case 4 at the sample boundary: log-probabilities belong to the policy's tokens, positions to sequences."""
    batch = batch_of([4, 3])
    packed = PackedInput.of(batch)
    assert packed.positions_T.tolist() == [0, 1, 2, 3, 0, 1, 2]
    assert packed.policy_N.tolist() == [1, 2, 3, 5, 6]
    assert packed.temperatures_N.tolist() == pytest.approx([1.0, 1.0, 1.0, 0.6, 0.6])


def test_a_policy_token_that_nothing_predicts_is_an_error():
    batch = batch_of([4])
    batch.roles_T[0] = Role.POLICY
    with pytest.raises(ValueError, match=r"p0.*first token"):
        PackedInput.of(batch)


def test_a_model_with_capped_attention_is_refused(tmp_path):
    torch.manual_seed(0)
    Gemma2ForCausalLM(Gemma2Config(**SIZE, attn_logit_softcapping=5.0)).save_pretrained(tmp_path)
    with pytest.raises(RollRayError, match="softcap"):
        load_policy(str(tmp_path))


def test_a_model_that_scales_its_logits_is_refused():
    torch.manual_seed(0)
    model = GraniteForCausalLM(GraniteConfig(**SIZE, logits_scaling=4.0)).eval()
    model.set_attn_implementation(PACKED_ATTENTION)
    with pytest.raises(RollRayError, match="differ from the model's own"):
        check_policy(PolicyModel(model))


def test_a_folder_without_a_model_is_a_clear_error(tmp_path):
    with pytest.raises(RollRayError, match=r"no config\.json"):
        load_policy(str(tmp_path))


def test_a_large_vocabulary_in_chunks_gives_the_same_log_probabilities_and_gradients(monkeypatch):
    torch.manual_seed(0)
    head = torch.nn.Linear(16, 50, bias=False)
    hidden_N = torch.randn(23, 16, requires_grad=True)
    targets_N, temperatures_N = torch.randint(50, (23,)), torch.linspace(0.5, 1.5, 23)

    def run():
        head.zero_grad()
        hidden_N.grad = None
        logprobs_N, entropy_N = token_logprobs(head, hidden_N, targets_N, temperatures_N)
        (logprobs_N * torch.arange(23)).sum().backward()
        return logprobs_N.detach(), entropy_N, hidden_N.grad.clone(), head.weight.grad.clone()

    whole = run()
    monkeypatch.setattr(token_logprobs_module, "KEPT_LOGITS", 100)
    monkeypatch.setattr(token_logprobs_module, "LOGITS_PER_CHUNK", 200)
    for a, b in zip(whole, run(), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-5)


def test_entropy_is_that_of_the_tempered_distribution_and_survives_impossible_tokens():
    head = torch.nn.Identity()
    head.weight = torch.zeros(4, 4)
    hidden = torch.tensor([[0.0, 0.0, -torch.inf, -torch.inf], [2.0, 0.0, 0.0, 0.0]])
    logprobs_N, entropy_N = token_logprobs(head, hidden, torch.tensor([0, 0]), torch.tensor([1.0, 0.5]))
    p = torch.softmax(torch.tensor([4.0, 0, 0, 0]), -1)
    assert entropy_N.tolist() == pytest.approx([np.log(2), float(-(p * p.log()).sum())])
    assert logprobs_N.tolist() == pytest.approx([-np.log(2), float(p[0].log())])


@pytest.mark.parametrize("lengths", [(5, 5, 3), (300, 7)], ids=["short, in float32", "long, as it stands"])
def test_bfloat16_attention_and_its_gradients_are_float32s_rounded(lengths):
    torch.manual_seed(0)
    layout, heads, size = PackedLayout.of(lengths), 4, 16
    wide = [torch.randn(1, h, sum(lengths), size) for h in (heads, 2, 2)]
    module, seen = torch.nn.Module(), []
    for dtype in (torch.float32, torch.bfloat16):
        inputs = [x.to(torch.bfloat16).to(dtype).requires_grad_() for x in wide]
        output, _ = packed_attention(module, *inputs, None, packed_layout=layout)
        assert output.dtype == dtype
        output.square().sum().backward()
        assert all(x.grad is not None and x.grad.dtype == dtype for x in inputs)
        seen.append([output.float(), *(x.grad.float() for x in inputs)])
    for exact, rounded in zip(*seen, strict=True):
        assert torch.allclose(exact, rounded, rtol=0.05, atol=0.05)
