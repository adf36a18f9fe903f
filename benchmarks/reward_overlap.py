"""Does anything wait that need not? Rewards beside generation, and environments beside generation.

    python -m benchmarks.reward_overlap

1. A step of 64 samples with known generation times and a reward that sleeps, from the offer of its prompts to the
   batch: rollout manager, episode runner, reward worker, store; only the engine is scripted. With as many reward
   slots as samples a step may take the longest generation, one reward and 5 %. Beside it: rewards that begin when
   all responses are there, and fewer slots.
2. 256 episodes of 5 turns; each turn is generated in N(10, 10) s and answered by its environment after N(10, 10) s,
   both cut off at 0 and scaled down. Each episode played for itself (as the runner does), against all of them turn by
   turn. Order statistics predict the ratio: the mean of the largest of 256 sums, against the sum of the means of the
   largest of 256. Goal: 0.9 of what they predict.
"""

from __future__ import annotations

import argparse
import asyncio
import math
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import numpy.typing as npt

from benchmarks.timed_engine import NoWords, TimedEngine
from envs.task import Observation, ScoredView, StepResult, Turn
from roll_ray.actors import LocalActor
from roll_ray.generation import GenerationRequest
from roll_ray.receipts import Cut
from roll_ray.sample import Prompt, SamplingDistribution
from schedulers.protocol import Visit
from schedulers.synchronous import Synchronous
from workers.episode_runner import EpisodeRunner, RunnerSpec
from workers.reward_worker import RewardWorker
from workers.rollout_manager import ManagerSpec, RolloutManager
from workers.sample_store import SampleStore

Floats = npt.NDArray[np.float64]
Environments = dict[str, Callable[[], "Thinker"]]
SPREAD_S = MEAN_S = 10.0
TRIES = 3


def runner_with(
    seconds_of: Callable[[GenerationRequest], float],
    worker: RewardWorker,
    store: LocalActor[SampleStore],
    environments: Environments | None = None,
) -> EpisodeRunner:
    spec = RunnerSpec("runner-0", "", SamplingDistribution(), 8, environments=environments or {})
    engine = LocalActor(TimedEngine(seconds_of), "rollout-0")
    return EpisodeRunner(spec, [engine], [LocalActor(worker, "reward-0")], store, NoWords())


# --- 1. rewards ------------------------------------------------------------------------------------


async def step_s(generation_B: Floats, reward_s: float, slots: int, after_all: bool = False) -> float:
    """Seconds from the offer of prompts to the complete batch; `after_all`: no reward begins before all responses
    are there."""
    n = len(generation_B)
    all_there, there = asyncio.Event(), 0

    def seconds_of(request: GenerationRequest) -> float:
        return float(generation_B[request.prompt_token_ids[0]])

    async def wait_for_all(view: ScoredView) -> float:
        nonlocal there
        there += 1
        if there == n:
            all_there.set()
        await all_there.wait()
        async with gate:
            await asyncio.sleep(reward_s)
        return 1.0

    def sleeping(view: ScoredView) -> float:
        time.sleep(reward_s)
        return 1.0

    gate = asyncio.Semaphore(slots)
    worker = RewardWorker(
        {"default": lambda: wait_for_all if after_all else sleeping}, n if after_all else slots
    )
    store = LocalActor(SampleStore("store-0"), "store-0")
    runner = runner_with(seconds_of, worker, store)
    with tempfile.TemporaryDirectory() as folder:
        spec = ManagerSpec("benchmark", Path(folder) / "events.jsonl", partial(Synchronous, n, 1))
        manager = RolloutManager(spec, [LocalActor(runner, "runner-0")], [store])
        await manager.start()
        await runner.evaluate([], SamplingDistribution(), 1)  # engines and reward workers are greeted
        book = {f"p{i:03d}": Prompt(f"p{i:03d}", token_ids=(i, 1)) for i in range(n)}
        begun_s = time.perf_counter()
        await manager.offer(0, [Visit(name, 0) for name in book], ["default"] * n, [book])
        while not isinstance(await manager.next_outcome(5.0), Cut):
            pass
        ended_s = time.perf_counter()
        await manager.close()
        await runner.close()
    return ended_s - begun_s


