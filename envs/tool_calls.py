"""Are the tool calls of a response calls that could be made?

A call is a JSON object with `name` and `arguments` (as `{"function": {...}}` too, arguments perhaps as JSON text)
between `<tool_call>` and `</tool_call>`, or the response is such an object or a list of them and nothing else.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from envs.task import ScoredView
from roll_ray.sample import Reward

_TAGGED = re.compile(r"<tool_call>(.*?)(</tool_call>|(?=<tool_call>)|\Z)", re.DOTALL)
_TYPES: dict[str, tuple[type, ...]] = {
    "string": (str,),
    "integer": (int,),
    "number": (int, float),
    "boolean": (bool,),
    "array": (list,),
    "object": (dict,),
    "null": (type(None),),
}


class _BadCallError(Exception):
    """The message says what is wrong with a call."""


@dataclass(frozen=True, slots=True)
class ToolCallValidity:
    """The share of a response's tool calls that are valid, in [0, 1]; `without_calls` when it makes none.

    `tools` maps a tool's name to the JSON schema of its arguments; of that `properties` (with `type` and `enum`),
    `required` and `additionalProperties: false` are looked at.
    """

    tools: Mapping[str, Mapping[str, Any]]
    without_calls: float = 1.0

    def __call__(self, view: ScoredView) -> Reward:
        calls = _calls(view.response_text)
        if not calls:
            return Reward(self.without_calls, "no tool call")
        faults = [fault for call in calls if (fault := self.fault(call))]
        valid = len(calls) - len(faults)
        reason = f"{valid} of {len(calls)} tool calls are valid" + (f"; {faults[0]}" if faults else "")
        return Reward(valid / len(calls), reason)

    def fault(self, call: Any) -> str:
        """What is wrong with a call, a JSON value or its text; empty when it could be made."""
        try:
            name, arguments = _parsed(call)
            if name not in self.tools:
                raise _BadCallError(f"there is no tool {name!r}; known: {', '.join(sorted(self.tools))}")
            _check_arguments(name, arguments, self.tools[name])
        except _BadCallError as error:
            return str(error)
        return ""


def _calls(text: str) -> list[Any]:
    """The calls in a response, each as JSON text or, where it is all of it, as values."""
    tagged = [body if end else None for body, end in _TAGGED.findall(text)]
    if tagged:
        return tagged
    try:
        whole = json.loads(text)
    except ValueError:
        return []
    listed = whole if isinstance(whole, list) else [whole]
    are_calls = all(isinstance(call, dict) and ("name" in call or "function" in call) for call in listed)
    return listed if are_calls else []


def _parsed(call: Any) -> tuple[str, dict[str, Any]]:
    if call is None:
        raise _BadCallError("a tool call is not closed")
    record = _json(call, "a tool call")
    if isinstance(record, dict) and isinstance(record.get("function"), dict):
        record = record["function"]
    if not isinstance(record, dict) or not isinstance(record.get("name"), str):
        raise _BadCallError("a tool call is no object with a name")
    arguments = _json(record.get("arguments", {}), "the arguments")
    if not isinstance(arguments, dict):
        raise _BadCallError(f"the arguments of {record['name']!r} are no object")
    return record["name"], arguments


def _json(value: Any, what: str) -> Any:
    if not isinstance(value, str):
        return value
    try:
        return json.loads(value)
    except ValueError as error:
        raise _BadCallError(f"{what} cannot be read as JSON: {error}") from None


def _check_arguments(name: str, arguments: Mapping[str, Any], schema: Mapping[str, Any]) -> None:
    properties = schema.get("properties", {})
    if missing := [a for a in schema.get("required", ()) if a not in arguments]:
        raise _BadCallError(f"{name} needs {', '.join(missing)}")
    for argument, value in arguments.items():
        if argument in properties:
            _check_value(f"{name}: {argument}", value, properties[argument])
        elif schema.get("additionalProperties") is False:
            raise _BadCallError(f"{name} takes no {argument}")


def _check_value(where: str, value: Any, schema: Mapping[str, Any]) -> None:
    wanted = schema.get("type")
    names = wanted if isinstance(wanted, list) else [wanted] if wanted else []
    if names and not any(_is_a(value, name) for name in names):
        raise _BadCallError(f"{where} is not of type {' or '.join(names)}")
    if "enum" in schema and value not in schema["enum"]:
        raise _BadCallError(f"{where} is none of {', '.join(map(str, schema['enum']))}")


def _is_a(value: Any, name: str) -> bool:
    if isinstance(value, bool):
        return name == "boolean"
    if name == "integer" and isinstance(value, float):
        return value.is_integer()
    return isinstance(value, _TYPES.get(name, (object,)))
