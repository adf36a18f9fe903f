"""An episode appends tokens, never touches them again, and hands text only to who asks for text."""

from __future__ import annotations

import asyncio
import pickle
from collections.abc import Sequence

import pytest

from envs.task import Observation, SingleTurn, StepResult, Turn
from roll_ray.generation import GenerationDelta
from roll_ray.sample import Prompt, Role
from schedulers.protocol import SampleId, Visit
from tests.workers.rollout_bench import NumberTokenizer
from workers.episode import Episode, EpisodeFailedError, Limits, play, seed_of
from workers.generation_types import Generation
from workers.prompt_books import PromptBooks, TokenCache

LIMITS = Limits(max_new_tokens=6, max_model_len=20, timeout_s=5.0)


def writes(turns: Sequence[Sequence[int]], finish: str = "stop") -> tuple[list[int], object]:
    """A policy that writes these turns; and the room that it was given for each."""
    rooms: list[int] = []

    async def generate(episode: Episode, max_new_tokens: int) -> Generation:
        rooms.append(max_new_tokens)
        response = Generation()
        tokens = turns[episode.turn]
        response.tokens.extend(tokens)
        response.logprobs.extend([-0.5] * len(tokens))
        response.versions.extend([2] * len(tokens))
        response.finish = finish
        return response

    return rooms, generate


class Guess:
    """Says "9" after each guess, three guesses, the last one decides."""

    async def reset(self, prompt: Prompt, seed: int) -> Observation:
        self.guesses = 0
        return Observation.of(prompt)

    async def step(self, response: Turn) -> StepResult:
        self.guesses += 1
        if self.guesses == 3:
            return StepResult(reward=float(response.text == "5"), terminated=True, info={"guesses": 3})
        return StepResult(Observation(text="9"))


def test_tokens_that_cross_a_process_border_are_the_same_in_float32() -> None:
    delta = GenerationDelta("r", (1, 2), (-0.1, -0.2), (3, 4), "stop")
    here, there = Generation(), Generation()
    here.extend(delta)
    there.extend(pickle.loads(pickle.dumps(delta)))
    assert here == there
    assert list(there.versions) == [3, 4]


def test_a_single_turn_is_prompt_and_response() -> None:
    rooms, generate = writes([[5, 6]])
    episode = Episode(Prompt("p", text="1 2 3"), seed=1)
    asyncio.run(play(episode, SingleTurn(), NumberTokenizer(), generate, LIMITS))  # type: ignore[arg-type]
    arrays = episode.trajectory.arrays()
    assert arrays["tokens_T"].tolist() == [1, 2, 3, 5, 6]
    assert arrays["roles_T"].tolist() == [0, 0, 0, 1, 1]
    assert arrays["versions_T"].tolist() == [-1, -1, -1, 2, 2]
    assert (episode.text, episode.finish_reason, episode.reward, rooms) == ("5 6", "stop", None, [6])


def test_turns_append_what_the_environment_says_under_its_own_role() -> None:
    _, generate = writes([[3], [4], [5]])
    episode = Episode(Prompt("p", messages=({"role": "user", "content": "1"},)), seed=1)
    asyncio.run(play(episode, Guess(), NumberTokenizer(), generate, LIMITS))  # type: ignore[arg-type]
    arrays = episode.trajectory.arrays()
    assert arrays["tokens_T"].tolist() == [1, 3, 9, 4, 9, 5]
    e, p = int(Role.ENVIRONMENT), int(Role.POLICY)
    assert arrays["roles_T"].tolist() == [0, p, e, p, e, p]
    assert episode.reward is not None
    assert episode.reward.value == 1.0
    assert episode.info == {"guesses": 3}
    assert episode.n_policy_tokens == 3


def test_the_context_bounds_a_response_and_a_prompt_beyond_it_fails_with_the_setting() -> None:
    rooms, generate = writes([[5]])
    limits = Limits(max_new_tokens=6, max_model_len=5, timeout_s=5.0)
    prompt = Prompt("p", text="1 2 3")
    asyncio.run(play(Episode(prompt, 0), SingleTurn(), NumberTokenizer(), generate, limits))  # type: ignore[arg-type]
    assert rooms == [2]
    long = Episode(Prompt("long", text="1 2 3 4 5"), 0)
    with pytest.raises(EpisodeFailedError, match=r"prompt long.*engine\.max_model_len=5"):
        asyncio.run(play(long, SingleTurn(), NumberTokenizer(), generate, limits))  # type: ignore[arg-type]


def test_an_environment_that_goes_on_without_an_observation_fails() -> None:
    class Silent(Guess):
        async def step(self, response: Turn) -> StepResult:
            return StepResult()

    _, generate = writes([[5]])
    with pytest.raises(EpisodeFailedError, match="without an observation"):
        asyncio.run(
            play(Episode(Prompt("p", text="1"), 0), Silent(), NumberTokenizer(), generate, LIMITS)  # type: ignore[arg-type]
        )


def test_seeds_depend_on_everything_that_names_an_attempt_and_on_nothing_else() -> None:
    sample = SampleId(Visit("p", 1), 2)
    seeds = {
        seed_of(0, sample, 0),
        seed_of(1, sample, 0),
        seed_of(0, sample, 1),
        seed_of(0, SampleId(Visit("p", 1), 3), 0),
        seed_of(0, SampleId(Visit("p", 2), 2), 0),
        seed_of(0, SampleId(Visit("q", 1), 2), 0),
    }
    assert len(seeds) == 6
    assert all(0 <= seed < 1 << 63 for seed in seeds)
    assert seed_of(0, sample, 0) == 7583164111889323817


def test_siblings_have_their_prompt_tokenised_once() -> None:
    class Counting(NumberTokenizer):
        calls = 0

        def encode(self, text: str) -> list[int]:
            Counting.calls += 1
            return super().encode(text)

    cache = TokenCache(Counting())
    visit = Visit("p", 0)
    first, second = cache.of(visit).encode("1 2"), cache.of(visit).encode("1 2")
    assert first == second == [1, 2]
    assert first is not second
    assert Counting.calls == 1
    assert cache.of(visit).encode("7") == [7]


def test_prompts_are_found_through_handles_that_are_mappings_or_awaitables_in_a_list() -> None:
    async def story() -> None:
        books = PromptBooks()
        later: asyncio.Future[dict[str, Prompt]] = asyncio.get_running_loop().create_future()
        books.add([Visit("a", 0)], {"a": Prompt("a", text="1")})
        books.add([Visit("b", 0), Visit("c", 0)], [later])
        later.set_result({"b": Prompt("b", text="2")})
        assert (await books.prompt(Visit("a", 0))).text == "1"
        assert (await books.prompt(Visit("b", 0))).text == "2"
        with pytest.raises(LookupError, match="no prompt 'c'"):
            await books.prompt(Visit("c", 0))
        assert [visits for visits, _ in books.handles()] == [(Visit("a", 0),), (Visit("b", 0), Visit("c", 0))]
        books.forget([Visit("a", 0), Visit("b", 0)])
        assert [visits for visits, _ in books.handles()] == [(Visit("c", 0),)]

    asyncio.run(story())
