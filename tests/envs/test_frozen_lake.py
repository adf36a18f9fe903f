"""FrozenLake: maps, held-out set, walking, renderings."""

from __future__ import annotations

import asyncio
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from envs.frozen_lake import (
    COMPACT_CHARACTERS,
    START,
    FrozenLake,
    Lake,
    demonstrated_move,
    heldout_prompts,
    make_lake,
    training_prompts,
)
from envs.scripted import Played, play_scripted, text_of
from roll_ray.sample import Prompt

ROWS = ["FFFF", "FHFH", "FFFH", "HFFG"]


def lake_prompt(**info: object) -> Prompt:
    return Prompt("p", text="walk", info={"rows": ROWS, "max_steps": 12, **info})


def play(prompt: Prompt, *answers: str, seed: int = 0) -> Played:
    script = iter(answers)
    return asyncio.run(play_scripted(FrozenLake(), prompt, lambda _: next(script), seed=seed))


def play_demonstration(prompt: Prompt, seed: int, skill: float) -> Played:
    rng = random.Random(seed)
    policy = play_scripted(FrozenLake(), prompt, lambda o: demonstrated_move(text_of(o), rng, skill))
    return asyncio.run(policy)


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 2**40), size=st.integers(2, 7), ice_share=st.floats(0.5, 1.0))
def test_every_map_can_be_solved_and_equal_seeds_give_equal_maps(
    seed: int, size: int, ice_share: float
) -> None:
    lake = make_lake(seed, size, ice_share)
    assert lake == make_lake(seed, size, ice_share)
    here, distance = START, lake.distances()
    for expected in range(distance[START] - 1, -1, -1):
        here = next(n for d in "LDRU" if distance.get(n := lake.after(here, d)) == expected)
    assert lake.cell(here) == "G"
    assert Lake.read(lake.view(START)) == (lake, START)


def test_256_maps_are_held_out_all_different_and_never_trained_on() -> None:
    heldout = {tuple(p.info["rows"]) for p in heldout_prompts()}
    assert len(heldout) == 256
    for seed in (0, 20):
        train = training_prompts(500, seed)
        assert len({p.id for p in train}) == 500
        assert not heldout & {tuple(p.info["rows"]) for p in train}
    assert training_prompts(20, 1) == training_prompts(20, 1) != training_prompts(20, 2)
    assert heldout_prompts(5) == heldout_prompts()[:5]


def test_small_lakes_hold_out_a_part_of_what_there_is() -> None:
    assert len(heldout_prompts(32, size=3)) == 32
    with pytest.raises(ValueError, match="1 to 32 maps of size 3"):
        heldout_prompts(size=3)
    assert training_prompts(50, size=3)


@pytest.mark.parametrize("compact", [False, True])
def test_the_demonstrator_reaches_the_goal_by_a_shortest_path(compact: bool) -> None:
    for prompt in training_prompts(20, compact=compact):
        played = play_demonstration(prompt, seed=0, skill=1.0)
        assert played.last.reward.value == 1.0  # type: ignore[union-attr]
        assert len(played.results_N) == Lake(tuple(prompt.info["rows"])).distances()[START]


def test_an_unskilled_demonstrator_stays_on_the_ice_and_is_often_late() -> None:
    results = [play_demonstration(p, seed=i, skill=0.0).last for i, p in enumerate(training_prompts(20))]
    assert {r.reward.reason for r in results} == {"reached the goal", "not at the goal in time"}  # type: ignore[union-attr]


def test_compact_observations_are_17_characters_of_a_small_vocabulary() -> None:
    for prompt in training_prompts(10, compact=True):
        played = play_demonstration(prompt, seed=1, skill=0.5)
        assert all(len(text_of(o)) == 17 for o in played.observations_N)
        assert set("".join(text_of(o) for o in played.observations_N)) <= set(COMPACT_CHARACTERS)
    played = play(lake_prompt(compact=True), "l", *"RRDDDR")
    assert text_of(played.observations_N[1]) == "!AFFFFHFHFFFHHFFG?"
    assert text_of(played.observations_N[2]) == "FAFFFHFHFFFHHFFG?"


def test_the_walk_ends_at_the_goal_in_a_hole_or_at_the_limit() -> None:
    won = play(lake_prompt(), "Down", "I go down.", "R", "not left, right", "down", "r")
    assert (won.last.terminated, won.last.reward.value) == (True, 1.0)  # type: ignore[union-attr]
    assert [r.step_reward for r in won.results_N] == [0, 0, 0, 0, 0, 1]
    lost = play(lake_prompt(), "R", "D")
    assert (lost.last.terminated, lost.last.reward.reason) == (True, "stepped into a hole")  # type: ignore[union-attr]
    late = play(lake_prompt(max_steps=3), "U", "L", "nonsense")
    assert (late.last.terminated, late.last.truncated) == (False, True)
    assert late.last.reward.reason == "not at the goal in time"  # type: ignore[union-attr]
    assert {r.state for r in late.results_N} == {"AFFF\nFHFH\nFFFH\nHFFG"}
    assert won.results_N[1].state == "FFFF\nAHFH\nFFFH\nHFFG"


def test_a_malformed_answer_costs_a_step_and_says_what_is_wrong() -> None:
    played = play(lake_prompt(max_steps=2), "north", "R")
    assert "no direction" in text_of(played.observations_N[1])
    assert [r.info["malformed"] for r in played.results_N] == [True, False]
    assert played.last.truncated


def test_slippery_ice_slides_a_third_each_way_as_the_seed_says() -> None:
    prompt = Prompt("p", text="", info={"rows": ["FFF", "FFF", "FFG"], "max_steps": 2, "slippery": True})

    async def ends(seeds: range) -> list[str | None]:
        played = [await play_scripted(FrozenLake(), prompt, lambda _: "R", seed=seed) for seed in seeds]
        return [p.results_N[1].state for p in played]

    states = asyncio.run(ends(range(300)))
    assert states == asyncio.run(ends(range(300)))
    counts = {state: states.count(state) for state in states}
    assert set(counts) == {"FAF\nFFF\nFFG", "FFF\nAFF\nFFG", "AFF\nFFF\nFFG"}
    assert all(70 < n < 130 for n in counts.values())
