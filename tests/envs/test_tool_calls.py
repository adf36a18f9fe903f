"""Tool calls: what could be made is valid, and what could not says why."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from envs.task import ScoredView
from envs.tool_calls import ToolCallValidity
from roll_ray.sample import Prompt, Reward

TOOLS = ToolCallValidity(
    {
        "search": {
            "properties": {
                "query": {"type": "string"},
                "k": {"type": "integer"},
                "lang": {"enum": ["en", "de"]},
            },
            "required": ["query"],
            "additionalProperties": False,
        },
        "now": {},
    }
)


def scored(text: str, tools: ToolCallValidity = TOOLS) -> Reward:
    return tools(ScoredView(Prompt("p", text="?"), text))


def call(name: str, **arguments: object) -> str:
    return f"<tool_call>{json.dumps({'name': name, 'arguments': arguments})}</tool_call>"


@pytest.mark.parametrize(
    "text",
    [
        call("search", query="a", k=3, lang="de"),
        call("now"),
        '<tool_call>{"name": "now"}</tool_call>',
        "I look.\n" + call("search", query="a") + "\nand\n" + call("now"),
        '{"name": "search", "arguments": {"query": "a"}}',
        '[{"function": {"name": "search", "arguments": "{\\"query\\": \\"a\\"}"}}]',
    ],
)
def test_calls_that_could_be_made_are_valid(text: str) -> None:
    assert scored(text).value == 1.0


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (call("serach", query="a"), "no tool 'serach'; known: now, search"),
        (call("search", k=1), "search needs query"),
        (call("search", query=3), "search: query is not of type string"),
        (call("search", query="a", k=1.5), "k is not of type integer"),
        (call("search", query="a", k=True), "k is not of type integer"),
        (call("search", query="a", lang="fr"), "lang is none of en, de"),
        (call("search", query="a", page=1), "search takes no page"),
        ("<tool_call>{name: search}</tool_call>", "a tool call cannot be read as JSON"),
        ("<tool_call>[1]</tool_call>", "no object with a name"),
        ('<tool_call>{"name": "now", "arguments": [1]}</tool_call>', "are no object"),
        ('<tool_call>{"name": "now"}', "is not closed"),
        ('<tool_call>{"name": ["now"]}</tool_call>', "no object with a name"),
    ],
)
def test_calls_that_could_not_be_made_say_why(text: str, why: str) -> None:
    reward = scored(text)
    assert reward.value == 0.0
    assert why in reward.reason


def test_the_value_is_the_share_of_valid_calls() -> None:
    reward = scored(call("now") + call("search") + call("now"))
    assert reward.value == pytest.approx(2 / 3)
    assert reward.reason == "2 of 3 tool calls are valid; search needs query"
    assert scored('<tool_call>{"name": "now"}' + call("now")).value == 0.5


def test_a_response_without_calls_gets_what_it_is_said_to_get() -> None:
    assert scored("just words").value == 1.0
    assert scored('{"answer": 3}', ToolCallValidity({}, without_calls=0.0)).value == 0.0


@settings(deadline=None)
@given(st.text(max_size=60), st.booleans())
def test_no_text_raises(text: str, tagged: bool) -> None:
    value = scored(f"<tool_call>{text}</tool_call>" if tagged else text).value
    assert value is not None
    assert 0.0 <= value <= 1.0


@settings(deadline=None)
@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(max_size=5),
        lambda inner: (
            st.lists(inner, max_size=3)
            | st.dictionaries(st.sampled_from(["name", "arguments", "function", "query"]), inner)
        ),
        max_leaves=8,
    )
)
def test_no_json_raises(value: object) -> None:
    assert scored(f"<tool_call>{json.dumps(value)}</tool_call>").value is not None
