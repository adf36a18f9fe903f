"""The FSDP2 trainer backend: sharded float32 master weights, gradient sums, AdamW.

Without Ray, in one process:

    from workers.backends.process_group import join_alone
    join_alone()
    backend = FSDP2Backend(folder, OptimizerSettings(learning_rate=1e-3))
    loss = build_loss(LossSettings(name="sft"))
    backend.accumulate(batch, loss)
    backend.step(denominator("token_mean", batch.policy_tokens_B))
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.tensor import DTensor

from roll_ray.algorithms.losses import Loss
from roll_ray.algorithms.metric_sums import MetricSum, merge_sums
from roll_ray.algorithms.token_batch import PolicyOutput
from roll_ray.batch import Batch
from roll_ray.checkpoint import disk_error
from roll_ray.errors import RollRayError
from workers.backends.base import OptimizerSettings, StepMetrics
from workers.backends.fsdp2_policy import Dtype, FSDP2Policy
from workers.backends.process_group import DeviceKind, largest
from workers.hf_model import PackedInput


class FSDP2Backend(FSDP2Policy):
    """One rank of a `TrainerBackend`. The process group must have been joined."""

    def __init__(
        self,
        model: str,
        optimizer: OptimizerSettings,
        *,
        dtype: Dtype = "float32",
        tokens_per_device: int = 4096,
        kind: DeviceKind = "cpu",
        seed: int = 0,
    ) -> None:
        super().__init__(model, dtype=dtype, tokens_per_device=tokens_per_device, kind=kind)
        torch.manual_seed(seed * 100_003 + dist.get_rank())
        self.settings = optimizer
        self.steps_done = 0
        self.steps_skipped = 0
        self._pending = False  # gradients that were not yet summed over ranks
        self._shards = {name: p for name, p in self.named_parameters() if p.requires_grad}
        # the optimizer works on the local shards: every operation on a DTensor costs a dispatch in Python
        self._locals = {name: torch.nn.Parameter(p.to_local().detach()) for name, p in self._shards.items()}
        self._adamw = torch.optim.AdamW(
            list(self._locals.values()), lr=1.0, weight_decay=optimizer.weight_decay, fused=True
        )
        for local in self._locals.values():
            self._adamw.state[local] = {
                "step": torch.zeros((), dtype=torch.float32, device=local.device),
                "exp_avg": torch.zeros_like(local),
                "exp_avg_sq": torch.zeros_like(local),
            }

    def accumulate(self, share: Batch, loss: Loss, *, final: bool = True) -> dict[str, MetricSum]:
        """Add the gradient of this rank's share, un-normalised. See `TrainerBackend`."""
        plan = self.micro_batches(share)
        rounds = largest(max(len(plan), 1 if final else 0))
        sums: list[dict[str, MetricSum]] = []
        for number in range(rounds):
            last = final and number == rounds - 1
            self.module.set_requires_gradient_sync(last)  # type: ignore[operator]
            self.module.set_is_last_backward(last)  # type: ignore[operator]
            if number < len(plan):
                sums.append(self._micro_batch(share.select(plan[number]), loss))
            else:
                logprobs_N, _ = self.module(self.dummy())
                (logprobs_N.sum() * 0.0).backward()
            self._pending = not last
        return merge_sums(sums)

    def _micro_batch(self, part: Batch, loss: Loss) -> dict[str, MetricSum]:
        packed = PackedInput.of(part, self.device)
        logprobs_N, entropy_N = self.module(packed, loss.settings.entropy_coefficient > 0)
        zeros_T = torch.zeros(len(part.tokens_T), device=self.device)
        output = PolicyOutput(
            logprobs_T=zeros_T.index_copy(0, packed.policy_N, logprobs_N),
            entropy_T=zeros_T.index_copy(0, packed.policy_N, entropy_N),
        )
        result = loss(loss.tensors(part, self.device), output)
        result.loss.backward()
        return result.metrics

    @torch.no_grad()
    def step(self, denominator: float) -> StepMetrics:
        """Divide once, clip by the global norm, update. See `TrainerBackend`."""
        if self._pending:
            raise RuntimeError("step() after accumulate(final=False): close the batch with final=True first")
        rate = self.settings.rate_at(self.steps_done + self.steps_skipped)
        grads = [p.grad.to_local() for p in self._shards.values() if p.grad is not None]
        norm, skipped = math.nan, ""
        if not denominator > 0 or not math.isfinite(denominator):
            skipped = f"the denominator is {denominator}: no valid token in the batch"
        elif not grads:
            raise RuntimeError("step() without accumulate(): there is no gradient")
        else:
            norm = self._global_norm(grads) / denominator
            if not math.isfinite(norm):
                skipped = f"the gradient norm is {norm}"
        if skipped:
            self.steps_skipped += 1
        else:
            self._update(grads, denominator, norm, rate)
            self.steps_done += 1
        self.module.zero_grad(set_to_none=True)
        return StepMetrics(norm, rate, skipped)

    def _global_norm(self, grads: list[torch.Tensor]) -> float:
        squares = torch.stack(torch._foreach_norm(grads)).double().square().sum()
        if dist.get_world_size() > 1:
            dist.all_reduce(squares)
        return math.sqrt(squares.item()) if squares.isfinite() else float(squares.item())

    def _update(self, grads: list[torch.Tensor], denominator: float, norm: float, rate: float) -> None:
        clip = min(1.0, self.settings.max_grad_norm / (norm + 1e-6))
        torch._foreach_mul_(grads, clip / denominator)
        for name, local in self._locals.items():
            grad = self._shards[name].grad
            local.grad = None if grad is None else grad.to_local()
        for group in self._adamw.param_groups:
            group["lr"] = rate
        self._adamw.step()
        self._adamw.zero_grad(set_to_none=True)

    def _state(self) -> dict[str, Any]:
        def moment(name: str, key: str) -> DTensor:
            shard = self._shards[name]
            local = self._adamw.state[self._locals[name]][key]
            return DTensor.from_local(
                local,
                shard.device_mesh,
                shard.placements,
                run_check=False,
                shape=shard.shape,
                stride=shard.stride(),
            )

        return {
            "model": dict(self.named_parameters()),
            "exp_avg": {name: moment(name, "exp_avg") for name in self._shards},
            "exp_avg_sq": {name: moment(name, "exp_avg_sq") for name in self._shards},
            "counters": {
                "steps_done": self.steps_done,
                "steps_skipped": self.steps_skipped,
                "world_size": dist.get_world_size(),
            },
        }

    def save(self, folder: str) -> None:
        """Weights, optimizer, counters and random state, all ranks into one folder."""
        state = self._state()
        state["random"] = {f"rank{dist.get_rank()}": torch.get_rng_state()}
        try:
            dcp.save(state, checkpoint_id=folder)
        except dcp.CheckpointException as error:  # a BaseException, which would end the worker's process
            raise disk_error(Path(folder), _cause(error)) from _cause(error)

    @torch.no_grad()
    def load(self, folder: str) -> None:
        """Go on from `save`; on another number of ranks everything but the random state is the same."""
        state = self._state()
        try:
            dcp.load(state, checkpoint_id=folder)
        except dcp.CheckpointException as error:
            raise RollRayError(
                f"the trainer cannot go on from {folder}",
                why=str(_cause(error)).splitlines()[0],
                next_step="check that the folder is reached from every node, and that model and its settings "
                "are those that the run began with",
            ) from _cause(error)
        counters = state["counters"]
        self.steps_done, self.steps_skipped = counters["steps_done"], counters["steps_skipped"]
        for local in self._locals.values():
            self._adamw.state[local]["step"].fill_(self.steps_done)
        if counters["world_size"] == dist.get_world_size():
            random = {f"rank{dist.get_rank()}": torch.get_rng_state()}
            dcp.load({"random": random}, checkpoint_id=folder)
            torch.set_rng_state(random[f"rank{dist.get_rank()}"])
        self.module.zero_grad(set_to_none=True)
        self._pending = False


def _cause(error: dcp.CheckpointException) -> BaseException:
    """What the first rank that failed saw; a fault of the system before others that it leads to."""
    causes = [cause for cause, _ in error.failures.values()]
    return next((cause for cause in causes if isinstance(cause, OSError)), causes[0])
