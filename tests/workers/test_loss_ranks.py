"""Real gloo processes: each loss with each aggregation is, on any number of ranks, what one process gets."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from roll_ray.algorithms.aggregation import AGGREGATIONS, denominator
from tests.workers.loss_rank_program import Bigram, accumulate, whole_batch

PROGRAM = Path(__file__).parent / "loss_rank_program.py"
LOSSES = {
    "ppo": {"kl_coefficient": 0.1},
    "ppo with dual clip": {"dual_clip": 1.2},
    "gspo": {"name": "gspo", "clip_low": 0.02, "clip_high": 0.03},
    "cispo": {"name": "cispo"},
    "topr": {"name": "topr"},
    "decoupled ppo": {"name": "decoupled_ppo", "decoupled_cap": 1.1},
    "ppo with truncated is": {"correction": "truncated_is", "correction_high": 1.3},
    "ppo with rejection": {"correction": "rejection", "correction_level": "sequence"},
}
CASES = {
    (loss, aggregation): {**options, "aggregation": aggregation, "aggregation_length": 12}
    for loss, options in LOSSES.items()
    for aggregation in AGGREGATIONS
    if (loss, aggregation) != ("ppo with rejection", "prompt_mean")
}
SHARES = {2: [[0, 3, 4, 7, 10, 5], [9, 8, 6, 2, 1]], 3: [[10, 1, 0, 2, 9, 7], [], [3, 4, 5, 6, 8]]}


def run_ranks(folder, world_size):
    job = {"shares": SHARES[world_size], "cases": list(CASES.values())}
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
        outputs = [rank.communicate(timeout=90)[0] for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()
    assert all(rank.returncode == 0 for rank in ranks), "\n".join(outputs)
    return torch.load(folder / "seen.pt", weights_only=False)


def per_unit(sums, gradients, options):
    """Loss and gradients after the single division."""
    batch = whole_batch()
    loss_sum, rejected, _ = sums
    divisor = denominator(
        options["aggregation"],
        batch.policy_tokens_B,
        groups_B=batch.visits,
        trained_B=batch.extra_B["trained"],
        length=options["aggregation_length"],
    )
    return loss_sum / (divisor - rejected), torch.cat([g.flatten() for g in gradients]) / (divisor - rejected)


@pytest.mark.parametrize("world_size", [2, pytest.param(3, marks=pytest.mark.engine)])
def test_ranks_agree_with_one_process(world_size, tmp_path):
    seen = run_ranks(tmp_path, world_size)
    moved = {}
    for (case, options), (sums, gradients) in zip(CASES.items(), seen, strict=True):
        module = Bigram()
        whole = accumulate(module, whole_batch(), options, 1000)
        expected, expected_P = per_unit(whole, [p.grad for p in module.parameters()], options)
        loss, gradient_P = per_unit(sums, gradients, options)
        assert loss == pytest.approx(expected, rel=1e-6, abs=1e-7), case
        assert (gradient_P - expected_P).norm() <= 1e-6 * expected_P.norm(), case
        assert sums[1:] == whole[1:]
        moved[case] = (loss, sums[1])
    assert len(set(moved.values())) == len(CASES)  # no case is another in disguise
    assert all((rejected > 0) == ("rejection" in loss) for (loss, _), (_, rejected) in moved.items())
