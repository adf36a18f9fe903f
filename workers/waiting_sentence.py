"""A wait names whom it waits for: the rollout manager's state as a sentence."""

from __future__ import annotations

import asyncio
from typing import Any

from roll_ray.actors import Actor
from workers.episode_runner import EpisodeRunner
from workers.rollout_ledger import Ledger
from workers.runner_links import RunnerLinks

ASK_TIMEOUT_S = 3.0


async def waiting_sentence(ledger: Ledger, runners: RunnerLinks) -> str:
    """Names the driver, or the runners with what each has open, whom those wait for, and the oldest."""
    if ledger.stopped:
        return f"stopped: {ledger.stopped}"
    if ledger.cut_stands:
        return (
            f"step {ledger.step} is cut: waiting for the driver to train its {len(ledger.last_cut)} samples"
        )
    parts = []
    if ledger.wanted:
        parts.append(f"waiting for the driver to offer {ledger.wanted} prompts ({ledger.wanted_why})")
    if not ledger.running and not parts:
        return "waiting for the driver to offer the prompts of a step"
    up, down = runners.describe()
    if ledger.running:
        total = len(ledger.running) + len(ledger.scored)
        parts.append(f"step {ledger.step}: {len(ledger.scored)} of {total} responses scored")
        parts += await asyncio.gather(*(_of(runner) for runner in up))
    parts += [f"{name} is down ({why})" for name, why in sorted(down.items())]
    parts += _held_back(runners)
    return "; ".join(part for part in parts if part)


async def _of(runner: Actor[EpisodeRunner]) -> str:
    try:
        async with asyncio.timeout(ASK_TIMEOUT_S):
            state = await runner.call(EpisodeRunner.waiting_for)
    except Exception as error:  # said, not raised: the sentence is about who does not answer
        return f"{runner.name} does not say ({type(error).__name__})"
    return _runner_part(runner.name, state) if state["attempts"] else ""


def _runner_part(name: str, state: dict[str, Any]) -> str:
    phases = ", ".join(f"{n} {phase}" for phase, n in sorted(state["phases"].items()))
    places = ", ".join(f"{who}: {n}" for who, n in (*state["engines"].items(), *state["rewards"].items()))
    where = f" at {places}" if places else ""
    return f"{name} has {phases}{where}, the oldest {state['oldest']} for {state['oldest_s']:.0f} s"


def _held_back(runners: RunnerLinks) -> list[str]:
    no_prompt = sum(order.visit not in runners.prompts for order in runners.held_back)
    no_runner = len(runners.held_back) - no_prompt
    said = []
    if no_prompt:
        said.append(f"{no_prompt} launches wait for the driver to offer their prompts again")
    if no_runner:
        said.append(f"{no_runner} launches wait for a runner that is up")
    return said
