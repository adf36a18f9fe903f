"""Manager, runners, stores, reward workers and scripted engines in one event loop, with a simple driver."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from envs.task import RewardFunction, ScoredView
from roll_ray.actors import ActorUnavailable
from roll_ray.generation import GenerationRequest
from roll_ray.receipts import Cut, PromptsWanted, Stopped
from roll_ray.sample import Prompt, Role, Sample, SamplingDistribution
from schedulers.protocol import SampleId, Scheduler, Visit
from schedulers.synchronous import Synchronous
from schedulers.visit_filter import VisitFilter
from tests.workers.scripted_engine import MortalActor, ScriptedEngine, logprob_at, token_at
from workers.episode_runner import EpisodeRunner, RunnerSpec
from workers.reward_worker import RewardWorker
from workers.rollout_manager import ManagerSpec, RolloutManager
from workers.sample_store import SampleStore

PROMPT_TOKENS = 3


class NumberTokenizer:
    """A text is a list of numbers."""

    def encode(self, text: str) -> list[int]:
        return [int(word) for word in text.split()]

    def decode(self, token_ids: Sequence[int]) -> str:
        return " ".join(map(str, token_ids[:4]))

    def render_chat(self, messages: Any) -> str:
        return " ".join(message["content"] for message in messages)

    def apply_chat_template(self, messages: Any) -> list[int]:
        return self.encode(self.render_chat(messages))


def make_prompt(i: int, domain: str = "default") -> Prompt:
    return Prompt(f"p{i:03d}", text=" ".join(str(i + 1) for _ in range(PROMPT_TOKENS)), domain=domain)


def length_of_prompt(first: int, tail_tokens: int) -> int:
    """8 tokens or a few more, and `tail_tokens` more for every fifth prompt."""
    return 8 + first % 5 + (tail_tokens if first % 5 == 4 else 0)


def one(view: ScoredView) -> float:
    return 1.0


@dataclass
class Bench:
    """A live rollout side in miniature. Prompts are drawn in order; every visit number is 0. `make_scheduler` makes
    another scheduler than `Synchronous`."""

    folder: Path
    p: int = 3
    r: int = 4
    n_runners: int = 2
    n_engines: int = 2
    max_new_tokens: int = 32
    reward: RewardFunction = one
    tick_s: float = 0.001
    session: str = "s"
    spec: dict[str, Any] = field(default_factory=dict)
    reward_timeout_s: float = 5.0
    max_attempts: int = 3
    keep: VisitFilter | None = None
    tail_tokens: int = 0
    make_scheduler: Callable[[], Scheduler] | None = None
    drawn: int = 0
    prompts: dict[str, Prompt] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.engines = [
            MortalActor(
                partial(ScriptedEngine, f"rollout-{i}", self._length_of, 2, self.tick_s), f"rollout-{i}"
            )
            for i in range(self.n_engines)
        ]
        self.rewards = [
            MortalActor(
                partial(RewardWorker, {"default": lambda: self.reward}, 2, self.reward_timeout_s),
                f"reward-{i}",
            )
            for i in range(2)
        ]
        self.stores = [MortalActor(partial(SampleStore, f"store-{i}"), f"store-{i}") for i in range(2)]
        self.runners = [MortalActor(partial(self._runner, i), f"runner-{i}") for i in range(self.n_runners)]
        self.manager = MortalActor(self._manager, "manager")

    def _length_of(self, request: GenerationRequest) -> int:
        """Whatever part of the response is in the request already."""
        whole = length_of_prompt(request.prompt_token_ids[0], self.tail_tokens)
        return whole - (len(request.prompt_token_ids) - PROMPT_TOKENS)

    def _runner(self, i: int) -> EpisodeRunner:
        spec = RunnerSpec(
            name=f"runner-{i}",
            model="none",
            sampling=SamplingDistribution(),
            max_new_tokens=self.max_new_tokens,
            **self.spec,
        )
        return EpisodeRunner(spec, self.engines, self.rewards, self.stores[i % 2], NumberTokenizer())

    def _manager(self) -> RolloutManager:
        spec = ManagerSpec(
            self.session,
            self.folder / "events.jsonl",
            self.make_scheduler or partial(Synchronous, self.p, self.r, self.max_attempts, self.keep),
        )
        return RolloutManager(spec, self.runners, self.stores)

    # --- the driver --------------------------------------------------------------------------------

    async def offer(self, step: int, n: int, starts_step: bool) -> None:
        new = [make_prompt(self.drawn + i) for i in range(n)]
        self.drawn += n
        book = {prompt.id: prompt for prompt in new}
        self.prompts |= book
        visits = [Visit(prompt.id, 0) for prompt in new]
        await self.patiently(
            lambda: self.manager.call(
                RolloutManager.offer, step, visits, ["default"] * n, [book], starts_step
            )
        )

    async def patiently(self, call: Callable[[], Any]) -> Any:
        while True:
            try:
                return await call()
            except ActorUnavailable:
                await asyncio.sleep(0.01)

    async def cut(self, step: int) -> Cut:
        """The next cut, with every request for prompts answered on the way."""
        while True:
            outcome = await self.patiently(lambda: self.manager.call(RolloutManager.next_outcome, 1.0))
            if isinstance(outcome, Cut):
                return outcome
            if isinstance(outcome, PromptsWanted):
                await self.offer(step, outcome.count, starts_step=False)
            elif isinstance(outcome, Stopped):
                raise AssertionError(outcome.reason)

    async def samples(self, cut: Cut) -> list[Sample]:
        stores = {store.name: store for store in self.stores}
        fetched = []
        for receipt in cut.receipts:
            batch = await stores[receipt.store].call(SampleStore.fetch, [(receipt.sample, receipt.attempt)])
            fetched.append(batch.sample(0))
        return fetched

    async def step(self, step: int) -> list[Sample]:
        """Offer, wait for the cut, fetch, check, train."""
        wanted = await self.patiently(lambda: self.manager.call(RolloutManager.prompts_wanted))
        await self.offer(step, wanted, starts_step=True)
        return await self.finish(step)

    async def finish(self, step: int) -> list[Sample]:
        while True:
            cut = await self.cut(step)
            try:
                samples = await self.samples(cut)
                break
            except (LookupError, ActorUnavailable) as error:
                lost, reason = [r.sample for r in cut.receipts if r.store in str(error)], str(error)
                await self.patiently(lambda: self.manager.call(RolloutManager.lost, lost, reason))  # noqa: B023
        self.check(cut, samples)
        await self.patiently(lambda: self.manager.call(RolloutManager.trained, step + 1))
        return samples

    def check(self, cut: Cut, samples: Sequence[Sample]) -> None:
        """The batch is exactly P x R, sorted, each sample whole, with what its tokens were sampled under. Without
        over-launch the R are the first."""
        ids = [r.sample for r in cut.receipts]
        assert len(ids) == len(set(ids)) == self.p * self.r
        assert ids == sorted(ids)
        visits = Counter(i.visit for i in ids)
        assert set(visits.values()) == {self.r}
        if self.make_scheduler is None:
            assert ids == sorted(SampleId(v, i) for v in visits for i in range(self.r))
        for receipt, sample in zip(cut.receipts, samples, strict=True):
            assert (sample.id, sample.attempt) == (receipt.sample, receipt.attempt)
            self.check_tokens(sample)

    def check_tokens(self, sample: Sample) -> None:
        first = int(self.prompts[sample.visit.prompt_id].text.split()[0])  # type: ignore[union-attr]
        policy = sample.roles_T == Role.POLICY
        n = PROMPT_TOKENS
        written = length_of_prompt(first, self.tail_tokens)
        assert len(sample.tokens_T) == n + written
        assert policy.tolist() == [False] * n + [True] * written
        positions = range(n, len(sample.tokens_T))
        assert sample.tokens_T[n:].tolist() == [token_at(first, p) for p in positions]
        np.testing.assert_array_equal(sample.logprobs_T[n:], [np.float32(logprob_at(p)) for p in positions])
        assert (np.diff(sample.versions_T[n:]) >= 0).all()
        assert (sample.versions_T[:n] == -1).all()

    async def close(self) -> None:
        for actor in (*self.runners, self.manager):
            if actor.error is None:
                await actor.instance.close()
        for engine in self.engines:
            engine.instance.stop()
