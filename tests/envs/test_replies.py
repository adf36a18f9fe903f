"""How environments speak: chats get messages, texts get text, and the first words follow the prompt."""

from __future__ import annotations

import pytest

from envs.replies import needed, opening, reply
from envs.task import Observation
from roll_ray.errors import RollRayError
from roll_ray.sample import Prompt

SYSTEM, USER = {"role": "system", "content": "s"}, {"role": "user", "content": "u"}


def test_a_chat_is_answered_by_a_user_message_and_text_by_lines() -> None:
    said = {"role": "user", "content": "hello"}
    assert reply(Prompt("p", messages=(USER,)), "hello") == Observation(messages=(said,))
    assert reply(Prompt("p", text="t"), "hello") == Observation(text="\nhello\n")


def test_first_words_stand_below_the_prompt_in_the_users_last_message() -> None:
    joined = {"role": "user", "content": "u\nboard"}
    alone = {"role": "user", "content": "board"}
    assert opening(Prompt("p", messages=(SYSTEM, USER)), "board").messages == (SYSTEM, joined)
    assert opening(Prompt("p", messages=(SYSTEM,)), "board").messages == (SYSTEM, alone)
    assert opening(Prompt("p", messages=({**USER, "content": ""},)), "board").messages == (alone,)
    assert opening(Prompt("p", text="t"), "board").text == "t\nboard\n"
    with pytest.raises(RollRayError, match="given as token ids"):
        opening(Prompt("p", token_ids=(1,)), "board")


def test_what_a_prompt_lacks_is_named_with_what_it_has() -> None:
    assert needed(Prompt("p", text="t", info={"rows": 1}), "rows") == 1
    with pytest.raises(RollRayError, match=r"(?s)prompt p: .*info\['seed'\].*its info has: rows"):
        needed(Prompt("p", text="t", info={"rows": 1}), "seed")
