"""Maths with a tool: the format of calls, limits, the final verdict."""

from __future__ import annotations

import asyncio
import os
import pickle
import threading
from dataclasses import dataclass
from functools import partial

from envs.scripted import Played, play_scripted, text_of
from envs.tool_maths import (
    MAX_RESULT_CHARACTERS,
    PYTHON_RULES,
    PythonTool,
    ToolError,
    ToolMaths,
    arithmetic_problems,
    prompts,
)
from roll_ray.sample import Reward


def play(environment: ToolMaths, *answers: str, reference: str = "84") -> Played:
    script = iter(answers)
    (prompt,) = prompts([("What is 12 * 7?", reference)])
    return asyncio.run(play_scripted(environment, prompt, lambda _: next(script)))


def verdict(played: Played) -> tuple[float | None, str]:
    assert isinstance(played.last.reward, Reward)
    return played.last.reward.value, played.last.reward.reason


def test_a_call_is_answered_and_the_final_answer_is_judged() -> None:
    played = play(ToolMaths(), "Let me see. <tool>12*7</tool> I wait.", r"So \boxed{84}.")
    assert text_of(played.observations_N[1]) == "<result>84</result>"
    assert verdict(played) == (1.0, "right")
    assert played.last.info == {"success": True, "calls": 1}
    assert verdict(play(ToolMaths(), r"\boxed{85}"))[0] == 0.0


def test_a_malformed_call_or_expression_says_what_is_wrong() -> None:
    played = play(ToolMaths(), "<tool>12*7", "<tool>12*</tool>", "<tool>open('x')</tool>", r"\boxed{84}")
    said = [text_of(o) for o in played.observations_N[1:]]
    assert "is not closed" in said[0]
    assert said[1].startswith("<result>error: cannot read")
    assert "is not arithmetic" in said[2]
    assert [r.info.get("malformed") for r in played.results_N] == [True, False, False, None]


def test_after_the_last_call_the_next_response_is_final() -> None:
    played = play(ToolMaths(max_calls=1), "<tool>12*7</tool>", "<tool>1+1</tool>")
    assert text_of(played.observations_N[1]).endswith("No calls are left: give your final answer.")
    assert verdict(played)[0] == 0.0


@dataclass
class Ran:
    breach: str
    status: int | None
    stdout: str
    stderr: str


def test_python_answers_with_what_was_printed_or_the_error() -> None:
    outcomes = {
        "print(12*7)": Ran("", 0, "84\n", ""),
        "1/0": Ran("", 1, "", "Traceback ...\nZeroDivisionError: division by zero\n"),
        "12*7": Ran("", 0, "", ""),
        "while 1: pass": Ran("time-out", None, "", ""),
    }
    tool = PythonTool(lambda program: outcomes[program])
    calls = [f"<tool>\n{program}\n</tool>" for program in outcomes]
    played = play(ToolMaths(tool=tool), *calls, r"\boxed{84}")
    assert [text_of(o).split("\n")[0] for o in played.observations_N[1:]] == [
        "<result>84</result>",
        "<result>error: ZeroDivisionError: division by zero</result>",
        "<result>error: the program printed nothing</result>",
        "<result>error: the program was ended by a limit: time-out</result>",
    ]


def test_plain_tools_run_in_a_thread_and_coroutines_are_awaited() -> None:
    threads = []

    def plain(_: str) -> str:
        threads.append(threading.current_thread())
        raise ToolError("no")

    async def awaited(_: str) -> str:
        await asyncio.sleep(0)
        return "x" * 5000

    play(ToolMaths(tool=plain), "<tool>a</tool>", "done")
    assert threads[0] is not threading.main_thread()
    said = text_of(play(ToolMaths(tool=awaited), "<tool>a</tool>", "done").observations_N[1])
    assert MAX_RESULT_CHARACTERS < len(said) < MAX_RESULT_CHARACTERS + 100
    assert "(5000 characters in all)" in said


def test_problems_have_right_answers_and_factories_pickle() -> None:
    problems = arithmetic_problems(50, seed=2)
    assert problems == arithmetic_problems(50, seed=2)
    for question, answer in problems:
        assert answer == str(eval(question.removeprefix("What is ").removesuffix("?")))
    assert "run Python" in prompts(problems[:1], PYTHON_RULES)[0].shown()
    assert pickle.loads(pickle.dumps(partial(ToolMaths, tool=PythonTool(), max_calls=2)))().max_calls == 2


def test_python_runs_in_the_sandbox_and_sees_nothing_of_this_process() -> None:
    os.environ["ROLL_RAY_TEST_SECRET"] = "hidden"
    try:
        program = "import os; print(12 * 7, os.environ.get('ROLL_RAY_TEST_SECRET'))"
        played = play(ToolMaths(tool=PythonTool()), f"<tool>{program}</tool>", r"\boxed{84}")
    finally:
        del os.environ["ROLL_RAY_TEST_SECRET"]
    assert text_of(played.observations_N[1]) == "<result>84 None</result>"
