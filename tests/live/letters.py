"""A recipe for tests of the command line: the letter-a toy, which can do harm to itself at a chosen moment."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
from collections.abc import Iterator

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
    reward: str = Field("share", description="share, raise, string or slow.")
    harm: str = Field("", description="For example `SIGINT train 2`, `SIGTERM group rollout 3`.")


def share_of_a(view):  # type: ignore[no-untyped-def]
    text = view.response_text
    return text.count("a") / max(1, len(text))


def slow_share(view):  # type: ignore[no-untyped-def]
    time.sleep(0.5)
    return share_of_a(view)


def raising(view):  # type: ignore[no-untyped-def]
    raise ValueError("this reward function is broken")


def text(view):  # type: ignore[no-untyped-def]
    return "very good"


REWARDS = {"share": share_of_a, "slow": slow_share, "raise": raising, "string": text}


def do_harm(order: str) -> None:
    """Send the signal a moment after the n-th time that the phase begins."""
    from roll_ray.tracking.run_tracker import RunTracker

    *words, phase, nth = order.split()
    seen = 0
    began = RunTracker.phase

    def strike() -> None:
        number = signal.Signals[words[0]]
        if "group" in words:
            os.killpg(os.getpgrp(), number)
        else:
            os.kill(os.getpid(), number)
        print(f"struck in {phase}", flush=True)

    @contextlib.contextmanager
    def watched(self: RunTracker, name: str) -> Iterator[None]:
        nonlocal seen
        seen += name == phase
        if name == phase and seen == int(nth):
            threading.Timer(INTO_THE_PHASE_S, strike).start()
        with began(self, name):
            yield

    RunTracker.phase = watched  # type: ignore[method-assign]


def build(settings: Settings):  # type: ignore[no-untyped-def]
    from recipes.pipeline import Pipeline, Task
    from roll_ray.sample import Prompt

    if settings.harm:
        do_harm(settings.harm)
    text = "say aaa: ".rjust(settings.prompt_letters, "a")
    train = [Prompt(id=f"train-{i:02d}", text=text) for i in range(settings.n_prompts)]
    heldout = [Prompt(id=f"held-{i}", text=text) for i in range(4)]
    return Pipeline(settings, Task(train, heldout, rewards={"default": REWARDS[settings.reward]}))


if __name__ == "__main__":
    run_recipe(Settings, build)
