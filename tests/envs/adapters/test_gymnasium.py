"""Gymnasium in text: toy-text environments played to the end, seeds, actions, malformed answers."""

from __future__ import annotations

import asyncio
import pickle
import re
from functools import partial

import pytest

from envs.adapters.gymnasium import GymnasiumText, prompts
from envs.scripted import Played, Policy, play_scripted, text_of
from envs.task import Observation
from roll_ray.errors import RollRayError
from roll_ray.sample import Prompt


def play(environment: GymnasiumText, prompt: Prompt, policy: Policy, seed: int = 0) -> Played:
    return asyncio.run(play_scripted(environment, prompt, policy, seed=seed))


def scripted(*answers: str) -> Policy:
    script = iter(answers)
    return lambda _: next(script)


def lake() -> GymnasiumText:
    return GymnasiumText("FrozenLake-v1", {"is_slippery": False})


def test_frozen_lake_is_won_by_the_known_path() -> None:
    played = play(lake(), prompts("FrozenLake-v1", [0])[0], scripted(*"112122"))
    assert played.last.terminated
    assert played.last.reward.value == 1.0  # type: ignore[union-attr]
    assert "[S]FFF\nFHFH" in text_of(played.observations_N[0])
    assert "SFFF\n[F]HFH" in text_of(played.observations_N[1])


def test_cliff_walking_is_walked_around_the_cliff() -> None:
    path = ["Go up."] + ["right"] * 11 + ["down"]
    played = play(GymnasiumText("CliffWalking-v1"), prompts("CliffWalking-v1", [1])[0], scripted(*path))
    assert (played.last.terminated, played.last.reward.value) == (True, -13.0)  # type: ignore[union-attr]


def test_taxi_brings_the_passenger_home() -> None:
    places = {"R": (0, 0), "G": (0, 4), "Y": (4, 0), "B": (4, 3)}

    def drive(observation: Observation) -> str:
        text = text_of(observation)
        row, column = map(int, re.findall(r"row (\d), column (\d)", text)[-1])
        waits = re.search(r"waits at (\w)", text)
        wanted = re.findall(r"go to (\w)", text)[-1]
        goal = places[waits[1] if waits else wanted]
        if (row, column) == goal:
            return "pickup" if waits else "dropoff"
        if column != goal[1] and row != 2:  # the walls leave the middle row open
            return "south" if row < 2 else "north"
        if column != goal[1]:
            return "east" if goal[1] > column else "west"
        return "south" if goal[0] > row else "north"

    for seed in range(5):
        played = play(GymnasiumText("Taxi-v4"), prompts("Taxi-v4", [seed])[0], drive)
        assert played.last.terminated
        assert played.results_N[-1].step_reward == 20.0
        assert played.last.reward.value == 21.0 - len(played.results_N)  # type: ignore[union-attr]


def test_blackjack_is_played_by_words() -> None:
    def careful(observation: Observation) -> str:
        own = int(re.search(r"cards count (\d+)", text_of(observation))[1])  # type: ignore[index]
        return "hit" if own < 17 else "stick"

    values = {
        play(GymnasiumText("Blackjack-v1"), prompts("Blackjack-v1", [seed])[0], careful).last.reward.value  # type: ignore[union-attr]
        for seed in range(12)
    }
    assert values == {-1.0, 1.0} or values == {-1.0, 0.0, 1.0}


def test_siblings_begin_alike_and_chance_is_the_attempts() -> None:
    (prompt,) = prompts("FrozenLake-v1", [5], max_turns=8)

    def walked(seed: int) -> list[str]:
        played = play(GymnasiumText("FrozenLake-v1"), prompt, lambda _: "left", seed)
        return [text_of(o) for o in played.observations_N]

    walks = [walked(seed) for seed in range(6)]
    assert len({walk[0] for walk in walks}) == 1
    assert len({tuple(walk) for walk in walks}) > 1
    assert walks == [walked(seed) for seed in range(6)]


@pytest.mark.parametrize("answer", ["", "north", "4", "-1", "leftwards", "9" * 30])
def test_a_malformed_answer_does_nothing_and_names_the_actions(answer: str) -> None:
    played = play(lake(), prompts("FrozenLake-v1", [0], max_turns=2)[0], scripted(answer, "left"))
    said = text_of(played.observations_N[1])
    assert said.startswith("That names none of the actions")
    assert "left, down, right, up" in said
    assert played.results_N[0].info["malformed"]
    assert (played.last.truncated, played.last.state) == (True, "[S]FFF\nFHFH\nFFFH\nHFFG")


def test_faults_are_said_and_the_factory_pickles() -> None:
    with pytest.raises(RollRayError, match="gymnasium cannot make Lake-v9"):
        play(GymnasiumText("Lake-v9"), prompts("Lake-v9", [0], rules="Walk.")[0], scripted())
    with pytest.raises(RollRayError, match="the rules of CartPole-v1 are not known"):
        prompts("CartPole-v1", [0])
    with pytest.raises(RollRayError, match="not discrete"):
        play(GymnasiumText("Pendulum-v1"), prompts("Pendulum-v1", [0], rules="Swing.")[0], scripted())
    with pytest.raises(RollRayError, match="4 actions, and 2 are named"):
        play(GymnasiumText("FrozenLake-v1", actions=("a", "b")), prompts("FrozenLake-v1", [0])[0], scripted())
    make = pickle.loads(
        pickle.dumps(partial(GymnasiumText, "FrozenLake-v1", {"is_slippery": False}, slow=True))
    )
    assert play(make(), prompts("FrozenLake-v1", [0])[0], scripted(*"112122")).last.terminated


def test_an_environment_of_ones_own_is_described_by_its_user() -> None:
    environment = GymnasiumText(
        "CartPole-v1", actions=("push left", "push right"), describe=lambda env, seen: f"angle {seen[2]:.2f}"
    )
    (prompt,) = prompts("CartPole-v1", [0], rules="Balance the pole.", max_turns=3)
    played = play(environment, prompt, lambda _: "I push left")
    assert [r.step_reward for r in played.results_N] == [1.0, 1.0, 1.0]
    assert "angle " in text_of(played.observations_N[1])
