"""What one GPU must show before a run: torch only, no Ray, no vLLM, random weights, under 4 minutes.

    python benchmarks/gpu_check.py [--out FOLDER]     on a machine with a CUDA GPU; exit code 2 without one
    python benchmarks/gpu_check.py --cpu              a dry run of everything that is not CUDA's own, small

1. The trainer (FSDP2, packed attention) against plain torch: log-probabilities and gradients.
2. The bfloat16 floor: |log-ratio| of the same tokens in two forwards whose batches differ. No importance
   ratio of a bfloat16 run can be closer to 1 than this.
3. Tokens per second and peak memory of forward, backward and step.
4. Our side of a CUDA-IPC weight transport: a second process maps the bucket and finds what was sent.

Every check ends in a line with its verdict and in gpu_check-<date>.json.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import platform
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.multiprocessing
import xxhash

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from roll_ray.algorithms.aggregation import denominator
from roll_ray.algorithms.loss_settings import LossSettings
from roll_ray.algorithms.losses import build_loss
from roll_ray.batch import Batch
from roll_ray.sample import Reward, Role, Sample, SamplingDistribution
from schedulers.protocol import SampleId, Visit
from workers.backends.base import OptimizerSettings
from workers.backends.fsdp2 import FSDP2Backend
from workers.backends.process_group import join_alone

NO_GPU = 2
IPC_TIMEOUT_S = 60


@dataclass
class Size:
    """The random Qwen3 of this check and its batch. On a GPU: 0.6 B parameters, 128 samples of up to 512 tokens."""

    layers: int = 28
    hidden: int = 1024
    intermediate: int = 3072
    heads: int = 16
    kv_heads: int = 8
    head_dim: int = 128
    vocab: int = 151_936
    samples: int = 128
    max_tokens: int = 512
    bucket_mb: int = 512
    tokens_per_device: int = 8192


DRY = Size(2, 64, 128, 4, 2, 16, 512, 12, 40, 4, 256)


@dataclass
class Report:
    """Verdicts, a line each as they come, and all of it as plain data."""

    device: str
    checks: list[dict[str, Any]] = field(default_factory=list)

    def run(self, name: str, check: Callable[[], dict[str, Any]]) -> None:
        """`check` gives its figures and under "ok" its verdict; an exception is a verdict as well."""
        started = time.monotonic()
        try:
            figures = check()
        except Exception as error:
            figures = {"ok": False, "error": f"{type(error).__name__}: {error}"}
        figures["seconds"] = round(time.monotonic() - started, 2)
        self.checks.append({"name": name, **figures})
        shown = ", ".join(f"{k} {_short(v)}" for k, v in figures.items() if k != "ok")
        print(f"{'pass' if figures['ok'] else 'FAIL'}  {name}: {shown}", flush=True)

    @property
    def ok(self) -> bool:
        return all(check["ok"] for check in self.checks)

    def write(self, folder: Path) -> Path:
        now = datetime.now(UTC)
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / f"gpu_check-{now:%Y-%m-%d-%H%M%S}.json"
        facts = {
            "when": now.isoformat(timespec="seconds"),
            "device": self.device,
            "torch": torch.__version__,
            "cuda": torch.version.cuda,
            "python": platform.python_version(),
            "ok": self.ok,
            "checks": self.checks,
        }
        path.write_text(json.dumps(facts, indent=2) + "\n")
        return path


def _short(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def make_model(size: Size, folder: str) -> None:
    from transformers import Qwen3Config, Qwen3ForCausalLM

    torch.manual_seed(0)
    config = Qwen3Config(
        vocab_size=size.vocab,
        hidden_size=size.hidden,
        intermediate_size=size.intermediate,
        num_hidden_layers=size.layers,
        num_attention_heads=size.heads,
        num_key_value_heads=size.kv_heads,
        head_dim=size.head_dim,
        tie_word_embeddings=True,
        max_position_embeddings=4096,
    )
    Qwen3ForCausalLM(config).save_pretrained(folder)


def make_batch(size: Size, n: int | None = None) -> Batch:
    """Random samples: a quarter prompt, the rest written by the policy."""
    random = np.random.default_rng(0)
    samples = []
    for i in range(n or size.samples):
        length = int(random.integers(size.max_tokens // 4, size.max_tokens + 1))
        roles = np.full(length, Role.POLICY, np.int8)
        roles[: size.max_tokens // 8] = Role.PROMPT
        samples.append(
            Sample(
                id=SampleId(Visit(f"p{i // 8}", 0), i % 8),
                attempt=0,
                tokens_T=random.integers(0, size.vocab, length).astype(np.int32),
                roles_T=roles,
                logprobs_T=np.zeros(length, np.float32),
                versions_T=np.zeros(length, np.int32),
                reward=Reward(0.0),
                finish_reason="stop",
                sampling=SamplingDistribution(temperature=0.8),
            )
        )
    batch = Batch.of(samples)
    batch.extra_B["advantages"] = random.normal(size=len(batch)).astype(np.float32)
    return batch


class Checks:
    """The checks, over one model folder on one device."""

    def __init__(self, size: Size, model: str, kind: str) -> None:
        self.size, self.model, self.kind = size, model, kind
        self.device = torch.device("cuda", 0) if kind == "gpu" else torch.device("cpu")

    def backend(self, dtype: str, tokens_per_device: int | None = None) -> FSDP2Backend:
        return FSDP2Backend(
            self.model,
            OptimizerSettings(1e-6),
            dtype=dtype,  # type: ignore[arg-type]
            tokens_per_device=tokens_per_device or self.size.tokens_per_device,
            kind=self.kind,  # type: ignore[arg-type]
        )

    def against_plain_torch(self, dtype: str) -> dict[str, Any]:
        """Four samples: packed and sharded against a padded-free plain forward of eager attention in float32."""
        batch = make_batch(self.size, 4)
        ours = self.backend(dtype)
        logprobs_T = ours.logprobs(batch)
        ours.accumulate(batch, build_loss(LossSettings(name="sft")))
        gradients = {name: p.grad.full_tensor().float() for name, p in ours._shards.items()}
        del ours
        expected_T, expected = self._plain(batch)
        worst = float(np.abs(logprobs_T - expected_T).max())
        difference = _joint_norm([gradients[n] - expected[n] for n in expected])
        relative = difference / _joint_norm(list(expected.values()))
        limits = (1e-3, 1e-3) if dtype == "float32" else (0.25, 0.1)
        return {
            "ok": worst <= limits[0] and relative <= limits[1],
            "logprob_difference_max": worst,
            "gradient_difference_relative": relative,
        }

    def _plain(self, batch: Batch) -> tuple[np.ndarray, dict[str, torch.Tensor]]:
        from transformers import AutoModelForCausalLM

        model = AutoModelForCausalLM.from_pretrained(
            self.model, dtype=torch.float32, attn_implementation="eager"
        ).to(self.device)
        model.eval()
        logprobs_T = np.zeros(len(batch.tokens_T), np.float32)
        for i in range(len(batch)):
            span = batch.token_span(i)
            tokens = torch.tensor(batch.tokens_T[span], dtype=torch.int64, device=self.device)
            logits = model(input_ids=tokens[None], use_cache=False).logits[0, :-1]
            lp_T = torch.log_softmax(logits / batch.sampling[i].temperature, -1).gather(-1, tokens[1:, None])[
                :, 0
            ]
            mask_T = torch.tensor(batch.policy_mask_T[span][1:], device=self.device)
            (-lp_T[mask_T].sum()).backward()
            logprobs_T[span][1:] = torch.where(mask_T, lp_T, 0).detach().cpu().numpy()
        return logprobs_T, {name: p.grad for name, p in model.named_parameters()}

    def ratio_floor(self) -> dict[str, Any]:
        """Two forwards of equal weights and tokens; small micro-batches against large ones, another order."""
        batch = make_batch(self.size)
        backend = self.backend("bfloat16")
        first_T = backend.logprobs(batch)
        order = np.random.default_rng(1).permutation(len(batch)).tolist()
        shuffled = batch.select(order)
        backend.tokens_per_device = self.size.max_tokens * 2
        again = backend.logprobs(shuffled)
        second_T = np.zeros_like(first_T)
        for position, i in enumerate(order):
            second_T[batch.token_span(i)] = again[shuffled.token_span(position)]
        ratio_T = np.abs(first_T - second_T)[batch.policy_mask_T]
        return {
            "ok": bool(np.isfinite(ratio_T).all() and ratio_T.max() < 0.5),
            "log_ratio_mean": float(ratio_T.mean()),
            "log_ratio_p99": float(np.quantile(ratio_T, 0.99)),
            "log_ratio_max": float(ratio_T.max()),
            "tokens": int(batch.policy_tokens_B.sum()),
        }

    def speed_and_memory(self) -> dict[str, Any]:
        """Three optimizer steps in bfloat16, the first for warm-up."""
        batch = make_batch(self.size)
        backend, loss = self.backend("bfloat16"), build_loss(LossSettings())
        divisor = denominator("token_mean", batch.policy_tokens_B)
        if self.kind == "gpu":
            torch.cuda.reset_peak_memory_stats()
        times = []
        for _ in range(3):
            started = time.monotonic()
            sums = backend.accumulate(batch, loss)
            result = backend.step(divisor)  # reads the gradient norm: the device is done
            times.append(time.monotonic() - started)
        peak = torch.cuda.max_memory_allocated() / 2**30 if self.kind == "gpu" else None
        ratio = sums["ratio_max"].value
        return {
            "ok": not result.skipped and ratio == 1.0,
            "tokens_per_s": len(batch.tokens_T) / min(times[1:]),
            "step_s": min(times[1:]),
            "peak_memory_gib": peak,
            "parameters": sum(p.numel() for p in backend._shards.values()),
        }

    def ipc(self) -> dict[str, Any]:
        """A bucket of device memory, sent by handle; the other process hashes what it maps, before and after a
        change in place. On the CPU the handle names shared memory instead of CUDA memory."""
        n = self.size.bucket_mb << 20
        bucket = torch.randint(0, 256, (n,), dtype=torch.uint8, device=self.device)
        context = torch.multiprocessing.get_context("spawn")
        ours, theirs = context.Pipe()
        tensors: multiprocessing.Queue[torch.Tensor] = context.Queue()
        process = context.Process(target=_receive, args=(tensors, theirs), daemon=True)
        process.start()
        try:
            _answer(ours)  # it is up: its start is not the transport's time
            started = time.monotonic()
            tensors.put(bucket)
            first = _answer(ours)
            mapped_s = time.monotonic() - started
            same = first == _digest(bucket)
            bucket.add_(1)
            if self.kind == "gpu":
                torch.cuda.synchronize()
            ours.send("again")
            after_change = _answer(ours) == _digest(bucket)
            ours.send("stop")
            process.join(IPC_TIMEOUT_S)
        finally:
            process.kill()
        return {
            "ok": same and after_change and process.exitcode == 0,
            "bytes": n,
            "mapped_without_copy": after_change,
            "mapped_and_hashed_s": mapped_s,
        }


def _joint_norm(tensors: list[torch.Tensor]) -> float:
    return float(torch.stack([t.norm() for t in tensors]).norm())


def _digest(tensor: torch.Tensor) -> int:
    return xxhash.xxh3_64_intdigest(tensor.cpu().numpy().data)


def _answer(connection: Any) -> Any:
    if not connection.poll(IPC_TIMEOUT_S):
        raise TimeoutError(f"the receiving process did not answer within {IPC_TIMEOUT_S} s")
    return connection.recv()


def _receive(tensors: Any, connection: Any) -> None:
    """The other process: holds the mapping, hashes it when asked."""
    connection.send("up")
    tensor = tensors.get(timeout=IPC_TIMEOUT_S)
    connection.send(_digest(tensor))
    while connection.recv() != "stop":
        connection.send(_digest(tensor))
    del tensor  # the mapping is given back before the sender frees the memory


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--cpu", action="store_true", help="dry run on the CPU, small; proves nothing about a GPU"
    )
    parser.add_argument("--out", type=Path, default=Path("."), help="folder of the result file")
    options = parser.parse_args()
    if not options.cpu and not torch.cuda.is_available():
        print(
            "no CUDA GPU is visible to torch, and this check is about one; --cpu dry-runs the rest",
            file=sys.stderr,
        )
        return NO_GPU
    kind, size = ("cpu", DRY) if options.cpu else ("gpu", Size())
    report = Report("cpu (dry run)" if options.cpu else torch.cuda.get_device_name(0))
    with tempfile.TemporaryDirectory() as folder:
        make_model(size, folder)
        join_alone(kind)  # type: ignore[arg-type]
        checks = Checks(size, folder, kind)
        report.run("trainer equals plain torch, float32", lambda: checks.against_plain_torch("float32"))
        report.run("trainer equals plain torch, bfloat16", lambda: checks.against_plain_torch("bfloat16"))
        report.run("bfloat16 ratio floor", checks.ratio_floor)
        report.run("speed and peak memory", checks.speed_and_memory)
        report.run("weights by CUDA IPC" if kind == "gpu" else "weights by shared memory", checks.ipc)
    print(f"{'all passed' if report.ok else 'FAILED'}; written to {report.write(options.out)}")
    return 0 if report.ok else 1


if __name__ == "__main__":
    sys.exit(main())
