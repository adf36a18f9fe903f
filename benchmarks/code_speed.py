"""How many trivial cases of code a reward worker gets through, on one core.

    python benchmarks/code_speed.py             a few seconds

1. One program after another with one case each, and one program with many: standard input and output, assert lines.
2. The first verdict of a thread, which starts a sandbox, and one after a broken limit, which starts a new one.

The process and all that it starts is held to one core. Cases are counted per second of CPU time, which other work
on the machine does not change much, and of wall clock, which it does. Goal: at least 20 a second of CPU time.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from envs.code import CodeVerifier
from envs.sandbox import Limits, Sandbox

ADD_SCRIPT = "a, b = map(int, input().split())\nprint(a + b)"
ADD_MODULE = "def add(a, b):\n    return a + b"
STDIO_CASE = {"stdin": "3 4\n", "expected_stdout": "7\n"}
ASSERT_CASE = "assert add(3, 4) == 7"
GOAL_PER_S = 20.0


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--cases", type=int, default=100, help="cases a line (default 100)")
    count = parser.parse_args().cases
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    verifier = CodeVerifier()
    verifier.run(ADD_SCRIPT, {"tests": [STDIO_CASE]})
    slowest = min(
        _show(f"{kind}, {how}", count, partial(run, verifier, program, case, count))
        for kind, program, case in (
            ("stdin and stdout", ADD_SCRIPT, STDIO_CASE),
            ("assert lines", ADD_MODULE, ASSERT_CASE),
        )
        for how, run in (("a program each", _one_by_one), ("one program", _all_at_once))
    )
    started_s = time.perf_counter()
    for _ in range(10):
        _in_new_sandbox()
    print(f"{'a new sandbox for every program':40}{100 * (time.perf_counter() - started_s):25.0f} ms each")
    print(f"goal: at least {GOAL_PER_S:g} cases/s: {'met' if slowest >= GOAL_PER_S else 'MISSED'}")


def _show(what: str, count: int, run: Callable[[], None]) -> float:
    """Cases per second of CPU time."""
    started_s, cpu_before_s = time.perf_counter(), _cpu_s()
    run()
    seconds, cpu_s = time.perf_counter() - started_s, _cpu_s() - cpu_before_s
    print(f"{what:40}{count / cpu_s:8.0f} per s of CPU{count / seconds:8.0f} per s of wall clock")
    return count / cpu_s


def _cpu_s() -> float:
    """CPU time of this process and of all below it, those included that have ended and were waited for."""
    return sum(_ticks(pid) for pid in _tree(os.getpid())) / os.sysconf("SC_CLK_TCK")


def _tree(pid: int) -> list[int]:
    below: list[int] = []
    for task in Path(f"/proc/{pid}/task").iterdir():
        with contextlib.suppress(FileNotFoundError):  # a thread that has just ended
            below += map(int, (task / "children").read_text().split())
    return [pid, *(found for child in below for found in _tree(child))]


def _ticks(pid: int) -> int:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return sum(map(int, fields[11:15]))


def _one_by_one(verifier: CodeVerifier, program: str, case: object, count: int) -> None:
    for _ in range(count):
        (result,) = verifier.run(program, {"tests": [case]})
        assert result.passed, result


def _all_at_once(verifier: CodeVerifier, program: str, case: object, count: int) -> None:
    results = verifier.run(program, {"tests": [case] * count})
    assert all(result.passed for result in results)


def _in_new_sandbox() -> None:
    with Sandbox(Limits()) as sandbox:
        assert sandbox.run(ADD_SCRIPT, "3 4\n").stdout == "7\n"


if __name__ == "__main__":
    main()
