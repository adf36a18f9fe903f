"""An episode of many turns: what it records of each, what ends it, who is named when it hangs."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from envs.task import Observation, StepResult, Turn
from roll_ray.sample import Prompt, TurnRecord
from tests.workers.rollout_bench import NumberTokenizer
from workers.episode import Episode, EpisodeFailedError, Limits, play, state_number
from workers.episode_player import settled
from workers.generation_types import Generation

LIMITS = Limits(max_new_tokens=6, max_model_len=20, timeout_s=5.0)


class Counting:
    """Says "9" after each turn until `n` turns are over; each turn earns 0.25, from a state that is its number."""

    def __init__(self, n: int = 3, **last: Any) -> None:
        self.n, self.last, self.turns, self.closed = n, last, list[Turn](), 0

    async def reset(self, prompt: Prompt, seed: int) -> Observation:
        return Observation.of(prompt)

    async def step(self, response: Turn) -> StepResult:
        self.turns.append(response)
        over = len(self.turns) == self.n
        info = {"malformed": len(self.turns) == 2}
        state = str(len(self.turns))
        if over:
            return StepResult(step_reward=0.25, state=state, info=info, **{"terminated": True, **self.last})
        return StepResult(Observation(text="9", max_new_tokens=4), step_reward=0.25, state=state, info=info)

    async def close(self) -> None:
        self.closed += 1


def writes(length: Callable[[int], int] = lambda turn: turn + 1) -> tuple[list[int], Any]:
    """A policy whose turns are so long, cut to the room that it is given; and these rooms."""
    rooms: list[int] = []

    async def generate(episode: Episode, max_new_tokens: int) -> Generation:
        rooms.append(max_new_tokens)
        n = min(length(episode.turn), max_new_tokens)
        response = Generation(finish="length" if n == max_new_tokens else "stop")
        response.tokens.extend([5] * n)
        response.logprobs.extend([-0.5] * n)
        response.versions.extend([2] * n)
        return response

    return rooms, generate


def played(environment: Any, limits: Limits = LIMITS, generate: Any = None, text: str = "1 2") -> Episode:
    episode = Episode(Prompt("p", text=text), seed=77)
    generate = generate or writes()[1]
    asyncio.run(play(episode, environment, NumberTokenizer(), generate, limits))
    return episode


def test_each_turn_has_its_tokens_its_reward_and_the_state_it_was_played_from() -> None:
    environment = Counting()
    episode = played(environment)
    assert episode.turns == [
        TurnRecord(2, 3, 0.25, state_number("1")),
        TurnRecord(4, 6, 0.25, state_number("2"), malformed=True),
        TurnRecord(7, 10, 0.25, state_number("3")),
    ]
    roles = episode.trajectory.arrays()["roles_T"]
    for turn in episode.turns:
        assert set(roles[turn.begin : turn.end]) == {1}
        assert roles[turn.begin - 1] != 1
    assert (episode.finish_reason, episode.reward) == ("stop", None)
    assert [turn.n_context_tokens for turn in environment.turns] == [2, 4, 7]
    assert list(environment.turns[1].logprobs) == [-0.5, -0.5]
    assert environment.closed == 1


@pytest.mark.parametrize(
    ("last", "finish"), [({}, "stop"), ({"terminated": False, "truncated": True}, "length")]
)
def test_the_environment_says_whether_the_episode_was_cut_not_the_last_response(
    last: Any, finish: str
) -> None:
    _, generate = writes(lambda turn: 99)
    assert played(Counting(1, **last), generate=generate).finish_reason == finish


def test_a_turn_limit_truncates_the_episode_after_the_policys_last_token() -> None:
    environment = Counting(99)
    episode = played(environment, Limits(6, 200, 5.0, max_turns=4))
    assert (len(episode.turns), episode.finish_reason) == (4, "length")
    assert episode.trajectory.roles[-1] == 1, "what nobody will read is not in the trajectory"
    assert environment.closed == 1


@pytest.mark.parametrize("context", range(4, 30))
def test_the_context_truncates_an_episode_and_never_fails_or_overflows(context: int) -> None:
    rooms, generate = writes(lambda turn: 3)
    episode = played(Counting(8), Limits(6, context, 5.0), generate)
    assert len(episode.trajectory.tokens) <= context
    assert min(rooms) >= 1
    assert rooms[0] == min(6, context - 2)
    assert set(rooms[1:]) <= {1, 2, 3, 4}, "an observation may ask for a shorter answer"
    assert (episode.finish_reason == "length") is (len(episode.turns) < 8)


def test_an_environment_that_answers_too_late_is_named_with_prompt_seed_and_turn() -> None:
    class Slow(Counting):
        async def step(self, response: Turn) -> StepResult:
            if len(self.turns) == 1:
                await asyncio.sleep(60)
            return await super().step(response)

    environment = Slow()
    with pytest.raises(
        EpisodeFailedError, match=r"prompt p, seed 77, turn 1: Slow .* env_step_timeout_s=0\.02"
    ):
        played(environment, Limits(6, 20, 5.0, env_step_timeout_s=0.02))
    assert environment.closed == 1


def test_an_episode_out_of_time_says_whom_it_waited_for() -> None:
    class Slow(Counting):
        async def reset(self, prompt: Prompt, seed: int) -> Observation:
            await asyncio.sleep(60)
            raise AssertionError

    async def never(episode: Episode, max_new_tokens: int) -> Generation:
        await asyncio.sleep(60)
        raise AssertionError

    limits = Limits(6, 20, timeout_s=0.02, env_step_timeout_s=30.0)
    with pytest.raises(EpisodeFailedError, match=r"episode_timeout_s=0\.02 .* it waited for Slow"):
        played(Slow(), limits)
    with pytest.raises(EpisodeFailedError, match="it waited for an engine"):
        played(Counting(), limits, never)


@pytest.mark.parametrize("where", ["reset", "step", "generate"])
def test_a_time_out_of_its_own_and_any_other_fault_pass_as_they_are_and_the_environment_is_closed(
    where: str,
) -> None:
    class Faulty(Counting):
        async def reset(self, prompt: Prompt, seed: int) -> Observation:
            if where == "reset":
                raise TimeoutError("its own")
            return await super().reset(prompt, seed)

        async def step(self, response: Turn) -> StepResult:
            raise TimeoutError("its own")

    async def fails(episode: Episode, max_new_tokens: int) -> Generation:
        raise TimeoutError("its own")

    environment = Faulty()
    with pytest.raises(TimeoutError, match="its own"):
        played(environment, generate=fails if where == "generate" else None)
    assert environment.closed == 1


def test_an_aborted_episode_closes_its_environment() -> None:
    environment = Counting()

    async def never(episode: Episode, max_new_tokens: int) -> Generation:
        await asyncio.sleep(60)
        raise AssertionError

    async def story() -> None:
        episode = Episode(Prompt("p", text="1"), seed=0)
        task = asyncio.create_task(play(episode, environment, NumberTokenizer(), never, LIMITS))
        await asyncio.sleep(0.01)
        assert episode.phase == "generating"
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(story())
    assert environment.closed == 1


@pytest.mark.parametrize(
    ("reward", "penalty", "expected"),
    [(0.75, 0.0, [0.25, 0.25, 0.25]), (1.75, 0.0, [0.25, 0.25, 1.25]), (0.65, 0.1, [0.25, 0.15, 0.25])],
)
def test_the_rewards_of_the_turns_sum_up_to_the_episodes(
    reward: float, penalty: float, expected: Sequence[float]
) -> None:
    turns = settled(played(Counting()).turns, reward, penalty)
    assert [turn.reward for turn in turns] == pytest.approx(expected)
    assert sum(turn.reward for turn in turns) == pytest.approx(reward)
    assert settled([], 1.0) == ()


def test_equal_states_have_equal_numbers_and_others_have_others() -> None:
    numbers = [state_number(text) for text in ("a", "b", "", "ab", "a")]
    assert numbers[0] == numbers[4]
    assert len(set(numbers)) == 4
    assert all(0 <= number < 1 << 63 for number in numbers)
