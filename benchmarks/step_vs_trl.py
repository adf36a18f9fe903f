"""How long is a GRPO step, against TRL's GRPOTrainer with transformers generation, on the same cores?

    python -m benchmarks.step_vs_trl tiny                      Qwen2, hidden 128, 4 layers, 64 x 64 tokens
    python -m benchmarks.step_vs_trl smollm2 [--dtype bfloat16] SmolLM2-135M, 32 samples x 32 tokens
    python -m benchmarks.step_vs_trl smollm2 --lengths tail     lengths with median 8, maximum 64

Both sides: KL off, synchronous, the same precision, prompts and forced lengths, all cores; the first steps
are warm-up. Printed: seconds a step (median), samples a second, the ratio, and where our time goes.
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
from pathlib import Path
from typing import Any

from benchmarks import trl_side
from benchmarks.forced_lengths import limits_of
from benchmarks.our_side import rows_of_run
from recipes.task import Task
from roll_ray.sample import Prompt

WARM_UP = 3
MAPPINGS = {
    "one": "devices.rollout=0 devices.train=0 devices.threads_per_device={cores}",
    "each": "engine.enforce_eager=false",
}
"""Where we sit: one engine and one trainer rank with all cores in turns, or one of each a core, compiled."""
PHASES = ("rollout_s", "train_s", "update_s", "control_s")


def alternating(view: Any) -> float:
    """A reward that costs nothing and gives every group a signal."""
    return float(view.sample.index % 2)


def ours(
    model: Path, dtype: str, prompts: int, samples: int, limits: list[int], steps: int, mapping: list[str]
) -> list[dict[str, Any]]:
    task = Task(
        [
            Prompt(
                id=f"{i:03d}",
                text="the quick brown fox jumps over ",
                info={"max_new_tokens": limits[i * samples]},
            )
            for i in range(prompts)
        ],
        rewards={"default": alternating},
    )
    words = [
        f"model={model}",
        f"dtype={dtype}",
        f"max_steps={steps}",
        f"prompts_per_step={prompts}",
        f"samples_per_prompt={samples}",
        f"sampling.max_new_tokens={max(limits)}",
        "max_prompt_tokens=64",
        "learning_rate=1e-6",
        "engine.kv_cache_mb=512",
        "sampling.ignore_eos=true",
        *mapping,
    ]
    return rows_of_run(task, words)


def tiny_model(folder: Path) -> Path:
    import torch
    from transformers import Qwen2Config, Qwen2ForCausalLM

    from recipes.tiny_models import PRINTABLE_CHARACTERS, character_tokenizer

    torch.manual_seed(0)
    config = Qwen2Config(
        vocab_size=98,
        hidden_size=128,
        intermediate_size=384,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=256,
        eos_token_id=1,
        pad_token_id=0,
    )
    model = Qwen2ForCausalLM(config)
    model.save_pretrained(folder)
    character_tokenizer(PRINTABLE_CHARACTERS).save_pretrained(folder)
    return folder


def smollm2_model(folder: Path) -> Path:
    from recipes.smollm2 import smollm2

    return smollm2()


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("size", choices=["tiny", "smollm2"])
    parser.add_argument("--dtype", choices=["float32", "bfloat16"], default="float32")
    parser.add_argument("--lengths", choices=["equal", "tail"], default="equal")
    parser.add_argument("--mapping", choices=list(MAPPINGS), default="one")
    parser.add_argument("--steps", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=1, help="repeat both sides, one after the other")
    arguments = parser.parse_args()
    prompts, samples = (8, 8) if arguments.size == "tiny" else (8, 4)
    longest = 64 if arguments.size == "tiny" or arguments.lengths == "tail" else 32
    per_prompt = limits_of(arguments.lengths, prompts, longest)
    limits = [limit for limit in per_prompt for _ in range(samples)]
    cores = len(os.sched_getaffinity(0))
    steps = WARM_UP + arguments.steps
    with tempfile.TemporaryDirectory() as folder:
        make = tiny_model if arguments.size == "tiny" else smollm2_model
        model = make(Path(folder) / "model")
        for _ in range(arguments.rounds):
            words = [
                "speed",
                str(model),
                arguments.dtype,
                str(prompts),
                str(samples),
                str(longest),
                str(steps + 1),
            ]
            trl = trl_side.run([*words, ",".join(map(str, limits))], cores)
            mapping = MAPPINGS[arguments.mapping].format(cores=cores).split()
            rows = ours(model, arguments.dtype, prompts, samples, limits, steps, mapping)[WARM_UP:]
            _show(trl, rows, len(limits), sum(limits))


def _show(trl: dict[str, Any], rows: list[dict[str, Any]], n: int, tokens: int) -> None:
    their_s = statistics.median(trl["step_s"][WARM_UP:])
    our_s = statistics.median(row["step_s"] for row in rows)
    print(f"{n} samples, {tokens} tokens a step")
    print(
        f"  TRL       {their_s:7.3f} s a step   {n / their_s:7.1f} samples/s   generation {trl['generation_s']:.3f} s"
    )
    print(f"  roll-ray  {our_s:7.3f} s a step   {n / our_s:7.1f} samples/s")
    parts = [f"{name[:-2]} {statistics.median(row[name] for row in rows):.3f}" for name in PHASES]
    print(f"            {' s, '.join(parts)} s")
    print(f"  ratio     {their_s / our_s:.2f} x TRL's samples a second", flush=True)


if __name__ == "__main__":
    main()
