"""Verdicts on programs: what is extracted, how each kind of test decides, what is wrong and what is invalid."""

from __future__ import annotations

from typing import Any

import pytest

from envs.code import CodeVerifier
from envs.code_answer import NoProgram, find_program
from envs.code_cases import NoCases, cases_of
from envs.task import ScoredView
from roll_ray.sample import Prompt
from tests.envs.sandbox_needed import bubblewrap  # noqa: F401

needs_bubblewrap = pytest.mark.usefixtures("bubblewrap")
SUM = {"stdin": "3 4\n", "expected_stdout": "7\n"}


@pytest.fixture(scope="module")
def verifier(bubblewrap: None) -> CodeVerifier:  # noqa: F811
    return CodeVerifier()


def view(response: str, **info: Any) -> ScoredView:
    return ScoredView(Prompt(id="p", text="?", info=info), response)


@pytest.mark.parametrize(
    ("response", "program"),
    [
        ("print(7)", "print(7)"),
        ("Here:\n```python\na = 1\n```\nbetter:\n```python\na = 2\n```\nDone.", "a = 2\n"),
        ("```python\na = 1\n```\nwhich prints\n```\n7\n```", "a = 1\n"),
        ("```\na = 1\n```", "a = 1\n"),
        ("```py\na = 1\n```\n```bash\nls\n```", "a = 1\n"),
        ("<think>```python\na = 1\n```</think>\n```python\na = 2\n```", "a = 2\n"),
        ("thought</think>a = 2", "a = 2"),
        ("```python\na = 1", "a = 1"),
        ('```python\nx = """\n    ```\n"""\n```', 'x = """\n'),
    ],
)
def test_the_last_python_block_after_the_thinking_is_the_program(response: str, program: str) -> None:
    assert find_program(response) == program


@pytest.mark.parametrize(
    ("response", "reason"),
    [("", "no program"), (" \n", "no program"), ("<think>```python\nprint(7)\n```", "unfinished thinking")],
)
def test_a_response_without_a_program_is_wrong_with_the_reason(response: str, reason: str) -> None:
    with pytest.raises(NoProgram, match=reason):
        find_program(response)


def test_tests_of_every_kind_are_read_in_order() -> None:
    file = "def test_a(): pass\ndef helper(): pass\nclass TestB:\n  def test_c(self): pass\n"
    names = [case.name for case in cases_of({"tests": [SUM, "assert f()"], "test_file": file})]
    assert names == ["case 1", "case 2", "test_a", "TestB::test_c"]


@pytest.mark.parametrize(
    "info", [{}, {"tests": []}, {"tests": [7]}, {"test_file": "def ("}, {"test_file": "x = 1"}]
)
def test_a_prompt_without_readable_tests_is_an_error(info: dict[str, Any]) -> None:
    with pytest.raises(NoCases):
        cases_of(info)


@needs_bubblewrap
@pytest.mark.parametrize("printed", ["7", "7\\n", "7  \\n\\n", "7\\r\\n"])
def test_white_space_at_the_end_of_a_line_does_not_count(printed: str, verifier: CodeVerifier) -> None:
    program = f"a, b = map(int, input().split())\nif a + b == 7: print('{printed}', end='')"
    reward = verifier(view(f"```python\n{program}\n```", tests=[SUM]))
    assert reward.value == 1.0
    assert reward.reason == "passed 1 of 1 cases"
    assert reward.extracted == program + "\n"


@needs_bubblewrap
@pytest.mark.parametrize(
    ("program", "reason"),
    [
        ("print(8)", "printed '8', not '7'"),
        ("print(' 7')", "printed ' 7', not '7'"),
        ("1 / 0", "exit status 1: ZeroDivisionError"),
        ("print(7); exit(3)", "exit status 3"),
        ("print(", "exit status 1: SyntaxError"),
        ("input(); input()", "EOFError"),
    ],
)
def test_a_wrong_program_says_what_was_wrong(program: str, reason: str, verifier: CodeVerifier) -> None:
    reward = verifier(view(program, tests=[SUM]))
    assert reward.value == 0.0
    assert reason in reward.reason


@needs_bubblewrap
def test_a_script_runs_as_python_would_run_it(verifier: CodeVerifier) -> None:
    program = """
import atexit, sys, threading, pickle
from dataclasses import dataclass
@dataclass
class Point:
    x: int
if __name__ == "__main__":
    assert sys.stdin.buffer.read() == "é\\n".encode() and sys.argv == ["solution.py"]
    assert pickle.loads(pickle.dumps(Point(1))) == Point(1)
    atexit.register(print, "last")
    threading.Timer(0.05, print, ("from a thread",)).start()
    print("first")
"""
    test = {"stdin": "é\n", "expected_stdout": "first\nfrom a thread\nlast"}
    (result,) = verifier.run(program, {"tests": [test]})
    assert result.passed, result.reason


@needs_bubblewrap
def test_all_or_nothing_stops_at_the_first_failure_and_a_fraction_does_not() -> None:
    tests = ["assert f(1) == 1", "assert f(2) == 3", "assert f(3) == 3"]
    whole, share = CodeVerifier(), CodeVerifier(fraction=True)
    response = view("def f(x): return x", tests=tests)
    verdicts = [result.verdict for result in whole.run(response.response_text, {"tests": tests})]
    assert verdicts == ["passed", "wrong", "not run"]
    assert whole(response).value == 0.0
    assert "case 2" in whole(response).reason
    assert "assert f(2) == 3" in whole(response).reason
    assert share(response).value == pytest.approx(2 / 3)
    assert share(response).parts == {"cases_passed": pytest.approx(2 / 3)}


