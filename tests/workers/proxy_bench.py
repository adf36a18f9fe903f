"""A runner whose episodes are played by foreign agents, with a scripted engine, in one event loop."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from envs.task import ScoredView
from roll_ray.generation import GenerationRequest
from roll_ray.sample import Prompt, Sample, SamplingDistribution
from schedulers.protocol import Aborted, Failed, Launch, SampleId, Scored, Visit
from tests.workers.scripted_engine import MortalActor, ScriptedEngine
from workers.episode_runner import EpisodeRunner, RunnerSpec
from workers.proxy import ForeignAgent
from workers.proxy_agents import Agent
from workers.reward_worker import RewardWorker
from workers.sample_store import SampleStore

ANSWER_TOKENS = 5


class NumbersTokenizer:
    """A text is a list of numbers, a chat the texts of its messages."""

    def encode(self, text: str) -> list[int]:
        return [int(word) for word in text.split()]

    def decode(self, token_ids: Sequence[int]) -> str:
        return " ".join(map(str, token_ids))

    def render_chat(self, messages: Any) -> str:
        return " ".join(message["content"] for message in messages)

    def apply_chat_template(self, messages: Any) -> list[int]:
        return self.encode(self.render_chat(messages))


def answer_length(request: GenerationRequest) -> int:
    return ANSWER_TOKENS


def n_answers(view: ScoredView) -> float:
    return float(len(view.response_text.split("\n")))


@dataclass
class ProxyBench:
    """`played` gives for each prompt the stored sample, or the event that says why there is none."""

    agent: Agent
    max_turns: int | None = None
    episode_timeout_s: float = 30.0
    tick_s: float = 0.001
    agents: ForeignAgent = field(init=False)
    engine: ScriptedEngine = field(init=False)
    runner: EpisodeRunner = field(init=False)
    store: SampleStore = field(init=False)

    def __post_init__(self) -> None:
        self.agents = ForeignAgent(self.agent)
        engine = MortalActor(partial(ScriptedEngine, "rollout-0", answer_length, 2, self.tick_s), "rollout-0")
        store = MortalActor(partial(SampleStore, "store-0"), "store-0")
        rewards = MortalActor(partial(RewardWorker, {"default": lambda: n_answers}, 2), "reward-0")
        self.engine, self.store = engine.instance, store.instance
        spec = RunnerSpec(
            name="runner-0",
            model="none",
            sampling=SamplingDistribution(),
            max_new_tokens=32,
            max_model_len=1000,
            max_turns=self.max_turns,
            episode_timeout_s=self.episode_timeout_s,
            environments={"default": self.agents},
            rewarded=frozenset({"default"}),
        )
        self.runner = EpisodeRunner(spec, [engine], [rewards], store, NumbersTokenizer())

    async def launch(self, prompts: Sequence[Prompt]) -> list[SampleId]:
        visits = [Visit(prompt.id, 0) for prompt in prompts]
        await self.runner.launch(
            [Launch(v, (0,), 0) for v in visits], {prompt.id: prompt for prompt in prompts}
        )
        return [SampleId(visit, 0) for visit in visits]

    async def outcomes(self, samples: Sequence[SampleId]) -> list[Sample | Scored | Failed | Aborted]:
        ends: dict[SampleId, Any] = {}
        acknowledged = 0
        while set(ends) != set(samples):
            reports = await self.runner.reports(acknowledged, 5.0)
            acknowledged = reports.sequence
            for event in reports.events:
                if isinstance(event, Scored | Failed | Aborted):
                    ends[event.sample] = event
        for sample, event in ends.items():
            if isinstance(event, Scored) and event.reward is not None:
                ends[sample] = self.store.fetch([(sample, 0)]).sample(0)
        return [ends[sample] for sample in samples]

    async def played(self, *prompts: Prompt) -> list[Any]:
        return await self.outcomes(await self.launch(prompts))


@contextlib.asynccontextmanager
async def bench(agent: Agent, **how: Any) -> AsyncIterator[ProxyBench]:
    made = ProxyBench(agent, **how)
    try:
        yield made
    finally:
        await made.runner.close()
        await made.agents.close()
        made.engine.stop()


def play(agent: Agent, *prompts: Prompt, **how: Any) -> list[Any]:
    """What became of each prompt's episode."""

    async def story() -> list[Any]:
        async with bench(agent, **how) as made:
            return await asyncio.wait_for(made.played(*prompts), 40.0)

    return asyncio.run(story())