def rewards(n: int, reward_s: float, seed: int) -> None:
    generation_B = np.abs(np.random.default_rng(seed).normal(1.0, 0.4, n))
    goal_s = float(generation_B.max()) + reward_s
    print(
        f"1. {n} samples, generation {generation_B.min():.2f} to {generation_B.max():.2f} s, reward {reward_s:g} s"
    )
    for what, slots, after_all in (
        (f"{n} reward slots", n, False),
        (f"{n // 8} reward slots", n // 8, False),
        (f"{n} slots, rewards after all responses", n, True),
        (f"{n // 8} slots, rewards after all responses", n // 8, True),
    ):
        tries = [asyncio.run(step_s(generation_B, reward_s, slots, after_all)) for _ in range(TRIES)]
        seconds = min(tries)  # what others do on the machine only adds to it
        print(f"   {what:<42} {seconds:.3f} s = {seconds / goal_s:.3f} x (generation + one reward)")


# --- 2. environments -------------------------------------------------------------------------------


class Thinker:
    """An environment that thinks for a known time after each turn; with a barrier, all episodes go turn by turn."""

    def __init__(self, latency_E_T: Floats, barrier: asyncio.Barrier | None) -> None:
        self._latency_E_T, self._barrier = latency_E_T, barrier

    async def reset(self, prompt: Prompt, seed: int) -> Observation:
        self._episode, self._turn = int(prompt.info["episode"]), 0
        return Observation(token_ids=(self._episode, 0))

    async def step(self, response: Turn) -> StepResult:
        await self._all()
        await asyncio.sleep(self._latency_E_T[self._episode, self._turn])
        await self._all()
        self._turn += 1
        if self._turn == self._latency_E_T.shape[1]:
            return StepResult(reward=1.0, terminated=True)
        return StepResult(Observation(token_ids=(self._episode, self._turn)))

    async def _all(self) -> None:
        if self._barrier is not None:
            await self._barrier.wait()


async def played_s(generation_E_T: Floats, latency_E_T: Floats, by_turn: bool) -> float:
    """Seconds until all episodes are over."""
    n = len(generation_E_T)
    barrier = asyncio.Barrier(n) if by_turn else None

    def seconds_of(request: GenerationRequest) -> float:
        episode, turn = request.prompt_token_ids[-2:]
        return float(generation_E_T[episode, turn])

    worker = RewardWorker({})
    store = LocalActor(SampleStore("store-0"), "store-0")
    runner = runner_with(seconds_of, worker, store, {"game": lambda: Thinker(latency_E_T, barrier)})
    prompts = [Prompt(f"e{i:03d}", token_ids=(i, 0), domain="game", info={"episode": i}) for i in range(n)]
    await runner.evaluate([], SamplingDistribution(), 1)
    begun_s = time.perf_counter()
    answers = await runner.evaluate(prompts, SamplingDistribution(), 1)
    ended_s = time.perf_counter()
    await runner.close()
    assert all(answer.reward.value == 1.0 for answer in answers), answers[0].reward.reason
    return ended_s - begun_s


def predicted(episodes: int, turns: int) -> float:
    """Turn by turn over each for itself, from the distribution alone: T (E max G + E max L) / E max sum (G + L)."""
    step = 0.05
    x = np.arange(0, 2 * turns * (MEAN_S + 6 * SPREAD_S), step)
    one = np.diff([0.0, *(_normal_cdf((x + step / 2 - MEAN_S) / SPREAD_S))])  # what is below 0 is at 0
    transformed = np.fft.rfft(one, 2 * len(x))
    many = np.fft.irfft(transformed ** (2 * turns), 2 * len(x))[: len(x)]
    return 2 * turns * _mean_largest(one, step, episodes) / _mean_largest(many, step, episodes)


def _mean_largest(density: Floats, step: float, n: int) -> float:
    return float(np.sum(1.0 - np.minimum(np.cumsum(density), 1.0) ** n) * step)


def _normal_cdf(z: Floats) -> Floats:
    return np.asarray([0.5 * (1 + math.erf(value / math.sqrt(2))) for value in z])


def environments(episodes: int, turns: int, scale: float, seed: int) -> None:
    rng = np.random.default_rng(seed)
    generation, latency = (np.maximum(0, rng.normal(MEAN_S, SPREAD_S, (episodes, turns))) for _ in range(2))
    drawn = (generation.max(0) + latency.max(0)).sum() / (generation + latency).sum(1).max()
    by_turn_s = asyncio.run(played_s(generation * scale, latency * scale, by_turn=True))
    alone_s = asyncio.run(played_s(generation * scale, latency * scale, by_turn=False))
    ratio, expected = by_turn_s / alone_s, predicted(episodes, turns)
    print(f"2. {episodes} episodes of {turns} turns, N({MEAN_S:g}, {SPREAD_S:g}) s each, scaled by {scale:g}")
    print(f"   turn by turn {by_turn_s:.2f} s, each for itself {alone_s:.2f} s: {ratio:.2f} x")
    print(
        f"   order statistics predict {expected:.2f} x (of these very draws {drawn:.2f}): {ratio / expected:.2f} of it"
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--samples", type=int, default=64)
    parser.add_argument("--reward-s", type=float, default=0.5)
    parser.add_argument("--episodes", type=int, default=256)
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--scale", type=float, default=0.03)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    rewards(given.samples, given.reward_s, given.seed)
    environments(given.episodes, given.turns, given.scale, given.seed)


if __name__ == "__main__":
    main()
