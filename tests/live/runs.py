"""Runs of the real pipeline for tests: real Ray, real vLLM, real trainers, a tiny model."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import uuid
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from recipes.grpo_qwen import Settings
from recipes.pipeline import Pipeline
from recipes.task import Task
from roll_ray.controller import RunResult
from roll_ray.sample import Prompt
from roll_ray.settings_io import read_settings

P, R = 4, 4
MARK = f"roll-ray-test-{uuid.uuid4().hex}"
os.environ["ROLL_RAY_TEST"] = MARK  # in every process that these tests start, and in no other


def share_of_a(view: Any) -> float:
    """The letter-a toy: how much of the answer is the letter a."""
    text = view.response_text
    return text.count("a") / max(1, len(text))


def letter_task(reward: Any = share_of_a) -> Task:
    train = [Prompt(id=f"train-{i:02d}", text="say aaa: ") for i in range(10)]
    return Task(
        train, [Prompt(id=f"held-{i}", text="say aaa: ") for i in range(4)], rewards={"default": reward}
    )


def settings_for(model: Path, run_dir: Path, *words: str) -> Settings:
    """Small and quick; `words` as on the command line."""
    base = [
        f"model={model}",
        f"prompts_per_step={P}",
        f"samples_per_prompt={R}",
        "sampling.max_new_tokens=16",
        "evaluation.sampling.max_new_tokens=16",
        "evaluation.every_steps=0",
        "learning_rate=1e-3",
        "warmup_steps=0",
        "checkpoint_every_steps=0",
    ]
    settings = read_settings(Settings, [*base, *words])
    return settings.model_copy(update={"run_dir": run_dir, "run_name": run_dir.name})


def run_pipeline(
    settings: Settings,
    task: Task,
    beside: Callable[[Pipeline], Awaitable[None]] | None = None,
) -> RunResult:
    """A whole run, with a coroutine beside it that may do harm."""

    async def both() -> RunResult:
        pipeline = Pipeline(settings, task)
        run = asyncio.create_task(pipeline.run())
        other = asyncio.create_task(beside(pipeline)) if beside is not None else None
        try:
            return await run
        finally:
            if other is not None:
                other.cancel()
                (problem,) = await asyncio.gather(other, return_exceptions=True)
                if isinstance(problem, Exception):
                    raise problem

    return asyncio.run(both())


def metrics_of(run_dir: Path) -> list[dict[str, Any]]:
    path = run_dir / "metrics.jsonl"
    if not path.exists():
        return []
    return [json.loads(line) for line in path.read_text().splitlines() if line.endswith("}")]


async def step_reached(run_dir: Path, step: int) -> None:
    while not any(row["step"] >= step for row in metrics_of(run_dir)):
        await asyncio.sleep(0.05)


async def kill(actor: Any) -> int:
    """SIGKILL to the process behind an actor; its pid."""
    pid = int((await actor.identity()).pid)
    os.kill(pid, signal.SIGKILL)
    return pid


def leftovers(run_name: str) -> list[str]:
    """Processes and shared memory that a run left behind: Ray workers, engine processes, weight folders."""
    found = [str(p) for p in Path("/dev/shm").glob(f"roll-ray-{run_name.replace('-', '_')}-*")]
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                ours = MARK.encode() in (entry / "environ").read_bytes()
                command = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
            except OSError:
                continue
            if ours and ("ray::" in command or "VLLM::" in command):
                found.append(f"{entry.name}: {command[:80]}")
    return found
