"""Forward and backward of every loss on one core, as a ratio to `-A * exp(lp - old)` in the same run.

    python benchmarks/loss_speed.py [--samples 1024] [--tokens 8192] [--repeats 3]

The time is that of the whole loss as the trainer calls it: correction, KL term, aggregation and all metrics
included, over a batch of which an eighth is prompt. The yardstick is one line of torch over all tokens. The
target is a ratio of 3 at most at the default size; exit code 1 where a loss misses it.

The yardstick pays for its size, the losses work in pieces and do not: each of its arrays is mapped anew from the
system above some 32 MB, so that a token of it costs twice as much at 1,024 samples as at 128.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from roll_ray.algorithms.aggregation import prompt_tokens
from roll_ray.algorithms.corrections import CORRECTIONS
from roll_ray.algorithms.loss_settings import LossSettings
from roll_ray.algorithms.losses import LOSSES, build_loss
from roll_ray.algorithms.token_batch import PolicyOutput
from roll_ray.batch import Batch
from roll_ray.sample import Role, SamplingDistribution, Times
from schedulers.protocol import SampleId, Visit

TARGET = 3.0
PROMPT_SHARE = 8
VARIANTS: dict[str, dict[str, Any]] = {
    "ppo + dual clip": {"dual_clip": 3.0},
    "ppo + KL k3": {"kl_coefficient": 0.1},
    "ppo + KL straight-through": {"kl_coefficient": 0.1, "kl_estimator": "straight_through"},
    "ppo, seq_mean_token_mean": {"aggregation": "seq_mean_token_mean"},
    "ppo, prompt_mean": {"aggregation": "prompt_mean"},
    "cispo, behaviour": {"name": "cispo", "cispo_anchor": "behaviour"},
    **{f"ppo + {name}": {"correction": name} for name in CORRECTIONS},
    "ppo + truncated_is, sequence": {"correction": "truncated_is", "correction_level": "sequence"},
}


def make_batch(n_samples: int, n_tokens: int) -> Batch:
    """Samples of one length, 8 a prompt, with all fields that a loss may need."""
    random = np.random.default_rng(0)
    shape = n_samples * n_tokens
    roles_T = np.full((n_samples, n_tokens), Role.POLICY, np.int8)
    roles_T[:, : n_tokens // PROMPT_SHARE] = Role.PROMPT
    logprobs_T = -random.random(shape, np.float32)

    def near() -> np.ndarray:
        return logprobs_T + 0.1 * random.standard_normal(shape, np.float32)

    groups = [f"p{i // 8}" for i in range(n_samples)]
    batch = Batch(
        ids=tuple(SampleId(Visit(group, 0), i % 8) for i, group in enumerate(groups)),
        attempts_B=np.zeros(n_samples, np.int32),
        offsets=np.arange(n_samples + 1, dtype=np.int64) * n_tokens,
        tokens_T=np.zeros(shape, np.int32),
        roles_T=roles_T.reshape(-1),
        logprobs_T=logprobs_T,
        versions_T=np.zeros(shape, np.int32),
        rewards_B=(random.random(n_samples) > 0.5).astype(np.float32),
        truncated_B=np.zeros(n_samples, np.bool_),
        sampling=(SamplingDistribution(),) * n_samples,
        domains=("",) * n_samples,
        reasons=("",) * n_samples,
        extracted=(None,) * n_samples,
        parts=({},) * n_samples,
        times=(Times(),) * n_samples,
        extra_T={"old_logprobs": near(), "reference_logprobs": near()},
    )
    batch.extra_B["advantages"] = random.standard_normal(n_samples, np.float32)
    batch.extra_B["prompt_tokens"] = prompt_tokens(batch.policy_tokens_B, groups)
    return batch


def best_s(run: Callable[[], None], repeats: int) -> float:
    times = []
    for _ in range(repeats):
        started = time.perf_counter()
        run()
        times.append(time.perf_counter() - started)
    return min(times)


def yardstick(n_tokens: int) -> Callable[[], None]:
    lp_T = (-torch.rand(n_tokens)).requires_grad_()
    old_T, A_T = -torch.rand(n_tokens), torch.randn(n_tokens)

    def run() -> None:
        lp_T.grad = None
        (-A_T * torch.exp(lp_T - old_T)).sum().backward()

    return run


def forward_and_backward(
    options: dict[str, Any], batch: Batch, current_T: torch.Tensor
) -> Callable[[], None]:
    loss = build_loss(LossSettings(**options))
    tensors = loss.tensors(batch)

    def run() -> None:
        current_T.grad = None
        loss(tensors, PolicyOutput(current_T, entropy_T=current_T.detach())).loss.backward()

    return run


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--samples", type=int, default=1024)
    parser.add_argument("--tokens", type=int, default=8192, help="a sample, its prompt included")
    parser.add_argument("--repeats", type=int, default=3, help="the best counts")
    options = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    batch = make_batch(options.samples, options.tokens)
    current_T = torch.from_numpy(batch.extra_T["old_logprobs"] + 0.05).requires_grad_()
    unit_s = best_s(yardstick(len(batch.tokens_T)), options.repeats + 2)
    print(f"{options.samples} samples x {options.tokens} tokens, one thread, torch {torch.__version__}")
    print(f"{'-A * exp(lp - old)':32} {unit_s * 1e3:8.0f} ms")
    missed = []
    for name, chosen in {**{name: {"name": name} for name in sorted(LOSSES)}, **VARIANTS}.items():
        ratio = best_s(forward_and_backward(chosen, batch, current_T), options.repeats) / unit_s
        print(f"{name:32} {ratio * unit_s * 1e3:8.0f} ms  {ratio:5.2f} x", flush=True)
        missed += [name] if ratio > TARGET else []
    building_s = best_s(lambda: build_loss(LossSettings()).tensors(batch) and None, options.repeats)
    print(f"{'(tensors of the batch, once)':32} {building_s * 1e3:8.0f} ms")
    print(f"missed the target of {TARGET} x: {', '.join(missed)}" if missed else "all within the target")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
