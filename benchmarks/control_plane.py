"""What the control plane costs: everything but the compute of engine and trainer, with scripted engines.

    python benchmarks/control_plane.py             both measurements, in one process
    python benchmarks/control_plane.py --profile   and where the time of a step goes
    python benchmarks/control_plane.py --ray       the first one with every worker an actor of a local Ray

1. A step of 1,024 samples x 8,192 tokens, from the offer of its prompts to the batches that trainer ranks
   would get: manager, runners, routing, rewards, stores, fetch. The engines' tokens are made beforehand.
   Goal: at most 2 s; the memory of the process is flat from step to step.
2. Events per second of the rollout manager alone (scheduler, ledger, log on disk), on one core.
   Goal: at least 5,000 on half a core, 10,000 on a whole one.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import cProfile
import gc
import pstats
import resource
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import ray

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from envs.task import RewardFunction
from roll_ray.actors import Actor, LocalActor
from roll_ray.batch import balance_by_tokens
from roll_ray.cluster.actors import host
from roll_ray.cluster.objects import resolve
from roll_ray.cluster.session import session
from roll_ray.generation import EngineStats, GenerationDelta, GenerationRequest
from roll_ray.receipts import Cut, Receipt
from roll_ray.sample import Prompt, SamplingDistribution
from roll_ray.settings import RunSettings
from schedulers.protocol import Event, Generated, Launch, SampleId, Scored, Started, Visit
from schedulers.synchronous import Synchronous
from workers.episode_runner import EpisodeRunner, RunnerSpec
from workers.reports import Fenced, Reports
from workers.reward_worker import RewardWorker
from workers.rollout_manager import ManagerSpec, RolloutManager
from workers.sample_store import SampleStore

PROMPT_TOKENS = 128


class ReadyMadeEngine:
    """Answers at once with tokens made beforehand, in `pieces` deltas, as an engine that streams does."""

    def __init__(self, name: str, n_tokens: int, pieces: int) -> None:
        self.name = name
        size = n_tokens // pieces
        self._tokens = tuple(i % 50_000 for i in range(size))
        self._logprobs = tuple(-(i % 97) / 64 for i in range(size))
        self._versions = (0,) * size
        self._pieces = pieces
        self._open: dict[str, list[tuple[str, int]]] = {}
        self._news: dict[str, asyncio.Event] = {}

    async def submit(self, requests: Sequence[GenerationRequest]) -> None:
        for request in requests:
            self._open.setdefault(request.client, []).append((request.id, 0))
            self._event(request.client).set()

    async def collect(self, client: str, timeout_s: float) -> list[GenerationDelta]:
        if not self._open.get(client):
            self._event(client).clear()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(timeout_s):
                    await self._event(client).wait()
        running = self._open.pop(client, [])
        self._open[client] = [(i, piece + 1) for i, piece in running if piece + 1 < self._pieces]
        return [self._delta(request_id, piece) for request_id, piece in running]

    def _delta(self, request_id: str, piece: int) -> GenerationDelta:
        finish = "length" if piece + 1 == self._pieces else None
        return GenerationDelta(request_id, self._tokens, self._logprobs, self._versions, finish)

    def _event(self, client: str) -> asyncio.Event:
        return self._news.setdefault(client, asyncio.Event())

    async def abort(self, ids: Sequence[str]) -> None: ...

    async def stats(self) -> EngineStats:
        return EngineStats(self.name, 0, 0, 0, 0.0, 0, 0)


class Words:
    """A tokenizer that costs nothing: what it would cost is not the control plane's."""

    def encode(self, text: str) -> list[int]:
        return [1] * PROMPT_TOKENS

    def decode(self, token_ids: Sequence[int]) -> str:
        return "a response"

    def apply_chat_template(self, messages: Any) -> list[int]:
        return [1] * PROMPT_TOKENS

    def render_chat(self, messages: Any) -> str:
        return "a chat"


