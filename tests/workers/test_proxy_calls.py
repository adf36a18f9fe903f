"""What a call may say, what is refused by name, and what of a call is new to the policy."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from roll_ray.sample import Reward
from workers.proxy_agents import verdict_of
from workers.proxy_calls import Call, RefusedError, chat_call, text_call
from workers.proxy_session import Conversation, Session

HELLO = {"role": "user", "content": "hello"}


@pytest.mark.parametrize(
    "said",
    [
        {"temperature": 0.2},
        {"temperature": 1.0},
        {"top_p": 0.9},
        {"logit_bias": {"5": 100}},
        {"stop": ["\n"]},
        {"seed": 1},
        {"n": 2},
        {"tools": [{"type": "function"}]},
        {"functions": [{"name": "f"}]},
        {"top_logprobs": 3},
        {"response_format": {"type": "json_object"}},
        {"reasoning_effort": "high"},
        {"logprobs": 1},
        {"stream": "yes"},
        {"stream_options": {"include_obfuscation": True}},
    ],
)
def test_a_parameter_that_the_run_cannot_honour_is_refused_by_name(said: dict[str, Any]) -> None:
    (name,) = said
    with pytest.raises(RefusedError) as refused:
        chat_call({"model": "m", "messages": [HELLO], **said})
    assert refused.value.status == 400
    assert refused.value.param == name
    assert name in refused.value.message


@pytest.mark.parametrize(
    "said", [{"best_of": 2}, {"echo": True}, {"suffix": "."}, {"logprobs": 3}, {"logprobs": True}]
)
def test_a_text_call_is_refused_by_name_too(said: dict[str, Any]) -> None:
    (name,) = said
    with pytest.raises(RefusedError, match=name):
        text_call({"prompt": "hello", **said})


@pytest.mark.parametrize(
    ("messages", "words"),
    [
        ([], "not empty"),
        ("hello", "must be a list"),
        ([{"role": "tool", "content": "1"}], r"messages\[0\] must have a role"),
        (
            [HELLO, {"role": "user", "content": [{"type": "image_url"}]}],
            r"messages\[1\]: the content must be text",
        ),
        ([{"role": "user", "content": None}], r"messages\[0\]: the content must be text"),
        ([{**HELLO, "tool_calls": [{"id": "1"}]}], r"messages\[0\]: 'tool_calls' is not supported"),
        ([HELLO, {"role": "assistant", "content": "so"}], "the last message is the assistant's"),
    ],
)
def test_messages_that_no_template_can_render_are_refused_with_their_number(
    messages: Any, words: str
) -> None:
    with pytest.raises(RefusedError, match=words):
        chat_call({"messages": messages})


@pytest.mark.parametrize("body", [[], "text", {"messages": [HELLO], "max_tokens": 0}, {"prompt": ["a", "b"]}])
def test_a_body_that_is_no_call_is_refused(body: Any) -> None:
    with pytest.raises(RefusedError):
        (text_call if isinstance(body, dict) and "prompt" in body else chat_call)(body)


def test_what_says_nothing_is_accepted() -> None:
    nothing = {"n": 1, "tools": [], "temperature": None, "user": "me", "response_format": {"type": "text"}}
    parts = {"role": "user", "content": [{"type": "text", "text": "hel"}, {"type": "text", "text": "lo"}]}
    echoed = {"role": "assistant", "content": "yes", "refusal": None, "tool_calls": []}
    call = chat_call(
        {"messages": [parts, echoed, HELLO], "max_tokens": 9, "max_completion_tokens": 7, **nothing}
    )
    assert call == Call((HELLO, {"role": "assistant", "content": "yes"}, HELLO), max_new_tokens=7)


def test_a_chat_does_not_become_a_text() -> None:
    conversation = Conversation()
    conversation.took(Call((HELLO,)), "yes")
    with pytest.raises(RefusedError, match="either a chat or a text"):
        conversation.new_in(Call("hello"))


def test_a_call_that_was_under_way_when_its_episode_ended_does_not_wait() -> None:
    async def story() -> None:
        session = Session("key")
        session.close("over and done")
        await session.answer(Call("hello"))

    with pytest.raises(RefusedError, match="over and done"):
        asyncio.run(asyncio.wait_for(story(), 5.0))


TEXTS = st.text(alphabet="ab ", min_size=1, max_size=4)


@given(st.lists(st.tuples(TEXTS, TEXTS), min_size=1, max_size=5))
@settings(max_examples=50)
def test_what_is_new_in_an_episodes_calls_is_all_that_the_agent_said(turns: list[tuple[str, str]]) -> None:
    chat, text = Conversation(), Conversation()
    messages: list[dict[str, str]] = []
    said = ""
    for asked, answered in turns:
        messages.append({"role": "user", "content": asked})
        said += asked
        assert chat.new_in(Call(tuple(messages))).messages == (messages[-1],)
        assert text.new_in(Call(said)).text == asked
        chat.took(Call(tuple(messages)), answered)
        text.took(Call(said), answered)
        messages.append({"role": "assistant", "content": answered.strip()})
        said += answered


@given(st.lists(TEXTS, min_size=3, max_size=7), st.data())
@settings(max_examples=50)
def test_a_change_anywhere_in_history_is_named(contents: list[str], data: st.DataObject) -> None:
    roles = ("user", "assistant")
    messages = [{"role": roles[i % 2], "content": c} for i, c in enumerate(contents)]
    messages = messages if len(messages) % 2 else messages[:-1]
    conversation = Conversation()
    conversation.took(Call(tuple(messages)), "yes")
    at = data.draw(st.integers(0, len(messages) - 1))
    changed = [dict(m) for m in (*messages, {"role": "assistant", "content": "yes"}, HELLO)]
    changed[at]["content"] += "c"
    with pytest.raises(RefusedError, match=rf"messages\[{at}\] is") as refused:
        conversation.new_in(Call(tuple(changed)))
    assert refused.value.status == 409


def test_a_text_that_differs_is_refused_at_its_character() -> None:
    conversation = Conversation()
    conversation.took(Call("ab"), "cd")
    with pytest.raises(RefusedError, match="at character 2: 'xd' instead of 'cd'"):
        conversation.new_in(Call("abxd"))
    with pytest.raises(RefusedError, match="at character 3: '' instead of 'd'"):
        conversation.new_in(Call("abc"))
    with pytest.raises(RefusedError, match="adds nothing"):
        conversation.new_in(Call("abcd"))


@pytest.mark.parametrize(
    ("output", "verdict"),
    [
        ("", None),
        ("thinking\nnull\n", None),
        ("thinking\n0.5\n", 0.5),
        ('{"reward": 1, "reason": "good"}', Reward(1.0, "good")),
    ],
)
def test_a_programs_last_line_is_its_verdict(output: str, verdict: Any) -> None:
    assert verdict_of(output) == verdict


@pytest.mark.parametrize("output", ["done", '{"score": 1}', '{"reward": null}', "[1]"])
def test_a_last_line_that_is_no_reward_is_an_error(output: str) -> None:
    with pytest.raises(ValueError, match="is no reward"):
        verdict_of(output)
