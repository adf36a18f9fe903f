"""Guess a number: rules, renderings, malformed answers."""

from __future__ import annotations

import asyncio

import pytest

from envs.guess_number import COMPACT_CHARACTERS, COMPACT_LETTERS, GuessNumber, prompts
from envs.scripted import Played, play_scripted, text_of
from envs.task import Observation
from roll_ray.errors import RollRayError
from roll_ray.sample import Prompt


def play(prompt: Prompt, *answers: str, seed: int = 0) -> Played:
    script = iter(answers)
    return asyncio.run(play_scripted(GuessNumber(), prompt, lambda _: next(script), seed=seed))


def bisect(prompt: Prompt, *, compact: bool) -> Played:
    low, high = 1, 15

    def guess(observation: Observation) -> str:
        nonlocal low, high
        middle, said = (low + high) // 2, text_of(observation)[-1]
        if said == "<":
            high = middle - 1
        elif said == ">":
            low = middle + 1
        middle = (low + high) // 2
        return COMPACT_LETTERS[middle - 1] if compact else f"Between {low} and {high}, so {middle}."

    return asyncio.run(play_scripted(GuessNumber(), prompt, guess))


@pytest.mark.parametrize("compact", [False, True])
def test_bisection_finds_each_of_15_numbers_within_4_turns(compact: bool) -> None:
    for prompt in prompts(compact=compact):
        played = bisect(prompt, compact=compact)
        assert played.last.terminated
        assert played.last.reward is not None
        assert played.last.reward.value == 1.0  # type: ignore[union-attr]
        assert sum(r.step_reward for r in played.results_N) == 1.0
        assert all(r.reward is None for r in played.results_N[:-1])


def test_the_compact_rendering_is_one_character_a_turn_of_a_small_vocabulary() -> None:
    for prompt in prompts(compact=True):
        played = bisect(prompt, compact=True)
        said = [text_of(o) for o in played.observations_N] + played.responses_N
        assert all(len(text) == 1 and text in COMPACT_CHARACTERS for text in said)


def test_four_wrong_guesses_lose_and_the_number_is_told_in_the_reason() -> None:
    played = play(prompts()[8], "1", "2", "3", "4")
    assert played.last.terminated
    assert (played.last.reward.value, played.last.reward.reason) == (0.0, "not found: it was 9")  # type: ignore[union-attr]


@pytest.mark.parametrize("answer", ["", "seven", "0", "16", "-3", "3.5", "9" * 5000, "x9"])
def test_a_malformed_answer_costs_a_turn_and_says_what_is_wrong(answer: str) -> None:
    played = play(prompts()[8], answer, "9")
    assert "not a whole number from 1 to 15" in text_of(played.observations_N[1])
    assert played.results_N[0].info["malformed"]
    assert not played.last.info["malformed"]
    assert play(prompts()[8], "1", "2", "3", answer).last.terminated


def test_compact_takes_one_letter_and_asks_again_for_anything_else() -> None:
    prompt = prompts(compact=True)[8]
    for answer in ("", "9", "ii", "p", "?"):
        assert text_of(play(prompt, answer, "i").observations_N[1]) == "?"


def test_equal_knowledge_is_an_equal_state_and_the_target_is_not_in_it() -> None:
    def states(target: int, *answers: str) -> list[str | None]:
        return [r.state for r in play(prompts()[target - 1], *answers).results_N]

    assert states(9, "4", "12", "9") == ["1-15, 4 left", "5-15, 3 left", "5-11, 2 left"]
    assert states(9, "4", "12", "9")[2] == states(9, "12", "4", "9")[2]
    assert states(9, "4", "x", "12", "9")[:3] == states(7, "4", "x", "12", "7")[:3]


def test_siblings_and_attempts_have_the_same_number_and_copies_have_ids_of_their_own() -> None:
    assert {p.info["target"] for p in prompts()} == set(range(1, 16))
    assert len({p.id for p in prompts(copies=3)}) == 45
    for seed in (0, 7):
        assert play(prompts()[8], "9", seed=seed).last.info["success"]


def test_a_prompt_without_a_number_is_refused_with_its_id() -> None:
    with pytest.raises(RollRayError, match=r"prompt p: .*info\['target'\]"):
        play(Prompt("p", text="?"), "1")
