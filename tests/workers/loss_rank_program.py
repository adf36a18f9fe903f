"""One rank of a loss on several processes: python loss_rank_program.py JOB_FOLDER RANK WORLD_SIZE.

Every case of JOB_FOLDER/job.json on this rank's share, with a policy of two small matrices. The ranks add up
gradients and sums as a trainer does; rank 0 leaves them in JOB_FOLDER/seen.pt.
"""

import faulthandler
import json
import sys
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist

from roll_ray.algorithms.aggregation import prompt_tokens
from roll_ray.algorithms.loss_settings import LossSettings
from roll_ray.algorithms.losses import build_loss
from roll_ray.algorithms.metric_sums import merge_sums
from roll_ray.algorithms.token_batch import PolicyOutput
from roll_ray.batch import Batch, micro_batches
from roll_ray.sample import Reward, Role, Sample, SamplingDistribution
from schedulers.protocol import SampleId, Visit

VOCABULARY = 17
SUMS = ("loss_sum", "rejected_denominator", "policy_tokens")


class Bigram(torch.nn.Module):
    """log p of each token given the one before it."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embedding = torch.nn.Embedding(VOCABULARY, 6)
        self.head = torch.nn.Linear(6, VOCABULARY, bias=False)

    def forward(self, tokens_T: torch.Tensor) -> torch.Tensor:
        logits_T_V = self.head(self.embedding(tokens_T.roll(1)))
        return torch.log_softmax(logits_T_V, -1).gather(-1, tokens_T[:, None])[:, 0]


def whole_batch() -> Batch:
    """Eleven samples of four prompts; sampled and remembered log-probabilities are near the policy's."""
    random = np.random.default_rng(0)
    samples = []
    for i in range(11):
        n = int(random.integers(4, 14))
        roles = np.full(n, Role.POLICY, np.int8)
        roles[:2] = Role.PROMPT
        roles[5:6] = Role.ENVIRONMENT
        if i == 5:
            roles[2:] = Role.ENVIRONMENT  # an answer of no tokens
        samples.append(
            Sample(
                id=SampleId(Visit(f"p{i // 3}", 0), i % 3),
                attempt=0,
                tokens_T=random.integers(0, VOCABULARY, n).astype(np.int32),
                roles_T=roles,
                logprobs_T=np.zeros(n, np.float32),
                versions_T=np.zeros(n, np.int32),
                reward=Reward(None if i == 7 else float(i % 2)),
                finish_reason="stop",
                sampling=SamplingDistribution(),
            )
        )
    batch = Batch.of(samples)
    with torch.no_grad():
        current_T = Bigram()(torch.tensor(batch.tokens_T, dtype=torch.int64)).numpy()
    n_tokens, trained_B = len(current_T), np.arange(11) != 9
    near = [(current_T + random.normal(0, 0.3, n_tokens)).astype(np.float32) for _ in range(3)]
    batch.logprobs_T[:] = near[0]
    batch.extra_T = {"old_logprobs": near[1], "reference_logprobs": near[2]}
    batch.extra_B = {
        "advantages": random.normal(size=11).astype(np.float32),
        "trained": trained_B,
        "prompt_tokens": prompt_tokens(batch.policy_tokens_B, batch.visits, trained_B),
    }
    return batch


def accumulate(module: Bigram, share: Batch, options: dict, tokens_per_device: int) -> list[float]:
    """Gradients of the share added to the module's; its sums."""
    loss = build_loss(LossSettings(**options))
    parts = []
    for rows in micro_batches(share.lengths_B, tokens_per_device):
        part = share.select(rows)
        output = PolicyOutput(module(torch.tensor(part.tokens_T, dtype=torch.int64)))
        result = loss(loss.tensors(part), output)
        result.loss.backward()
        parts.append(result.metrics)
    sums = merge_sums(parts)
    return [sums[name].total if name in sums else 0.0 for name in SUMS]


def main() -> None:
    folder, rank, world_size = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
    faulthandler.dump_traceback_later(60, exit=True)  # a rank that waits for ever says where
    torch.set_num_threads(1)
    dist.init_process_group("gloo", f"file://{folder}/store", rank=rank, world_size=world_size)
    job, batch, seen = json.loads((folder / "job.json").read_text()), whole_batch(), []
    share = batch.select(job["shares"][rank])
    for options in job["cases"]:
        module = Bigram()
        sums = torch.tensor(accumulate(module, share, options, 20), dtype=torch.float64)
        dist.all_reduce(sums)
        gradients = []
        for parameter in module.parameters():
            gradient = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
            dist.all_reduce(gradient)
            gradients.append(gradient)
        seen.append((sums.tolist(), gradients))
    if rank == 0:
        torch.save(seen, folder / "seen.pt")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
