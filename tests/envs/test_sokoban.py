"""Sokoban: rooms, pushing, rewards, malformed answers."""

from __future__ import annotations

import asyncio

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from envs.scripted import Played, play_scripted, text_of
from envs.sokoban import MAX_STEPS, Room, Sokoban, heldout_prompts, make_room, training_prompts
from roll_ray.sample import Prompt

ROOM = "#####\n#@$.#\n#--.#\n#-$-#\n#####"


def play(rows: str, *answers: str, max_steps: int = 40) -> Played:
    prompt = Prompt("p", text="push", info={"rows": rows, "max_steps": max_steps})
    script = iter(answers)
    return asyncio.run(play_scripted(Sokoban(), prompt, lambda _: next(script)))


@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 2**40), size=st.integers(5, 8), boxes=st.integers(1, 3))
def test_every_room_is_solved_by_its_solution_within_the_usual_limit(
    seed: int, size: int, boxes: int
) -> None:
    room, solution = make_room(seed, size, boxes)
    assert (room, solution) == make_room(seed, size, boxes)
    assert len(room.boxes) == len(room.targets) == boxes
    assert not room.boxes & room.targets
    assert 0 < len(solution) <= MAX_STEPS
    assert Room.read(room.view()) == room
    for move in solution:
        assert room.pushed(move) != room
        room = room.pushed(move)
    assert room.solved


def test_too_many_boxes_for_a_room_are_refused() -> None:
    with pytest.raises(ValueError, match="take a larger size or fewer boxes"):
        make_room(0, size=5, boxes=5)


def test_held_out_rooms_are_never_trained_on() -> None:
    heldout = {p.info["rows"] for p in heldout_prompts(size=5)}
    for seed in (0, 20):
        train = training_prompts(50, seed, size=5)
        assert not heldout & {p.info["rows"] for p in train}
        assert len({p.id for p in train}) == 50
    assert training_prompts(5, 1, size=5) == training_prompts(5, 1, size=5) != training_prompts(5, 2, size=5)


def test_a_solved_room_pays_as_gym_sokoban_does() -> None:
    played = play("#######\n#@$.--#\n#--$.-#\n#######", "right", "D", "I push right.")
    assert text_of(played.observations_N[1]).strip() == "#######\n#-@*--#\n#--$.-#\n#######"
    assert [r.step_reward for r in played.results_N] == pytest.approx([0.9, -0.1, 10.9])
    assert (played.last.terminated, played.last.reward.reason) == (True, "solved")  # type: ignore[union-attr]
    assert played.last.reward.value == pytest.approx(11.7)  # type: ignore[union-attr]


def test_walls_and_second_boxes_do_not_move() -> None:
    room = Room.read("######\n#@$$.#\n#---.#\n######")
    assert room.pushed("R") == room
    assert room.pushed("U") == room
    assert Room.read("####\n#@$#\n#.-#\n####").pushed("R").view() == "####\n#@$#\n#.-#\n####"


def test_pushing_a_box_off_its_target_costs_what_it_gave() -> None:
    room = "#######\n#@$.--#\n#-$--.#\n#######"
    played = play(room, "R", "R", "nothing", max_steps=3)
    assert [r.step_reward for r in played.results_N] == pytest.approx([0.9, -1.1, -0.1])
    assert played.last.truncated
    assert played.last.reward.value == pytest.approx(-0.3)  # type: ignore[union-attr]
    assert played.last.reward.reason == "0 of 2 boxes on a target"  # type: ignore[union-attr]


def test_a_malformed_answer_costs_a_step_says_so_and_leaves_the_state() -> None:
    played = play(ROOM, "push it", "down", "U", max_steps=3)
    assert "no direction" in text_of(played.observations_N[1])
    assert [r.info["malformed"] for r in played.results_N] == [True, False, False]
    assert [r.state for r in played.results_N][:2] == [ROOM, ROOM]