def memory_mb() -> float:
    """Resident memory of this process in MB."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize() / 1e6


class Rank:
    """A trainer rank that only takes what it is given."""

    async def take(self, handles: Sequence[Any]) -> int:
        """`handles` lead to batches; the number of their samples."""
        return sum([len(await resolve(handle)) for handle in handles])


Hire = Callable[..., Any]
"""`hire(cls, *args, name=...)` makes a worker: an object of this process, or a Ray actor."""


def in_this_process(cls: type[Any], *args: Any, name: str) -> LocalActor[Any]:
    return LocalActor(cls(*args), name)


class Plane:
    """A whole rollout side, and a driver that does what the controller does."""

    def __init__(self, hire: Hire, folder: Path, prompts: int, responses: int, n_tokens: int) -> None:
        self.prompts, self.responses = prompts, responses
        engines = [hire(ReadyMadeEngine, f"rollout-{i}", n_tokens, 16, name=f"rollout-{i}") for i in range(4)]
        rewards = [hire(RewardWorker, {"default": _always_right}, name="reward-0")]
        self.stores = [hire(SampleStore, f"store-{i}", name=f"store-{i}") for i in range(2)]
        self.runners: list[Actor[EpisodeRunner]] = [
            hire(EpisodeRunner, self._spec(i, n_tokens), engines, rewards, store, Words(), name=f"runner-{i}")
            for i, store in enumerate(self.stores)
        ]
        spec = ManagerSpec("benchmark", folder / "events.jsonl", partial(Synchronous, prompts, responses))
        self.manager = hire(RolloutManager, spec, self.runners, self.stores, name="rollout-manager")
        self.ranks = [hire(Rank, name=f"rank-{i}") for i in range(2)]

    def _spec(self, i: int, n_tokens: int) -> RunnerSpec:
        return RunnerSpec(f"runner-{i}", "", SamplingDistribution(), n_tokens)

    async def step(self, step: int) -> dict[str, float]:
        """Seconds from the offer to the cut, of the fetch by two ranks, and of closing the step."""
        begun_s, begun_cpu_s = time.perf_counter(), time.process_time()
        names = [f"prompt-{step}-{i:04d}" for i in range(self.prompts)]
        book = {name: Prompt(name, text="a prompt") for name in names}
        visits = [Visit(name, 0) for name in names]
        handed = [self.put(book)]
        await self.manager.call(RolloutManager.offer, step, visits, ["default"] * self.prompts, handed)
        cut = None
        while cut is None:
            cut = await self.manager.call(RolloutManager.next_outcome, 5.0)
        assert isinstance(cut, Cut)
        assert len(cut.receipts) == self.prompts * self.responses
        cut_s = time.perf_counter()
        await self._fetch(cut.receipts)
        fetched_s = time.perf_counter()
        await self.manager.call(RolloutManager.trained, step + 1)
        await asyncio.sleep(0)
        ended_s = time.perf_counter()
        return {
            "rollout_s": cut_s - begun_s,
            "fetch_s": fetched_s - cut_s,
            "close_s": ended_s - fetched_s,
            "total_s": ended_s - begun_s,
            "cpu_s": time.process_time() - begun_cpu_s,
        }

    async def _fetch(self, receipts: Sequence[Receipt]) -> None:
        """Each of two ranks gets its share, cut by token balance, from each store."""
        shares = balance_by_tokens([r.n_tokens for r in receipts], len(self.ranks))

        async def give(rank: Any, share: Sequence[int]) -> None:
            handles = []
            for store in self.stores:
                mine = [receipts[i] for i in share if receipts[i].store == store.name]
                handles.append(await store.refer(SampleStore.fetch, [(r.sample, r.attempt) for r in mine]))
            assert await rank.call(Rank.take, handles) == len(share)

        await asyncio.gather(*map(give, self.ranks, shares))

    def put(self, book: dict[str, Prompt]) -> Any:
        return ray.put(book) if ray.is_initialized() else book

    async def close(self) -> None:
        await self.manager.call(RolloutManager.close)
        for runner in self.runners:
            await runner.call(EpisodeRunner.close)


def _always_right() -> RewardFunction:
    return lambda view: 1.0


async def measure_steps(hire: Hire, where: str, steps: int, profile: bool) -> None:
    with tempfile.TemporaryDirectory() as folder:
        plane = Plane(hire, Path(folder), prompts=128, responses=8, n_tokens=8192)
        profiler = cProfile.Profile()
        print(f"1,024 samples x 8,192 tokens, {where}")
        for step in range(steps):
            if profile and step == 1:
                profiler.enable()
            seconds = await plane.step(step)
            profiler.disable()
            gc.collect()
            said = "  ".join(f"{name} {value:.2f}" for name, value in seconds.items())
            print(f"  step {step}: {said}  resident memory of the driver {memory_mb():.0f} MB")
        await plane.close()
        if profile:
            pstats.Stats(profiler).sort_stats("tottime").print_stats(25)


class ReadyMadeRunner:
    """Reports the whole life of every launched attempt, `batch` events in each report."""

    def __init__(self, name: str, batch: int) -> None:
        self.name, self._batch, self._sequence = name, batch, 0
        self._events: list[Event] = []
        self._receipts: dict[int, Receipt] = {}

    async def launch(self, orders: Sequence[Launch], prompts_ref: Any) -> str:
        for order in orders:
            for index in order.sample_indices:
                sample, number = SampleId(order.visit, index), order.attempt
                self._events += [
                    Started(1.0, sample, number, 0),
                    Generated(2.0, sample, number, 512, "stop"),
                    Scored(3.0, sample, number, 1.0, "right"),
                ]
        return "x"

    async def reports(self, acknowledged: int, timeout_s: float) -> Reports:
        while not self._events:
            await asyncio.sleep(0.0005)
        events, self._events = self._events[: self._batch], self._events[self._batch :]
        self._sequence += len(events)
        receipts = tuple(
            Receipt(e.sample, e.attempt, "store-0", 640, 512, False, 1.0, "right", "default", 0, 0, 1.0, 1.0)
            for e in events
            if isinstance(e, Scored)
        )
        return Reports(self.name, "x", self._sequence, tuple(events), receipts)

    async def keep_prompts(self, visits: Any, prompts_ref: Any) -> None: ...

    async def abort(self, samples: Any) -> None: ...

    async def fence(self) -> Fenced:
        return Fenced("x", ())

    async def forget(self, visits: Any) -> None: ...


async def measure_events(steps: int, batch: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        prompts, responses = 128, 8
        runners: list[Any] = [
            LocalActor(ReadyMadeRunner(f"runner-{i}", batch), f"runner-{i}") for i in range(4)
        ]
        stores = [LocalActor(SampleStore("store-0"), "store-0")]
        spec = ManagerSpec("b", Path(folder) / "events.jsonl", partial(Synchronous, prompts, responses))
        manager = RolloutManager(spec, runners, stores)
        await manager.start()
        begun_s, cpu_s = time.perf_counter(), time.process_time()
        for step in range(steps):
            visits = [Visit(f"prompt-{step}-{i:04d}", 0) for i in range(prompts)]
            await manager.offer(step, visits, ["default"] * prompts, [{}])
            while not isinstance(await manager.next_outcome(5.0), Cut):
                pass
            await manager.trained(step + 1)
        wall_s, used_s = time.perf_counter() - begun_s, time.process_time() - cpu_s
        events = (await manager.metrics())["events"]
        log_mb = spec.log_path.stat().st_size / 1e6
        await manager.close()
        print(
            f"rollout manager, {batch} events a report: {events:.0f} events, {wall_s:.2f} s wall, "
            f"{used_s:.2f} s CPU: {events / used_s:.0f} events per CPU second, {events / used_s / 2:.0f} on half "
            f"a core; log {log_mb:.1f} MB"
        )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--steps", type=int, default=5)
    parser.add_argument("--profile", action="store_true")
    parser.add_argument("--ray", action="store_true")
    arguments = parser.parse_args()
    if arguments.ray:
        with session(RunSettings(model="none"), "benchmark"):
            asyncio.run(measure_steps(host, "every worker a Ray actor", arguments.steps, profile=False))
        return
    asyncio.run(measure_steps(in_this_process, "one process", arguments.steps, arguments.profile))
    for batch in (1, 16, 256):
        asyncio.run(measure_events(arguments.steps, batch))


if __name__ == "__main__":
    main()
