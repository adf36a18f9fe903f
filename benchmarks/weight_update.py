"""What a weight update costs, beside the memory bandwidth of the same run.

    python benchmarks/weight_update.py [--transport-mb 10,100,1000] [--engine-mb 100] [--repeats 5]

Transport: write the buckets (hashed on the way), map them, verify every hash. Whole commit: from the policy's
tensors to an engine that generates with them, each stage by itself. memcpy is the copy of a resident tensor to
resident memory by one thread, measured before each size; the median of the repeats counts. A first version
goes to new pages; from the third on (the steady state, reported) the pages of an outdated one are written again.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import torch

from roll_ray.generation import Canary
from roll_ray.weights.buckets import read_tensors, write_buckets
from roll_ray.weights.folders import remove_run, run_folder

MB = 1_000_000
_TENSOR_MB = 16


def seconds(work: Callable[[], object]) -> float:
    started_s = time.perf_counter()
    work()
    return time.perf_counter() - started_s


def memcpy_mb_s(nbytes: int, repeats: int) -> float:
    source = torch.ones(nbytes // 4)
    target = torch.zeros_like(source)
    return nbytes / MB / statistics.median(seconds(lambda: target.copy_(source)) for _ in range(repeats))


def memcpy_to_new_pages_mb_s(nbytes: int, repeats: int) -> float:
    source = torch.ones(nbytes // 4)
    return nbytes / MB / statistics.median(seconds(source.clone) for _ in range(repeats))


def tensors_of(nbytes: int) -> list[tuple[str, torch.Tensor]]:
    """Float32 tensors of 16 MB and one of what is left."""
    sizes = [_TENSOR_MB * MB] * (nbytes // (_TENSOR_MB * MB)) + [nbytes % (_TENSOR_MB * MB)]
    return [(f"t{i}", torch.randn(size // 4)) for i, size in enumerate(sizes) if size]


def transport(nbytes: int, repeats: int) -> None:
    named, folder = tensors_of(nbytes), run_folder("benchmark")
    memcpy = memcpy_mb_s(nbytes, repeats)
    writing, reading, manifest = [], [], None
    for version in range(repeats + 2):
        started_s = time.perf_counter()
        manifest = write_buckets(folder, version, named)
        written_s = time.perf_counter()
        for _ in read_tensors(manifest):
            pass
        writing.append(written_s - started_s)
        reading.append(time.perf_counter() - written_s)
    whole = [w + r for w, r in zip(writing, reading, strict=True)]
    steady = statistics.median(whole[2:])
    print(
        f"{nbytes / MB:7.0f} MB  memcpy {memcpy:6.0f} MB/s  transport {nbytes / MB / steady:6.0f} MB/s"
        f" = {nbytes / MB / steady / memcpy:4.0%}"
        f"   (write + hash {nbytes / MB / statistics.median(writing[2:]):6.0f},"
        f" map + verify {nbytes / MB / statistics.median(reading[2:]):6.0f}; first version"
        f" {nbytes / MB / whole[0]:6.0f}, memcpy to new pages {memcpy_to_new_pages_mb_s(nbytes, repeats):6.0f})",
        flush=True,
    )
    remove_run(folder)


def make_model(folder: Path, megabytes: int) -> None:
    """A random Qwen3 in float32 of about that size: layers of 512 are added until it is reached."""
    from transformers import AutoModelForCausalLM, Qwen3Config

    hidden, vocabulary, per_layer = 512, 8192, 3.41
    config = Qwen3Config(
        vocab_size=vocabulary,
        hidden_size=hidden,
        intermediate_size=3 * hidden,
        num_hidden_layers=max(1, round((megabytes * MB / 4 - vocabulary * hidden) / (per_layer * MB))),
        num_attention_heads=8,
        num_key_value_heads=4,
        head_dim=64,
        max_position_embeddings=512,
        tie_word_embeddings=True,
    )
    AutoModelForCausalLM.from_config(config, dtype=torch.float32).save_pretrained(folder)


async def whole_commit(megabytes: int, repeats: int) -> None:
    from workers.engine_spec import EngineSpec
    from workers.hf_model import PackedInput, load_policy
    from workers.rollout_engine import RolloutEngine

    with tempfile.TemporaryDirectory() as name:
        make_model(Path(name), megabytes)
        policy = load_policy(name, check=False)
        engine = RolloutEngine(EngineSpec(name, kv_cache_mb=64, threads=torch.get_num_threads()))
        await engine.start()
        folder = run_folder("benchmark")
        tokens = list(range(32))
        rows: list[dict[str, float]] = []
        nbytes = 0

        def named() -> Iterator[tuple[str, torch.Tensor]]:
            yield from ((n, p.detach()) for n, p in policy.hf.named_parameters())

        for version in range(1, repeats + 3):
            started_s = time.perf_counter()
            with torch.no_grad():
                logprobs = policy(PackedInput.of_tokens(tokens))[0].tolist()
            scored_s = time.perf_counter()
            manifest = write_buckets(folder, version, named())
            written_s = time.perf_counter()
            nbytes = manifest.nbytes
            report = await engine.update_weights(
                manifest.with_canary(Canary(tuple(tokens), tuple(logprobs), 1e-4))
            )
            rows.append(
                {
                    "trainer canary": scored_s - started_s,
                    "gather + write + hash": written_s - scored_s,
                    "pause": report.seconds["pause"],
                    "map + verify": report.seconds["hash"],
                    "load (vLLM, with packing)": report.seconds["load"],
                    "re-pack embedding": report.seconds["repack"],
                    "engine canary": report.seconds["canary"],
                    "whole commit": time.perf_counter() - started_s,
                }
            )
        await engine.shutdown()
        remove_run(folder)
    memcpy = memcpy_mb_s(nbytes, repeats)
    print(f"\nengine: random Qwen3 of {nbytes / MB:.0f} MB in float32; memcpy {memcpy:.0f} MB/s")
    for stage in rows[0]:
        median_s = statistics.median(row[stage] for row in rows[2:])
        speed = nbytes / MB / max(median_s, 1e-9)
        print(f"  {stage:28s} {median_s * 1000:8.1f} ms  {speed:8.0f} MB/s = {speed / memcpy:6.1%} of memcpy")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--transport-mb", default="10,100,300,1000")
    parser.add_argument("--engine-mb", type=int, default=100)
    parser.add_argument("--repeats", type=int, default=5)
    arguments = parser.parse_args()
    print(f"{os.cpu_count()} cores, torch {torch.__version__}, {torch.get_num_threads()} thread(s)")
    for megabytes in arguments.transport_mb.split(","):
        transport(int(megabytes) * MB, arguments.repeats)
    if arguments.engine_mb:
        asyncio.run(whole_commit(arguments.engine_mb, arguments.repeats))


if __name__ == "__main__":
    main()
