"""The process that runs math-verify: reads pairs of expressions, answers whether they are equal.

Started by `envs.maths_equal` as a program of its own, so it imports nothing of roll-ray. One JSON object a line
on standard input, {"answer", "reference", "limit_s"}; one a line back, {"equal"} or {"unreadable"}. A timer of
the kernel ends the process when a pair takes longer than its limit, even inside one long C call: no thread
and no parent is needed for it. The limit is CPU time, so that a busy machine changes no verdict; wall clock
may be `WALL_PER_CPU_SECOND` times as much.
"""

from __future__ import annotations

import json
import logging
import os
import resource
import select
import signal
import sys
from typing import Any

MEMORY_LIMIT_BYTES = 4 << 30
LOOK_FOR_PARENT_EVERY_S = 30.0
WALL_PER_CPU_SECOND = 4.0


def main() -> None:
    parent = os.getppid()
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_LIMIT_BYTES, MEMORY_LIMIT_BYTES))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C goes to the whole group; the parent ends us
    for timer_signal in (signal.SIGALRM, signal.SIGPROF):
        signal.signal(timer_signal, signal.SIG_DFL)
    logging.disable(logging.CRITICAL)
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # whatever prints must not land between the answers
    compare = _comparison()
    compare("(x+1)^2", "x^2+2x+1")  # the first one loads much of sympy, which no answer is to pay for
    _say(answers, {"ready": True})
    while line := _next_line(parent):
        request = json.loads(line)
        _limit_time(request["limit_s"])
        verdict = compare(request["answer"], request["reference"])
        _limit_time(0.0)
        _say(answers, verdict)


def _limit_time(cpu_s: float) -> None:
    """Be ended by the kernel after so much CPU time, or `WALL_PER_CPU_SECOND` times that of wall clock; 0: never."""
    signal.setitimer(signal.ITIMER_PROF, cpu_s)
    signal.setitimer(signal.ITIMER_REAL, cpu_s * WALL_PER_CPU_SECOND)


def _comparison() -> Any:
    from math_verify import parse, verify
    from math_verify.parser import LatexExtractionConfig

    config = [LatexExtractionConfig()]

    def read(expression: str) -> Any:
        return parse(f"${expression}$", config, fallback_mode="no_fallback", parsing_timeout=None)

    def compare(answer: str, reference: str) -> dict[str, Any]:
        gold, target = read(reference), read(answer)
        if not gold or not target:
            return {"unreadable": "the reference" if not gold else "the answer"}
        return {"equal": bool(verify(gold, target, timeout_seconds=None))}

    return compare


def _next_line(parent: int) -> str:
    """The next request; empty when the parent is gone, be it that somebody else holds its end of the pipe."""
    while not select.select([sys.stdin], [], [], LOOK_FOR_PARENT_EVERY_S)[0]:
        if os.getppid() != parent:
            return ""
    return sys.stdin.readline()


def _say(answers: Any, message: dict[str, Any]) -> None:
    print(json.dumps(message), file=answers, flush=True)


if __name__ == "__main__":
    main()
