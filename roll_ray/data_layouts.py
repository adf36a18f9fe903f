"""Column layouts: which columns of a record are the question, the reference answer and the rest.

| layout     | question                   | reference                                      | domain          |
|------------|----------------------------|------------------------------------------------|-----------------|
| DAPO-Math  | `prompt` (messages)        | `reward_model.ground_truth`                    | maths           |
| GSM8K      | `question`                 | `answer`, what follows the last `####`         | maths           |
| MATH       | `problem`                  | last `\\boxed{}` of `solution`, else `answer`   | maths           |
| chat       | `messages`                 | a reference column, else the last assistant message | `domain`   |
| plain      | `prompt` or `question`     | a reference column                             | `domain`        |

Reference columns: `reference`, `ground_truth`, `answer`, `response`, `target`. `id` and `domain` are used where
given; `difficulty` and a few descriptive columns go into `Prompt.info`.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any, NamedTuple

from roll_ray.boxed import last_boxed
from roll_ray.errors import DataError
from roll_ray.sample import Prompt

MATHS = "maths"
LAYOUTS = {
    "DAPO-Math": "prompt, reward_model.ground_truth",
    "GSM8K": "question, answer with ####",
    "MATH": "problem, solution or answer",
    "chat": "messages, and a reference if there is one",
    "plain": "prompt or question, and a reference if there is one",
}
_REFERENCES = ("reference", "ground_truth", "answer", "response", "target")
_IDS = ("id", "unique_id", "prompt_id")
_INFO = ("difficulty", "level", "subject", "type", "data_source", "ability", "source")

Messages = tuple[dict[str, str], ...]


class Question(NamedTuple):
    """What a record asks, as text or as a chat, and its answer."""

    asked: str | Messages
    reference: str | None
    domain: str | None


def prompt_of(row: Mapping[str, Any], where: str, *, as_chat: bool, suffix: str) -> Prompt:
    """The prompt of a record. `where` names the record in errors.

    `as_chat` makes a user message of a question given as text; `suffix` is added to such a question. Raises
    DataError when no layout fits: it lists the columns found and the layouts known.
    """
    question = _question(row, where)
    messages, text = _posed(question.asked, as_chat, suffix)
    domain = question.domain or str(row.get("domain") or "default")
    return Prompt(
        id=_given_id(row) or _content_id(messages, text, question.reference),
        messages=messages,
        text=text,
        domain=domain,
        reference=question.reference,
        info=_info(row),
    )


def _question(row: Mapping[str, Any], where: str) -> Question:
    has = {name for name, value in row.items() if value is not None}
    if "prompt" in has and (truth := _ground_truth(row.get("reward_model"))) is not None:
        return Question(_text_or_messages(row["prompt"], where), truth, MATHS)
    if {"question", "answer"} <= has and "####" in str(row["answer"]):
        return Question(str(row["question"]), str(row["answer"]).rsplit("####", 1)[1].strip(), MATHS)
    if "problem" in has and has & {"solution", "answer"}:
        return Question(str(row["problem"]), _math_reference(row), MATHS)
    if "messages" in has:
        return _chat(row, where)
    for name in ("prompt", "question"):
        if name in has:
            return Question(_text_or_messages(row[name], where), _reference(row), None)
    known = "; ".join(f"{name}: {columns}" for name, columns in LAYOUTS.items())
    raise DataError(
        f"{where}: no known layout has the columns {', '.join(sorted(row)) or '(none)'}",
        why=f"known are {known}",
        next_step="rename the columns to one of these layouts",
    )


def _ground_truth(reward_model: Any) -> str | None:
    reward_model = _parsed(reward_model)
    truth = reward_model.get("ground_truth") if isinstance(reward_model, Mapping) else None
    return None if truth is None else _plain(truth)


def _math_reference(row: Mapping[str, Any]) -> str | None:
    boxed = last_boxed(str(row.get("solution") or ""))
    if boxed is not None:
        return boxed
    return None if row.get("answer") is None else _plain(row["answer"])


def _chat(row: Mapping[str, Any], where: str) -> Question:
    messages = _messages(row["messages"], where)
    reference = _reference(row)
    if messages[-1]["role"] == "assistant":
        given = messages[-1]["content"]
        messages, reference = messages[:-1], given if reference is None else reference
    if not messages:
        raise DataError(f"{where}: messages hold an answer and no question")
    return Question(messages, reference, None)


def _reference(row: Mapping[str, Any]) -> str | None:
    value = next((row[name] for name in _REFERENCES if row.get(name) is not None), None)
    return None if value is None else _plain(value)


def _text_or_messages(value: Any, where: str) -> str | Messages:
    """A string is text, unless it is the JSON of a list of messages."""
    if isinstance(value, str):
        parsed = _parsed(value) if value.lstrip().startswith("[") else value
        if not (isinstance(parsed, list) and parsed and all(isinstance(m, Mapping) for m in parsed)):
            return value
        value = parsed
    return _messages(value, where)


def _messages(value: Any, where: str) -> Messages:
    value = _parsed(value)
    fit = isinstance(value, list) and value and all(isinstance(m, Mapping) for m in value)
    if not fit or not all(
        isinstance(m.get("role"), str) and isinstance(m.get("content"), str) for m in value
    ):
        raise DataError(
            f"{where}: messages are not a list of objects with role and content",
            next_step='write [{"role": "user", "content": "..."}], as a list or as a JSON string',
        )
    return tuple({"role": m["role"], "content": m["content"]} for m in value)


def _parsed(value: Any) -> Any:
    """A value that may have been stored as a JSON string."""
    if not isinstance(value, str):
        return value
    try:
        return json.loads(value)
    except ValueError:
        return value


def _plain(value: Any) -> str:
    """Text of a number or a string; anything else as JSON."""
    if isinstance(value, str):
        return value.strip()
    return json.dumps(value, ensure_ascii=False, default=str)


def _posed(asked: str | Messages, as_chat: bool, suffix: str) -> tuple[Messages | None, str | None]:
    if not isinstance(asked, str):
        return asked, None
    if as_chat:
        return ({"role": "user", "content": asked + suffix},), None
    return None, asked + suffix


def _given_id(row: Mapping[str, Any]) -> str | None:
    value = next((row[name] for name in _IDS if row.get(name) not in (None, "")), None)
    return None if value is None else str(value)


def _content_id(messages: Messages | None, text: str | None, reference: str | None) -> str:
    content = json.dumps([messages, text, reference], ensure_ascii=True, sort_keys=True)
    return hashlib.blake2b(content.encode(), digest_size=8).hexdigest()


def _info(row: Mapping[str, Any]) -> dict[str, Any]:
    given = _parsed(row.get("info"))
    info: dict[str, Any] = dict(given) if isinstance(given, Mapping) else {}
    info |= {name: row[name] for name in _INFO if isinstance(row.get(name), str | int | float)}
    if "difficulty" in row:
        info["difficulty"] = _number_if_one(row["difficulty"])
    return info


def _number_if_one(value: Any) -> Any:
    """`"3"` and 3 and 3.0 are one difficulty; other text stays text, null stays None."""
    try:
        return float(value)
    except (TypeError, ValueError):
        return value
