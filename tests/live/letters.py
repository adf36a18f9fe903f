"""A recipe for tests of the command line: the letter-a toy, which can do harm to itself at a chosen moment."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pydantic import Field

from recipes.running import run_recipe
from roll_ray.settings import EvaluationSettings, RunSettings, SamplingSettings

INTO_THE_PHASE_S = 0.03


class Settings(RunSettings):
    """Small and quick."""

    prompts_per_step: int = Field(4, gt=0)
    samples_per_prompt: int = Field(4, gt=0)
    max_steps: int = Field(6, gt=0)
    learning_rate: float = Field(1e-3, ge=0)
    max_prompt_tokens: int = Field(64, gt=0)
    checkpoint_every_steps: int = Field(0, ge=0)
    sampling: SamplingSettings = Field(default_factory=lambda: SamplingSettings(max_new_tokens=16))
    evaluation: EvaluationSettings = Field(
        default_factory=lambda: EvaluationSettings(
            every_steps=0, sampling=SamplingSettings(temperature=0.0, max_new_tokens=16)
        )
    )
    n_prompts: int = Field(4, description="Prompts to train on.")
    prompt_letters: int = Field(9, description="Length of each prompt.")
    reward: str = Field("share", description="share, slow, string or tired.")
    harm: str = Field("nothing", description="For example `SIGINT train 2`, `SIGTERM group rollout 3`.")


def share_of_a(view):  # type: ignore[no-untyped-def]
    text = view.response_text
    return text.count("a") / max(1, len(text))


def slow_share(view):  # type: ignore[no-untyped-def]
    time.sleep(0.5)
    return share_of_a(view)


def tired(view, scored=[]):  # type: ignore[no-untyped-def]  # noqa: B006
    scored.append(view)
    if len(scored) > 35:
        raise ValueError("this reward function is tired")
    return share_of_a(view)


def text(view):  # type: ignore[no-untyped-def]
    return "very good"


REWARDS = {"share": share_of_a, "slow": slow_share, "tired": tired, "string": text}


def processes_with(title: str) -> list[int]:
    """Processes of this session whose title has these words."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                pid, command = int(entry.name), (entry / "cmdline").read_bytes()
                if title.encode() in command and os.getsid(pid) == os.getsid(0):
                    found.append(pid)
    return found


def do_harm(order: str) -> None:
    """Send the signal a moment after the n-th time that the phase begins (a rollout begins twice a step, to ask for its
    batch and for the end of it): to this process, to its group as a
    terminal does, twice, or to the worker of trainer rank 1."""
    from roll_ray.tracking.run_tracker import RunTracker

    *words, phase, nth = order.split()
    seen, trainer_pid = 0, 0
    began, begun = RunTracker.phase, RunTracker.begun

    def remember_trainer(self: RunTracker, *args: Any) -> None:
        nonlocal trainer_pid
        trainer_pid = next(p for p in processes_with("ray::PolicyTrainer"))
        begun(self, *args)

    def strike() -> None:
        number = signal.Signals[words[0]]
        print(f"struck in {phase} at {time.time()}", flush=True)
        if "group" in words:
            os.killpg(os.getpgrp(), number)
        elif "trainer" in words:
            os.kill(trainer_pid, number)
        else:
            os.kill(os.getpid(), number)
        if "twice" in words:
            time.sleep(0.2)
            os.kill(os.getpid(), number)

    @contextlib.contextmanager
    def watched(self: RunTracker, name: str) -> Iterator[None]:
        nonlocal seen
        seen += name == phase
        if name == phase and seen == int(nth):
            threading.Timer(INTO_THE_PHASE_S, strike).start()
        with began(self, name):
            yield

    RunTracker.phase = watched  # type: ignore[method-assign]
    RunTracker.begun = remember_trainer  # type: ignore[method-assign]


def build(settings: Settings):  # type: ignore[no-untyped-def]
    from recipes.pipeline import Pipeline
    from recipes.task import Task
    from roll_ray.sample import Prompt

    if settings.harm != "nothing":
        do_harm(settings.harm)
    text = "say aaa: ".rjust(settings.prompt_letters, "a")
    train = [Prompt(id=f"train-{i:02d}", text=text) for i in range(settings.n_prompts)]
    heldout = [Prompt(id=f"held-{i}", text=text) for i in range(4)]
    return Pipeline(settings, Task(train, heldout, rewards={"default": REWARDS[settings.reward]}))


if __name__ == "__main__":
    run_recipe(Settings, build)
