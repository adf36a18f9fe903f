"""Hugging Face causal language models as a policy: packed tokens in, log-probabilities of policy tokens out."""

from __future__ import annotations

import contextlib
import copy
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from huggingface_hub import save_torch_state_dict
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    GenerationConfig,
    PreTrainedConfig,
    PreTrainedModel,
)

from roll_ray.batch import Batch
from roll_ray.errors import RollRayError
from workers.packed_attention import PACKED_ATTENTION, PackedLayout
from workers.token_logprobs import token_logprobs


@dataclass(frozen=True, slots=True)
class PackedInput:
    """A micro-batch without padding. T tokens in all, N of them written by the policy.

    `tokens_T`, `positions_T`: int64, positions start at 0 in each sequence. `policy_N`: places of the policy
    tokens in [0, T). `temperatures_N`: float32, at which each was drawn (greedy counts as 1).
    """

    tokens_T: torch.Tensor
    positions_T: torch.Tensor
    policy_N: torch.Tensor
    temperatures_N: torch.Tensor
    layout: PackedLayout

    @staticmethod
    def of(batch: Batch, device: torch.device | str = "cpu") -> PackedInput:
        """From a batch with at least one sample. Its arrays may be read-only."""
        lengths_B = batch.lengths_B
        mask_T = batch.policy_mask_T
        first_B = mask_T[batch.offsets[:-1]]
        if first_B.any():
            name = batch.ids[int(np.argmax(first_B))]
            raise ValueError(f"sample {name}: its first token is a policy token, which nothing could predict")
        temperatures_B = np.asarray([s.temperature or 1.0 for s in batch.sampling], np.float32)
        positions_T = np.arange(len(mask_T)) - np.repeat(batch.offsets[:-1], lengths_B)
        return PackedInput(
            tokens_T=torch.tensor(batch.tokens_T, dtype=torch.int64, device=device),
            positions_T=torch.tensor(positions_T, device=device),
            policy_N=torch.tensor(np.flatnonzero(mask_T), device=device),
            temperatures_N=torch.tensor(np.repeat(temperatures_B, lengths_B)[mask_T], device=device),
            layout=PackedLayout.of(lengths_B.tolist(), device),
        )

    @staticmethod
    def of_tokens(token_ids: list[int], device: torch.device | str = "cpu") -> PackedInput:
        """One sequence of which every token but the first is asked for, at temperature 1."""
        n = len(token_ids)
        return PackedInput(
            tokens_T=torch.tensor(token_ids, dtype=torch.int64, device=device),
            positions_T=torch.arange(n, device=device),
            policy_N=torch.arange(1, n, device=device),
            temperatures_N=torch.ones(n - 1, device=device),
            layout=PackedLayout.of([n], device),
        )


class PolicyModel(torch.nn.Module):
    """The model with its head inside one forward, so that logits never leave it and stay few."""

    def __init__(self, hf: PreTrainedModel) -> None:
        super().__init__()
        self.hf = hf

    def forward(
        self, packed: PackedInput, entropy_gradient: bool = False
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Log-probability and entropy of each policy token, float32 [N]: the logits at t - 1 predict token t."""
        hidden_T = self.hf.get_decoder()(
            input_ids=packed.tokens_T[None],
            position_ids=packed.positions_T[None],
            use_cache=False,
            packed_layout=packed.layout,
        ).last_hidden_state[0]
        hidden_N = hidden_T.index_select(0, packed.policy_N - 1)
        targets_N = packed.tokens_T.index_select(0, packed.policy_N)
        head = self.hf.get_output_embeddings()
        return token_logprobs(head, hidden_N, targets_N, packed.temperatures_N, entropy_gradient)


def load_policy(model: str, *, check: bool = True) -> PolicyModel:
    """A policy in float32 on the CPU from a Hugging Face folder or hub name; checked to compute what it should."""
    if (folder := Path(model)).exists() and not (folder / "config.json").exists():
        raise RollRayError(f"{model} is not a model folder: there is no config.json in it")
    hf = AutoModelForCausalLM.from_pretrained(
        model, dtype=torch.float32, attn_implementation=PACKED_ATTENTION
    ).eval()
    _refuse_experts(hf)
    policy = PolicyModel(hf)
    if check:
        check_policy(policy)
    return policy


def _refuse_experts(hf: PreTrainedModel) -> None:
    """Fused expert weights have other names in memory than in a checkpoint: engines would not find them."""
    fused = [name for name, p in hf.named_parameters() if ".experts." in name and p.dim() == 3]
    if fused:
        raise RollRayError(
            f"{type(hf).__name__} holds its experts fused ({fused[0]})",
            why="the fsdp2 trainer sends weights under their checkpoint names and does not split fused experts",
            next_step="train a dense model",
        )


@torch.no_grad()
def check_policy(policy: PolicyModel, tolerance: float = 1e-3) -> None:
    """Compare packed log-probabilities with the model's own forward, one sequence at a time.

    Catches what packing or our head would get silently wrong: recurrent layers, scaled or capped logits, a
    kind of attention that we do not know. Raises `RollRayError`; `tolerance` is in nats, float32.
    """
    hf = policy.hf
    generator = torch.Generator().manual_seed(0)
    rows = [torch.randint(hf.config.vocab_size, (n,), generator=generator).tolist() for n in (5, 7)]
    packed = PackedInput(
        tokens_T=torch.tensor(rows[0] + rows[1]),
        positions_T=torch.tensor([*range(5), *range(7)]),
        policy_N=torch.tensor([*range(1, 5), *range(6, 12)]),
        temperatures_N=torch.ones(10),
        layout=PackedLayout.of([5, 7]),
    )
    ours, _ = policy(packed)
    hf.set_attn_implementation("eager")
    try:
        theirs = torch.cat([_own_logprobs(hf, row) for row in rows])
    finally:
        hf.set_attn_implementation(PACKED_ATTENTION)
    difference = float((ours - theirs).abs().max())
    if not difference <= tolerance:
        raise RollRayError(
            f"{type(hf).__name__}: packed log-probabilities differ from the model's own by {difference:.3g} nats",
            why="its layers or its head do something that packed training does not know of",
            next_step="use a plain causal decoder (Qwen2, Qwen3, Llama and alike)",
        )


def _own_logprobs(hf: PreTrainedModel, tokens: list[int]) -> torch.Tensor:
    ids = torch.tensor([tokens])
    logits = hf(input_ids=ids, attention_mask=torch.ones_like(ids), use_cache=False).logits[0, :-1]
    return torch.log_softmax(logits.float(), -1).gather(-1, ids[0, 1:, None])[:, 0]


def save_hf_folder(
    model: str, config: PreTrainedConfig, tensors: dict[str, torch.Tensor], folder: str
) -> None:
    """Write weights, configuration and the tokenizer of `model` as an ordinary Hugging Face folder.

    `tensors`: whole, on the CPU, of one dtype, under checkpoint names. A model without a tokenizer is written
    without one.
    """
    path = Path(folder)
    path.mkdir(parents=True, exist_ok=True)
    save_torch_state_dict(tensors, path, metadata={"format": "pt"})
    config = copy.deepcopy(config)
    config.dtype = next(iter(tensors.values())).dtype
    config.save_pretrained(path)
    for kind in (GenerationConfig, AutoTokenizer):
        # both are optional in a model folder; a trainer needs neither
        with contextlib.suppress(OSError, ValueError):
            kind.from_pretrained(model).save_pretrained(path)
