"""Episodes of many turns through a runner, scripted engines and a store: slots, rewards, retries, who hangs."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from envs.task import Observation, ScoredView, StepResult, Turn
from roll_ray.algorithms.shaping import Shaping
from roll_ray.generation import GenerationRequest
from roll_ray.receipts import Receipt, TurnNumbers
from roll_ray.sample import Prompt, SamplingDistribution
from schedulers.protocol import Failed, Generated, Launch, SampleId, Scored, Started, Visit
from tests.workers.rollout_bench import NumberTokenizer
from tests.workers.scripted_engine import MortalActor, ScriptedEngine
from workers.episode import state_number
from workers.episode_runner import EpisodeRunner, RunnerSpec
from workers.reward_worker import RewardWorker
from workers.sample_store import SampleStore

GAME = "game"


class Game:
    """Three turns that earn 0, 1 and 2; the second cannot be read. `gate` holds every step until it is set."""

    gate: asyncio.Event | None = None
    thinking = 0

    async def reset(self, prompt: Prompt, seed: int) -> Observation:
        self.turn = 0
        return Observation.of(prompt)

    async def step(self, response: Turn) -> StepResult:
        if Game.gate is not None:
            Game.thinking += 1
            await Game.gate.wait()
        self.turn += 1
        return StepResult(
            Observation(text="9"),
            step_reward=self.turn - 1.0,
            state=f"turn {self.turn}",
            terminated=self.turn == 3,
            info={"malformed": self.turn == 2},
        )


@pytest.fixture(autouse=True)
def _no_gate() -> None:
    Game.gate, Game.thinking = None, 0


class Table:
    """One runner at work. `reports` are all events and receipts so far."""

    def __init__(self, n_engines: int = 1, rewards: Any = None, **spec: Any) -> None:
        self.engines = [
            MortalActor(lambda i=i: ScriptedEngine(f"rollout-{i}", _two_tokens), f"rollout-{i}")
            for i in range(n_engines)
        ]
        self.store = MortalActor(lambda: SampleStore("store-0"), "store-0")
        workers = []
        if rewards is not None:
            workers = [MortalActor(lambda: RewardWorker({GAME: lambda: rewards}, 2, 5.0), "reward-0")]
        spec = {"environments": {GAME: Game}, "max_new_tokens": 8, **spec}
        self.runner = EpisodeRunner(
            RunnerSpec("runner-0", "none", SamplingDistribution(), **spec),
            self.engines,
            workers,
            self.store,
            NumberTokenizer(),
        )
        self.events: list[Any] = []
        self.receipts: list[Receipt] = []
        self.seen = 0

    async def launch(self, n: int = 1, attempt: int = 0) -> None:
        prompt = Prompt("p", text="1 1 1", domain=GAME)
        await self.runner.launch([Launch(Visit("p", 0), tuple(range(n)), attempt)], {"p": prompt})

    async def until(self, kind: type, n: int = 1) -> list[Any]:
        while len(found := [event for event in self.events if isinstance(event, kind)]) < n:
            reports = await self.runner.reports(self.seen, 1.0)
            self.events += reports.events
            self.receipts += reports.receipts
            self.seen += len(reports.events)
        return found

    def requests(self) -> list[GenerationRequest]:
        return [request for engine in self.engines for request in engine.instance.submitted]


def _two_tokens(request: GenerationRequest) -> int:
    return 2


def at(table: Callable[[], Table], story: Callable[[Table], Awaitable[None]]) -> None:
    async def whole() -> None:
        here = table()
        try:
            await asyncio.wait_for(story(here), 10)
        finally:
            await here.runner.close()

    asyncio.run(whole())


def test_turns_go_from_the_environment_to_the_receipt() -> None:
    async def story(table: Table) -> None:
        await table.launch(2)
        scored = await table.until(Scored, 2)
        assert [event.reward for event in scored] == [3.0, 3.0]
        assert len(await table.until(Started, 2)) == 2, "an attempt starts once, whatever its turns"
        assert {event.n_tokens for event in await table.until(Generated, 2)} == {6}
        for receipt in table.receipts:
            assert (receipt.n_tokens, receipt.n_policy_tokens, receipt.truncated) == (
                3 + 2 + 1 + 2 + 1 + 2,
                6,
                False,
            )
            assert receipt.turns == tuple(
                TurnNumbers(2, reward, state_number(f"turn {i + 1}"))
                for i, reward in enumerate([0.0, 1.0, 2.0])
            )
            assert receipt.reason == "the sum of its turns' rewards"

    at(Table, story)


def test_a_response_without_an_environment_has_no_turns_in_its_receipt() -> None:
    async def story(table: Table) -> None:
        await table.launch()
        await table.until(Scored)
        (receipt,) = table.receipts
        assert receipt.turns == ()
        assert receipt.each_turn == (TurnNumbers(2, 0.5, None),)

    at(lambda: Table(rewards=lambda view: 0.5, environments={}, rewarded=frozenset({GAME})), story)


def test_a_reward_function_of_the_domain_is_asked_before_turns_are_summed_up() -> None:
    def judged(view: ScoredView) -> float:
        assert view.info["malformed"] is False
        return 10.0

    async def story(table: Table) -> None:
        await table.launch()
        (scored,) = await table.until(Scored)
        assert scored.reward == 10.0
        assert [turn.reward for turn in table.receipts[0].turns] == [0.0, 1.0, 9.0]

    at(lambda: Table(rewards=judged, rewarded=frozenset({GAME})), story)


def test_a_malformed_turn_pays_its_penalty_in_training_and_not_in_evaluation() -> None:
    async def story(table: Table) -> None:
        await table.launch()
        (scored,) = await table.until(Scored)
        assert scored.reward == pytest.approx(2.5)
        assert [turn.reward for turn in table.receipts[0].turns] == pytest.approx([0.0, 0.5, 2.0])
        prompt = Prompt("held", text="1 1", domain=GAME)
        (answer,) = await table.runner.evaluate([prompt], SamplingDistribution(temperature=0.0), 8)
        assert answer.reward.value == 3.0

    at(lambda: Table(shaping=Shaping(8, format_penalty=0.5)), story)


def test_while_an_environment_thinks_its_episode_holds_nothing_of_an_engine() -> None:
    async def story(table: Table) -> None:
        Game.gate = asyncio.Event()
        await table.launch(64)
        while Game.thinking < 64:
            await asyncio.sleep(0.005)
        state = await table.runner.waiting_for()
        assert state["engines"] == {}
        assert state["phases"] == {"environment": 64}
        assert not table.engines[0].instance._running
        assert table.runner._engines._open == {}
        Game.gate.set()
        await table.until(Scored, 64)

    at(Table, story)


def test_a_turn_asks_for_the_whole_prefix_at_the_engine_that_has_it_cached() -> None:
    async def story(table: Table) -> None:
        await table.launch(12)
        await table.until(Scored, 12)
        by_episode: dict[str, list[tuple[int, str, tuple[int, ...]]]] = {}
        for engine in table.engines:
            for request in engine.instance.submitted:
                name, _, turn = request.id.partition("#")[0].rpartition(":")
                by_episode.setdefault(name, []).append((int(turn), engine.name, request.prompt_token_ids))
        assert len({engine for turns in by_episode.values() for _, engine, _ in turns}) == 3
        for turns in by_episode.values():
            assert [number for number, _, _ in sorted(turns)] == [0, 1, 2]
            assert len({engine for _, engine, _ in turns}) == 1
            prefixes = [tokens for _, _, tokens in sorted(turns)]
            assert all(b[: len(a)] == a for a, b in itertools.pairwise(prefixes))

    at(lambda: Table(n_engines=3), story)


def test_a_failing_environment_fails_its_attempt_and_the_next_one_may_succeed() -> None:
    class Flaky(Game):
        failures = 1

        async def step(self, response: Turn) -> StepResult:
            if Flaky.failures:
                Flaky.failures -= 1
                raise RuntimeError("lost its server")
            return await super().step(response)

    async def story(table: Table) -> None:
        await table.launch()
        (failed,) = await table.until(Failed)
        assert failed.reason == "RuntimeError: lost its server"
        await table.launch(attempt=1)
        (scored,) = await table.until(Scored)
        assert scored.attempt == 1

    at(lambda: Table(environments={GAME: Flaky}), story)


def test_a_failing_environment_makes_an_evaluations_answer_invalid() -> None:
    class Broken(Game):
        async def reset(self, prompt: Prompt, seed: int) -> Observation:
            raise RuntimeError("no map")

    async def story(table: Table) -> None:
        prompt = Prompt("held", text="1 1", domain=GAME)
        (answer,) = await table.runner.evaluate([prompt], SamplingDistribution(), 8)
        assert (answer.reward.value, answer.reward.reason) == (None, "RuntimeError: no map")

    at(lambda: Table(environments={GAME: Broken}), story)


def test_who_waits_longest_is_named_with_environment_seed_and_turn() -> None:
    async def story(table: Table) -> None:
        Game.gate = asyncio.Event()
        await table.launch()
        while not Game.thinking:
            await asyncio.sleep(0.005)
        state = await table.runner.waiting_for()
        seed = table.runner._attempts[SampleId(Visit("p", 0), 0)].episode.seed  # type: ignore[union-attr]
        assert state["oldest"] == f"p (Game, seed {seed}, turn 0)"
        assert state["oldest_s"] < 5

    at(Table, story)
