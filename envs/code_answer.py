"""The program in a response."""

from __future__ import annotations

import re

_FENCED = re.compile(
    r"^[ \t]*(?:```|~~~)[ \t]*([\w+.-]*)[^\n]*\n(.*?)(?:^[ \t]*(?:```|~~~)|\Z)", re.DOTALL | re.MULTILINE
)
_PYTHON = {"python", "python3", "py", "py3"}


class NoProgram(ValueError):
    """A response without a program; the reason why."""


def find_program(response: str) -> str:
    """The last block marked as Python after `</think>`; else the last block without a mark; else all the text.

    A block that the end of the response cut off counts. Raises `NoProgram`.
    """
    if "<think>" in response and "</think>" not in response:
        raise NoProgram("unfinished thinking")
    text = response.rpartition("</think>")[2]
    blocks = [(mark.lower(), body) for mark, body in _FENCED.findall(text)]
    for wanted in (_PYTHON, {""}):
        if found := [body for mark, body in blocks if mark in wanted]:
            text = found[-1]
            break
    if not text.strip():
        raise NoProgram("no program in the response")
    return text
