"""The last `\\boxed{...}` of a text: what data and verifiers take as its answer."""

from __future__ import annotations

import re

_BOX = re.compile(r"\\boxed(?![a-zA-Z])\s*")


class UnclosedBox(ValueError):
    """The last box has no closing brace."""


def last_box(text: str) -> str | None:
    """Content of the last box, None if there is none. Braces are counted, `\\{` and `\\}` are not braces.

    `\\boxed 4` boxes one word. Raises UnclosedBox when the last box is not closed.
    """
    ends = [box.end() for box in _BOX.finditer(text)]
    if not ends:
        return None
    begin = ends[-1]
    if not text.startswith("{", begin):
        return (text[begin:].split(maxsplit=1) or [""])[0].strip("$.,;:")
    return text[begin + 1 : _closing_brace(text, begin)].strip()


def last_boxed(text: str) -> str | None:
    """As `last_box`, with None for an unclosed one."""
    try:
        return last_box(text)
    except UnclosedBox:
        return None


def _closing_brace(text: str, begin: int) -> int:
    depth, i = 0, begin
    while i < len(text):
        if text[i] == "\\":
            i += 2
            continue
        depth += (text[i] == "{") - (text[i] == "}")
        if depth == 0:
            return i
        i += 1
    raise UnclosedBox
