"""What a program is tested with: the cases of a prompt, as its `info` states them.

    {"tests": [{"stdin": "3 4\\n", "expected_stdout": "7\\n"}]}                    standard input and output
    {"tests": ["assert add(3, 4) == 7"], "test_setup": "import math"}             assert lines
    {"test_file": "from solution import add\\ndef test_add(): assert add(3, 4) == 7"}     pytest's and unittest's style

They may be mixed. `entry_points`, where it is given, names what the tests take from the program, and nothing else is
taken; else what the tests themselves and Python do not define. `code_prefix` is put before every response.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

KEYS = ("tests", "test_file")


@dataclass(frozen=True, slots=True)
class StdioCase:
    """The program is a script. White space at the ends of lines and of the output does not count."""

    name: str
    stdin: str
    expected_stdout: str

    def accepts(self, stdout: str) -> bool:
        return _lines(stdout) == _lines(self.expected_stdout)


@dataclass(frozen=True, slots=True)
class CodeCase:
    """The program is a module. `setup`, `code` and the test `call` (`test_x` or `TestY::test_x`) must not raise."""

    name: str
    code: str
    setup: str = ""
    entry_points: tuple[str, ...] = ()
    call: str = ""

    def tests(self) -> dict[str, Any]:
        return {
            "setup": self.setup,
            "code": self.code,
            "entry_points": list(self.entry_points),
            "call": self.call,
        }


Case = StdioCase | CodeCase


class NoCases(ValueError):
    """A prompt whose `info` states no test, or one that cannot be read."""


def cases_of(info: Mapping[str, Any]) -> list[Case]:
    """All cases, in order. Raises `NoCases`."""
    setup, entry_points = str(info.get("test_setup", "")), tuple(info.get("entry_points", ()))
    cases: list[Case] = []
    for number, test in enumerate(info.get("tests") or [], 1):
        cases.append(_case(f"case {number}", test, setup, entry_points))
    if test_file := info.get("test_file"):
        cases += [
            CodeCase(name, str(test_file), setup, entry_points, call=name)
            for name in _test_names(str(test_file))
        ]
    if not cases:
        raise NoCases(f"the prompt has no test: its info has none of {', '.join(KEYS)}, or they are empty")
    return cases


def _case(name: str, test: Any, setup: str, entry_points: tuple[str, ...]) -> Case:
    if isinstance(test, str):
        return CodeCase(name, test, setup, entry_points)
    if isinstance(test, Mapping) and isinstance(test.get("expected_stdout"), str):
        return StdioCase(name, str(test.get("stdin", "")), test["expected_stdout"])
    raise NoCases(f"{name} is neither a line of code nor has it an expected_stdout: {str(test)[:200]}")


def _test_names(source: str) -> Iterator[str]:
    """The tests that pytest would find in a file: functions `test*`, and methods `test*` of classes."""
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError) as error:
        raise NoCases(f"the prompt's test_file is not Python: {error}") from None
    for node in tree.body:
        if isinstance(node, ast.FunctionDef) and node.name.startswith("test"):
            yield node.name
        elif isinstance(node, ast.ClassDef):
            for member in node.body:
                if isinstance(member, ast.FunctionDef) and member.name.startswith("test"):
                    yield f"{node.name}::{member.name}"


def _lines(output: str) -> list[str]:
    return [line.rstrip() for line in output.rstrip().splitlines()]
