"""The TRL side of the comparisons: runs in a process of its own, on CPU, and prints one JSON line.

python -m benchmarks.trl_side learning MODEL_DIR SEED LEARNING_RATE STEPS
python -m benchmarks.trl_side speed MODEL_DIR DTYPE PROMPTS SAMPLES NEW_TOKENS STEPS LIMIT,LIMIT,...
"""

from __future__ import annotations

import itertools
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

VERSION = "1.16.0"
_ROOT = Path(__file__).resolve().parent.parent


def target_folder() -> Path:
    """Where TRL is installed, beside the environment and never in it."""
    from roll_ray.home import home

    folder = home() / "benchmarks" / f"trl-{VERSION}"
    if not (folder / "trl").is_dir():
        command = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--target", str(folder)]
        subprocess.run([*command, f"trl=={VERSION}"], check=True)
    return folder


def run(words: Sequence[str], threads: int) -> dict[str, Any]:
    """Run this file in a fresh process with `threads` CPU threads and give what it printed."""
    env = {
        **os.environ,
        "PYTHONPATH": f"{target_folder()}{os.pathsep}{os.environ.get('PYTHONPATH', '')}",
        "OMP_NUM_THREADS": str(threads),
        "CUDA_VISIBLE_DEVICES": "",
        "HF_HUB_OFFLINE": "1",
    }
    command = [sys.executable, "-m", "benchmarks.trl_side", *words]
    done = subprocess.run(command, env=env, cwd=_ROOT, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"TRL failed:\n{done.stderr[-3000:]}")
    return json.loads(done.stdout.strip().splitlines()[-1])


def _trainer(model_dir: str, reward: Any, prompts: Any, **settings: Any) -> Any:
    from transformers import AutoModelForCausalLM, AutoTokenizer
    from trl import GRPOConfig, GRPOTrainer

    tokenizer = AutoTokenizer.from_pretrained(model_dir)
    model = AutoModelForCausalLM.from_pretrained(model_dir, dtype=settings.pop("dtype", "float32"))
    config = GRPOConfig(
        output_dir=tempfile.mkdtemp(),
        use_cpu=True,
        report_to=[],
        save_strategy="no",
        logging_strategy="no",
        disable_tqdm=True,
        beta=0.0,
        temperature=1.0,
        max_grad_norm=1.0,
        weight_decay=0.0,
        gradient_checkpointing=False,
        **settings,
    )
    return GRPOTrainer(
        model=model, reward_funcs=reward, args=config, train_dataset=prompts, processing_class=tokenizer
    )


def learning(model_dir: str, seed: str, learning_rate: str, steps: str) -> dict[str, Any]:
    """The letter-a toy: mean reward of each step."""
    from datasets import Dataset

    rewards: list[float] = []

    def letter_a(completions: list[str], **_: Any) -> list[float]:
        values = [c.count("a") / len(c) if c else 0.0 for c in completions]
        rewards.append(sum(values) / len(values))
        return values

    trainer = _trainer(
        model_dir,
        letter_a,
        Dataset.from_dict({"prompt": ["say aaa: "] * 64}),
        seed=int(seed),
        learning_rate=float(learning_rate),
        max_steps=int(steps),
        lr_scheduler_type="linear",
        per_device_train_batch_size=8,
        num_generations=8,
        max_completion_length=16,
        bf16=False,
    )
    trainer.train()
    return {"rewards": rewards}


def speed(
    model_dir: str, dtype: str, prompts: str, samples: str, new_tokens: str, steps: str, lengths: str
) -> dict[str, Any]:
    """Seconds of each step of GRPO; `lengths` are the token limits of the samples, in order."""
    import torch
    from datasets import Dataset
    from transformers import StoppingCriteria, StoppingCriteriaList

    n = int(prompts) * int(samples)
    limits = torch.tensor([int(word) for word in lengths.split(",")])
    marks: list[float] = []

    def constant_reward(completions: list[str], **_: Any) -> list[float]:
        marks.append(time.perf_counter())
        return [float(i % 2) for i in range(len(completions))]

    class Forced(StoppingCriteria):
        """Ends each sequence at its own limit; the end token itself is suppressed."""

        def __call__(self, input_ids: Any, scores: Any, **_: Any) -> Any:
            return limits <= input_ids.shape[1] - self.prompt_length

    trainer = _trainer(
        model_dir,
        constant_reward,
        Dataset.from_dict({"prompt": ["the quick brown fox jumps over "] * 64}),
        dtype=dtype,
        learning_rate=1e-6,
        max_steps=int(steps),
        per_device_train_batch_size=n,
        num_generations=int(samples),
        max_completion_length=int(new_tokens),
        bf16=dtype == "bfloat16",
        generation_kwargs={"suppress_tokens": [trainer_eos(model_dir)]},
    )
    generate = trainer.model.generate
    spent = {"generation_s": 0.0}

    def timed_generate(*args: Any, **kwargs: Any) -> Any:
        forced = Forced()
        forced.prompt_length = kwargs["input_ids"].shape[1] if "input_ids" in kwargs else args[0].shape[1]
        begin = time.perf_counter()
        out = generate(*args, stopping_criteria=StoppingCriteriaList([forced]), **kwargs)
        spent["generation_s"] += time.perf_counter() - begin
        return out

    trainer.model.generate = timed_generate
    trainer.train()
    seconds = [b - a for a, b in itertools.pairwise(marks)]
    return {"step_s": seconds, "generation_s": spent["generation_s"] / len(marks), "samples": n}


def trainer_eos(model_dir: str) -> int:
    from transformers import AutoTokenizer

    return int(AutoTokenizer.from_pretrained(model_dir).eos_token_id)


if __name__ == "__main__":
    name, *rest = sys.argv[1:]
    print(json.dumps({"learning": learning, "speed": speed}[name](*rest)))