MODULE = """
import collections
def swap(pair): return pair[1], pair[0]
def sort_in_place(items): items.sort()
def numbers(n):
    yield from range(n)
def apply(function, value): return function(value)
def fails(): raise KeyError("key")
class Odd(ValueError): pass
def odd(n):
    if n % 2: raise Odd(n)
Point = collections.namedtuple("Point", "x y")
def point(): return Point(1, 2)
def counted(text): return collections.Counter(text)
class Stack:
    def __init__(self): self.items = []
    def push(self, item): self.items.append(item); return self
    def pop(self): return self.items.pop()
    def __len__(self): return len(self.items)
    def __eq__(self, other): return isinstance(other, Stack) and self.items == other.items
class Node:
    def __init__(self, value, left=None): self.value, self.left = value, left
def leftmost(node):
    while node.left: node = node.left
    return node.value
"""
MODULE_TESTS = """
import pytest
from solution import swap, sort_in_place, numbers, apply, fails, odd, Odd, point, counted, Stack, Node, leftmost

def test_values(): assert swap((1, "a")) == ("a", 1) and swap([None, {2}]) == ({2}, None)
def test_arguments_changed_in_place():
    items = [3, 1, 2]
    sort_in_place(items)
    assert items == [1, 2, 3]
def test_generators(): assert list(numbers(3)) == [0, 1, 2] and sum(numbers(4)) == 6
def test_callbacks(): assert apply(lambda x: x + 1, 2) == 3 and apply(len, "abc") == 3
def test_errors():
    with pytest.raises(KeyError, match="key"): fails()
    with pytest.raises(ValueError): odd(1)
    with pytest.raises(Odd): odd(3)
def test_named_tuples_and_counters(): assert point() == (1, 2) and counted("aab") == {"a": 2, "b": 1}
class TestStack:
    def setup_method(self): self.stack = Stack()
    def test_objects(self):
        assert self.stack.push(1).push(2).pop() == 2 and len(self.stack) == 1
        assert self.stack == Stack().push(1) and self.stack != Stack() and isinstance(self.stack, Stack)
def test_attributes():
    root = Node(1)
    root.left = Node(2, Node(3))
    assert leftmost(root) == 3 and root.left.value == 2
@pytest.mark.parametrize("x, y", [(1, 2), (3, 4)])
def test_parameters(x, y): assert swap((x, y)) == (y, x)
@pytest.fixture
def stack(): return Stack().push(5)
def test_fixtures(stack): assert stack.pop() == 5
def test_approx(): assert apply(lambda x: x / 3, 1.0) == pytest.approx(0.3333333)
"""


@needs_bubblewrap
def test_what_tests_do_with_a_program_works_across_the_process_border(verifier: CodeVerifier) -> None:
    results = verifier.run(MODULE, {"test_file": MODULE_TESTS})
    assert [result for result in results if not result.passed] == []
    assert len(results) == 11


@needs_bubblewrap
def test_cases_of_unittest_are_run(verifier: CodeVerifier) -> None:
    tests = """
import unittest
from solution import numbers
class TestNumbers(unittest.TestCase):
    def setUp(self): self.n = 3
    def test_right(self): self.assertEqual(list(numbers(self.n)), [0, 1, 2])
    def test_wrong(self): self.assertEqual(list(numbers(self.n)), [0, 1])
"""
    right, wrong = verifier.run(MODULE, {"test_file": tests})
    assert right.passed
    assert "Lists differ" in wrong.reason


@needs_bubblewrap
def test_only_entry_points_are_taken_from_a_program_and_builtins_never_unasked(
    verifier: CodeVerifier,
) -> None:
    cheat = "def f(): return 5\ndef abs(x): return 0\ndef close(a, b): return True"
    assert not verifier.run(cheat, {"tests": ["assert abs(f() - 7) < 1e-6"]})[0].passed
    assert not verifier.run(cheat, {"tests": ["assert close(f(), 7)"], "entry_points": ["f"]})[0].passed
    named = verifier.run(
        "def sum(a, b): return a + b", {"tests": ["assert sum(3, 4) == 7"], "entry_points": ["sum"]}
    )
    assert named[0].passed
    (missing,) = verifier.run("x = 1", {"tests": ["assert f() == 7"], "entry_points": ["f"]})
    assert missing.reason == "NameError: the program does not define f"


@needs_bubblewrap
def test_a_limit_from_outside_and_the_times_of_right_programs() -> None:
    asked: list[str] = []
    heard: dict[str, float] = {}

    def timeout_of(key: str) -> float:
        asked.append(key)
        return 9.0 if len(asked) < 4 else 0.3

    verifier = CodeVerifier(timeout_of=timeout_of, on_correct=heard.__setitem__)
    tests = ["assert f() == 1", {"expected_stdout": ""}]
    assert verifier(view("def f(): return 1", tests=tests)).value == 1.0
    assert asked == list(heard) == ["p/case 1", "p/case 2"]
    assert all(0 < seconds < 9 for seconds in heard.values())
    heard.clear()
    slow = "import time\ndef f(): return 1\nif __name__ == '__main__': time.sleep(60)"
    assert "time-out: more than 0.3 s" in verifier(view(slow, tests=tests)).reason
    assert heard == {}
