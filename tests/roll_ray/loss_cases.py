"""Batches of a few tokens, and a loss evaluated on them: what the tests of the losses share."""

import numpy as np
import torch

from roll_ray.algorithms.loss_registry import Terms
from roll_ray.algorithms.loss_settings import LossSettings
from roll_ray.algorithms.losses import build_loss
from roll_ray.algorithms.segments import Segments
from roll_ray.algorithms.token_batch import PolicyOutput
from roll_ray.batch import Batch
from roll_ray.sample import Reward, Role, Sample, SamplingDistribution
from schedulers.protocol import SampleId, Visit


def sample(i, logprobs, roles=None, reward=1.0, prompt="p"):
    roles = [Role.POLICY] * len(logprobs) if roles is None else roles
    n = len(logprobs)
    return Sample(
        id=SampleId(Visit(prompt, 0), i),
        attempt=0,
        tokens_T=np.arange(n, dtype=np.int32),
        roles_T=np.asarray(roles, np.int8),
        logprobs_T=np.asarray(logprobs, np.float32),
        versions_T=np.zeros(n, np.int32),
        reward=Reward(reward),
        finish_reason="stop",
        sampling=SamplingDistribution(),
    )


def batch_of(*logprobs, advantages, roles=None, **extra_T):
    batch = Batch.of([sample(i, x, None if roles is None else roles[i]) for i, x in enumerate(logprobs)])
    batch.extra_B["advantages"] = np.asarray(advantages, np.float32)
    batch.extra_T.update({k: np.asarray(v, np.float32) for k, v in extra_T.items()})
    return batch


def evaluate(batch, current_T, **options):
    """Loss, gradient by current log-probability, metrics."""
    loss = build_loss(LossSettings(**options))
    logprobs_T = torch.tensor(current_T, dtype=torch.float32, requires_grad=True)
    result = loss(loss.tensors(batch), PolicyOutput(logprobs_T))
    result.loss.backward()
    return float(result.loss.detach()), logprobs_T.grad.numpy(), result.metrics


def terms_of(lengths, lp, old, behaviour, advantages, rewards):
    """Terms in float64 from lists over all tokens (advantages, rewards: a sample), all policy tokens."""

    def double(values):
        return torch.tensor(values, dtype=torch.float64)

    counts = torch.tensor(lengths)
    return Terms(
        logprobs_T=double(lp).requires_grad_(),
        old_logprobs_T=double(old),
        behaviour_logprobs_T=double(behaviour),
        advantages_T=double(advantages).repeat_interleave(counts),
        rewards_T=double(rewards).repeat_interleave(counts),
        segments=Segments(counts, sum(lengths)),
    )
