"""A policy sharded by FSDP2, without an optimizer: the forward half of the trainer, and the frozen reference."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

import numpy as np
import numpy.typing as npt
import torch
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor

from roll_ray.batch import Batch, micro_batches
from workers.backends.gathering import gather, in_groups
from workers.backends.process_group import DeviceKind, device_of, largest
from workers.hf_model import PackedInput, PolicyModel, load_policy

Dtype = Literal["float32", "bfloat16"]
PREFIX = "hf."
GATHER_BYTES = 64 << 20
"""How much is gathered at once: many small weights cost one collective, and large ones no second copy."""


class FSDP2Policy:
    """Loads a Hugging Face model and shards it over the process group that this process is in.

    Weights are float32 (a frozen policy's: `dtype`); the forward pass runs in `dtype`. `tokens_per_device`
    bounds the tokens of one micro-batch.
    """

    def __init__(
        self,
        model: str,
        *,
        dtype: Dtype = "float32",
        tokens_per_device: int = 4096,
        kind: DeviceKind = "cpu",
        trainable: bool = True,
    ) -> None:
        self.device = device_of(kind)
        self.dtype = getattr(torch, dtype)
        self.tokens_per_device = tokens_per_device
        policy = load_policy(model)
        self.config = policy.hf.config
        if not trainable:
            policy.requires_grad_(False).to(self.dtype)
        self.module = self._sharded(policy)

    def _sharded(self, policy: PolicyModel) -> PolicyModel:
        mesh = init_device_mesh(self.device.type, (torch.distributed.get_world_size(),))
        # inputs stay as they are: a temperature in bfloat16 would be another temperature
        precision = MixedPrecisionPolicy(cast_forward_inputs=False)
        if self.dtype == torch.bfloat16:
            precision = MixedPrecisionPolicy(torch.bfloat16, torch.float32, cast_forward_inputs=False)
        layer_classes = set(policy.hf._no_split_modules or ())
        layers = [m for m in policy.modules() if type(m).__name__ in layer_classes]
        for module in [*layers, policy]:
            fully_shard(module, mesh=mesh, mp_policy=precision)
        for module in policy.modules():
            if isinstance(module, FSDPModule):
                # a sum over ranks, not a mean: the step divides once, by its own number. Gloo has no
                # pre-multiplied sum, hence the second line
                module.set_gradient_divide_factor(1.0)
                module.set_force_sum_reduction_for_comms(True)
        return policy

    def micro_batches(self, share: Batch) -> list[list[int]]:
        """Indices of each micro-batch, sorted by length: sequences of equal length are attended together."""
        lengths_B = share.lengths_B
        return [
            sorted(part, key=lambda i: (int(lengths_B[i]), i))
            for part in micro_batches(lengths_B, self.tokens_per_device)
        ]

    @torch.no_grad()
    def logprobs(self, share: Batch) -> npt.NDArray[np.float32]:
        """Log-probabilities [T] of the share's policy tokens at their own temperatures, 0 elsewhere."""
        result_T = np.zeros(len(share.tokens_T), np.float32)
        plan = self.micro_batches(share)
        for number in range(largest(len(plan))):
            if number >= len(plan):
                self.module(self.dummy())
                continue
            part = share.select(plan[number])
            logprobs_N, _ = self.module(PackedInput.of(part, self.device))
            places_T = np.concatenate(
                [np.arange(s.start, s.stop) for s in map(share.token_span, plan[number])]
            )
            result_T[places_T[part.policy_mask_T]] = logprobs_N.float().cpu().numpy()
        self._reshard()
        return result_T

    @torch.no_grad()
    def sequence_logprobs(self, token_ids: list[int]) -> list[float]:
        """Log-probabilities of tokens 1..n-1 at temperature 1; all ranks take part and get the same."""
        logprobs_N, _ = self.module(PackedInput.of_tokens(token_ids, self.device))
        self._reshard()
        return logprobs_N.float().cpu().tolist()

    def dummy(self) -> PackedInput:
        """A micro-batch of a rank that has none left, so that every rank enters the same collectives."""
        return PackedInput.of_tokens([0, 0], self.device)

    def _reshard(self) -> None:
        """Free what a forward without backward leaves gathered: a later change of weights would not reach it."""
        for module in self.module.modules():
            if isinstance(module, FSDPModule):
                module.reshard()

    def named_parameters(self) -> Iterator[tuple[str, DTensor]]:
        """Shards under their checkpoint names; a tied head appears once, as the embedding."""
        for name, parameter in self.module.named_parameters():
            assert isinstance(parameter, DTensor), f"{name} is gathered"
            yield name.removeprefix(PREFIX), parameter

    @torch.no_grad()
    def named_tensors(self, on_cpu: bool = True) -> Iterator[tuple[str, torch.Tensor]]:
        """Every weight, whole, in the forward dtype, on the CPU or where it is computed with; several may be views
        of one buffer. All ranks must enter and exhaust it."""
        for some in in_groups(self.named_parameters(), GATHER_BYTES // self.dtype.itemsize):
            whole = gather([parameter for _, parameter in some], self.dtype, on_cpu)
            yield from zip((name for name, _ in some), whole, strict=True)

    def published_bytes(self) -> int:
        """Size of what `named_tensors` gives."""
        return sum(parameter.numel() * self.dtype.itemsize for _, parameter in self.named_parameters())
