"""One rank of the process tests: python fsdp2_rank_program.py JOB_FOLDER RANK WORLD_SIZE.

Runs every case of JOB_FOLDER/job.json on its share and leaves what it saw in JOB_FOLDER/<case>-<rank>.pt.
"""

import faulthandler
import json
import math
import sys
from pathlib import Path

import numpy as np
import torch

from roll_ray.algorithms.loss_settings import LossSettings
from roll_ray.batch import Batch
from roll_ray.recording import load_batch
from workers.backends.base import OptimizerSettings
from workers.trainer import PolicyTrainer, TrainerSpec


def share_of(folder: Path, case: str, rank: int) -> Batch:
    batch = load_batch(folder / f"{case}-{rank}.npz")
    batch.extra_B["advantages"] = np.load(folder / f"{case}-{rank}-advantages.npy")
    for array in (batch.tokens_T, batch.roles_T, batch.logprobs_T, *batch.extra_B.values()):
        array.flags.writeable = False  # as they come from an object store
    return batch


def weights(trainer: PolicyTrainer) -> dict[str, torch.Tensor]:
    return {name: tensor.clone() for name, tensor in trainer._backend.named_tensors()}


def run_case(trainer: PolicyTrainer, folder: Path, case: dict, rank: int) -> dict:
    share, denominator = share_of(folder, case["name"], rank), case["denominator"]
    seen: dict = {"logprobs": trainer.logprobs(share)}
    seen["sums"] = trainer.accumulate(share)
    shards = trainer._backend._shards.items()
    seen["gradients"] = {name: p.grad.full_tensor().clone() for name, p in shards}
    seen["steps"] = [trainer.step(denominator)]
    for _ in range(2):
        trainer.accumulate(share)
        seen["steps"].append(trainer.step(denominator))
    trainer.save(str(folder / f"{case['name']}-checkpoint"))
    seen["saved"] = weights(trainer)
    for attempt in ("straight", "resumed"):
        if attempt == "resumed":
            trainer.load(str(folder / f"{case['name']}-checkpoint"))
        steps = []
        for _ in range(2):
            trainer.accumulate(share)
            steps.append(trainer.step(denominator))
        seen[attempt] = (steps, weights(trainer), torch.get_rng_state())
    seen["skipped"] = skipped_steps(trainer, share, denominator)
    seen["after_skips"] = weights(trainer)
    return seen


def skipped_steps(trainer: PolicyTrainer, share: Batch, denominator: float) -> list[dict]:
    trainer.accumulate(share)
    results = [trainer.step(0.0)]
    share.extra_B["advantages"] = np.full(len(share), math.nan, np.float32)
    trainer.accumulate(share)
    return [*results, trainer.step(denominator)]


def main() -> None:
    folder, rank, world_size = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
    faulthandler.dump_traceback_later(100, exit=True)  # a rank that waits for ever says where
    torch.set_num_threads(1)
    for case in json.loads((folder / "job.json").read_text()):
        spec = TrainerSpec(
            case["model"],
            OptimizerSettings(
                learning_rate=1e-2, warmup_steps=2, lr_schedule="linear", total_steps=20, max_grad_norm=0.5
            ),
            LossSettings(**case["loss"]),
            tokens_per_device=case["tokens_per_device"],
        )
        trainer = PolicyTrainer(spec, rank, world_size)
        trainer.start("127.0.0.1", case["port"])
        torch.save(run_case(trainer, folder, case, rank), folder / f"{case['name']}-{rank}.pt")
        manifest = trainer.publish(3, str(folder / "published" / case["name"]))
        assert (manifest is not None) == (rank == 0)
        if manifest is not None:
            (folder / f"{case['name']}-manifest.json").write_text(json.dumps(manifest.to_plain()))
        trainer.export_hf(str(folder / f"{case['name']}-export"))
        trainer.stop()


if __name__ == "__main__":
    main()
