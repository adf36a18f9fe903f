"""textarena: games played to the end, seeds, faults, opponents, no downloads."""

from __future__ import annotations

import asyncio
import pickle
import random
import re
from functools import partial

import pytest

from envs.adapters.textarena import TextArena, prompts
from envs.scripted import Played, Policy, play_scripted, text_of
from envs.task import Observation
from roll_ray.errors import RollRayError
from roll_ray.sample import Reward


def play(game: TextArena, policy: Policy, *, seed: int = 3, attempt_seed: int = 0) -> Played:
    (prompt,) = prompts(game.game, [seed])
    return asyncio.run(play_scripted(game, prompt, policy, seed=attempt_seed))


def reward_of(played: Played) -> Reward:
    assert isinstance(played.last.reward, Reward)
    return played.last.reward


def bisection() -> Policy:
    low, high, guess = 1, 20, 0

    def policy(observation: Observation) -> str:
        nonlocal low, high, guess
        said = text_of(observation)
        if "is lower" in said:
            high = guess - 1
        elif "is higher" in said:
            low = guess + 1
        guess = (low + high) // 2
        return f"I try [{guess}]"

    return policy


def walker(observation: Observation) -> str:
    """A shortest path on textarena's lake, read from the printed board."""
    rows = [
        [cell.strip() for cell in line.strip("|").split("|")]
        for line in text_of(observation).splitlines()
        if line.startswith("|")
    ]
    size = len(rows)
    start = next((r, c) for r in range(size) for c in range(size) if rows[r][c] == "P")
    paths = {start: ""}
    frontier = [start]
    for r, c in frontier:
        for word, (dr, dc) in {"s": (1, 0), "d": (0, 1), "w": (-1, 0), "a": (0, -1)}.items():
            there = (r + dr, c + dc)
            if (
                min(there) >= 0
                and max(there) < size
                and there not in paths
                and rows[there[0]][there[1]] != "H"
            ):
                paths[there] = paths[r, c] + word
                frontier.append(there)
    return f"[{paths[size - 1, size - 1][0]}]"


def test_guess_the_number_is_won_by_bisection() -> None:
    for seed in range(4):
        played = play(TextArena("GuessTheNumber-v0"), bisection(), seed=seed)
        assert (played.last.terminated, reward_of(played).value) == (True, 1.0)
        assert "guess the number between 1 and 20" in text_of(played.observations_N[0])
        assert all("I try" not in text_of(o) for o in played.observations_N)


def test_the_frozen_lake_is_crossed() -> None:
    played = play(TextArena("FrozenLake-v0"), walker)
    assert reward_of(played) == Reward(1.0, "Congratulations! You reached the goal!")


def test_the_tower_of_hanoi_is_moved() -> None:
    moves = iter(["A C", "A B", "C B", "A C", "B A", "B C", "A C"])
    assert reward_of(play(TextArena("TowerOfHanoi-v0"), lambda _: f"[{next(moves)}]")).value == 1.0


def test_sokoban_is_walked_until_the_limit() -> None:
    played = play(TextArena("Sokoban-v0", max_turns=5), lambda _: "[up]")
    assert played.last.truncated or played.last.terminated
    assert "# # # # # #" in text_of(played.observations_N[0])


def test_siblings_begin_alike_and_equal_attempts_go_alike_even_at_once() -> None:
    def slide(rng: random.Random) -> Policy:
        return lambda _: rng.choice(["[Up]", "[Left]", "[Down]", "[Right]"])

    async def games(attempt_seeds: list[int]) -> list[list[str]]:
        (prompt,) = prompts("2048-v0-ultra-easy", [1])
        played = await asyncio.gather(
            *(
                play_scripted(TextArena("2048-v0-ultra-easy"), prompt, slide(random.Random(1)), seed=seed)
                for seed in attempt_seeds
            )
        )
        return [[text_of(o) for o in p.observations_N] for p in played]

    random.seed(5)
    expected = random.Random(5).random()
    together = asyncio.run(games([7, 7, 8, 9]))
    assert together[0] == together[1] == asyncio.run(games([7]))[0]
    assert len({told[0] for told in together}) == 1
    assert together[0] != together[2]
    assert random.random() == expected, "the random state of others was changed"


def test_a_malformed_move_is_told_once_and_ends_the_game_the_second_time() -> None:
    played = play(TextArena("GuessTheNumber-v0"), lambda _: "seven")
    assert "did not respond with valid '[number]'" in text_of(played.observations_N[1])
    assert [r.info["malformed"] for r in played.results_N] == [True, True]
    assert reward_of(played).reason.startswith("Invalid Move")


def test_two_players_need_an_opponent() -> None:
    with pytest.raises(RollRayError, match="TicTacToe-v0 cannot be played by 1"):
        play(TextArena("TicTacToe-v0"), lambda _: "[0]")

    def lowest_free(heard: str) -> str:
        board = heard[heard.rindex("Current Board") :]
        lowest = min(re.findall(r" (\d) ", board))
        return f"[{lowest}]"

    moves = iter(["[2]", "[4]", "[6]"])
    played = play(TextArena("TicTacToe-v0", opponents=(lowest_free,)), lambda _: next(moves))
    assert "Player 1 placed their symbol (X) in cell 0" in text_of(played.observations_N[1])
    assert "Player 1 placed their symbol (X) in cell 1" in text_of(played.observations_N[2])
    assert (played.last.terminated, reward_of(played).value) == (True, 1.0)
    assert not any(r.info["malformed"] for r in played.results_N)


def test_unknown_games_and_missing_word_lists_are_refused_without_a_download() -> None:
    with pytest.raises(RollRayError, match="no game 'Go-v7'"):
        play(TextArena("Go-v7"), lambda _: "")
    with pytest.raises(RollRayError, match="needs data of nltk that is not here: words"):
        play(TextArena("WordSearch-v0"), lambda _: "")


def test_the_factory_pickles() -> None:
    make = pickle.loads(pickle.dumps(partial(TextArena, "GuessTheNumber-v0", {"max_number": 5})))
    played = play(make(), lambda _: "[6]")
    assert "between 1 and 5" in text_of(played.observations_N[0])
