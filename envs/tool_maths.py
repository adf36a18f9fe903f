"""Maths with a tool: the model may call a calculator, or run Python, before it gives its answer.

A response with `<tool>expression</tool>` is a call (the first one in it counts), answered with
`<result>value</result>` or `<result>error: what is wrong</result>`. A response without a call is the final answer;
the maths verifier judges it. When the calls are used up the model is told so, and its next response is final
whatever it holds.

    environments={tool_maths.DOMAIN: ToolMaths}                                             # the calculator
    environments={"python_maths": partial(ToolMaths, tool=PythonTool())}                    # Python
"""

from __future__ import annotations

import asyncio
import inspect
import random
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from envs.calculator import CalculatorError, calculate
from envs.maths import MathsVerifier
from envs.replies import reply
from envs.task import Observation, RewardFunction, ScoredView, StepResult, Turn
from roll_ray.sample import Prompt, Reward

DOMAIN = "tool_maths"
MAX_CALLS, MAX_RESULT_CHARACTERS = 4, 2_000

CALCULATOR_RULES = (
    "You have a calculator. To use it, write <tool>an expression</tool> and end your turn; the result comes back as "
    "<result>...</result>. When you know the answer, give it as \\boxed{answer} without a call."
)
PYTHON_RULES = (
    "You can run Python. Write <tool>a program that prints what you want to know</tool> and end your turn; what it "
    "prints comes back as <result>...</result>. When you know the answer, give it as \\boxed{answer} without a call."
)

_OPEN, _CLOSE = "<tool>", "</tool>"


class ToolError(Exception):
    """A call that gave nothing; the message goes to the model."""


Tool = Callable[[str], str | Awaitable[str]]
"""Answers the text of a call. A plain function runs in a thread; raises ToolError, or CalculatorError."""


class Ran(Protocol):
    """What became of a program, as `envs.sandbox.Outcome` says it."""

    @property
    def breach(self) -> str:
        """The limit that ended it; empty if none did."""

    @property
    def status(self) -> int | None: ...

    @property
    def stdout(self) -> str: ...

    @property
    def stderr(self) -> str: ...


def in_sandbox(program: str) -> Ran:
    """Run a program in the sandbox of code rewards, within its usual limits."""
    from envs.sandbox import Limits, Sandbox

    with Sandbox(Limits()) as sandbox:
        return sandbox.run(program)


@dataclass(frozen=True, slots=True)
class PythonTool:
    """Runs a program and shows what it printed, or the last line of its error.

    `run` must isolate the program, which a model wrote. If it raises, the episode fails.
    """

    run: Callable[[str], Ran] = in_sandbox

    def __call__(self, program: str) -> str:
        ran = self.run(program.strip())
        if ran.breach:
            raise ToolError(f"the program was ended by a limit: {ran.breach}")
        if ran.status != 0:
            lines = ran.stderr.strip().splitlines()
            raise ToolError(lines[-1] if lines else f"the program ended with exit status {ran.status}")
        if not ran.stdout.strip():
            raise ToolError("the program printed nothing")
        return ran.stdout.strip()


@dataclass(slots=True)
class ToolMaths:
    """One problem, solved with at most `max_calls` calls of `tool`. The right answer is the prompt's reference."""

    tool: Tool = calculate
    max_calls: int = MAX_CALLS
    verifier: RewardFunction = field(default_factory=MathsVerifier)
    _prompt: Prompt = field(init=False)
    _calls_left: int = field(init=False)

    async def reset(self, prompt: Prompt, seed: int) -> Observation:
        self._prompt, self._calls_left = prompt, self.max_calls
        return Observation.of(prompt)

    async def step(self, response: Turn) -> StepResult:
        if self._calls_left == 0 or _OPEN not in response.text:
            return await self._judged(response)
        self._calls_left -= 1
        result, malformed = await self._result(response.text)
        advice = "" if self._calls_left else "\nNo calls are left: give your final answer."
        return StepResult(
            reply(self._prompt, f"<result>{result}</result>{advice}"), info={"malformed": malformed}
        )

    async def _judged(self, response: Turn) -> StepResult:
        view = ScoredView(self._prompt, response.text, response.finish_reason, info=self._prompt.info)
        reward = await asyncio.to_thread(self.verifier, view)
        value = reward.value if isinstance(reward, Reward) else reward
        return StepResult(
            reward=reward,
            step_reward=value or 0.0,
            terminated=True,
            truncated=response.finish_reason == "length",
            info={"success": value == 1.0, "calls": self.max_calls - self._calls_left},
        )

    async def _result(self, text: str) -> tuple[str, bool]:
        """What the first call of a response gives, and whether it was malformed."""
        _, _, behind = text.partition(_OPEN)
        call, closed, _ = behind.partition(_CLOSE)
        if not closed:
            return f"error: a call is written {_OPEN}...{_CLOSE}, and this one is not closed", True
        try:
            if inspect.iscoroutinefunction(self.tool):
                answer = await self.tool(call)
            else:
                answer = await asyncio.to_thread(self.tool, call)
        except (ToolError, CalculatorError) as error:
            return f"error: {str(error)[:MAX_RESULT_CHARACTERS]}", False
        return _cut(str(answer)), False


def prompts(problems: Sequence[tuple[str, str]], rules: str = CALCULATOR_RULES) -> list[Prompt]:
    """Chats for problems given as (question, answer)."""
    return [
        Prompt(
            id=f"{DOMAIN}/{i}",
            messages=({"role": "system", "content": rules}, {"role": "user", "content": question}),
            domain=DOMAIN,
            reference=answer,
        )
        for i, (question, answer) in enumerate(problems)
    ]


def arithmetic_problems(count: int, seed: int = 0, n_numbers: int = 3) -> list[tuple[str, str]]:
    """Questions on sums, differences and products of numbers up to 999, too long for a small model's head."""
    rng = random.Random(seed)
    problems = []
    for _ in range(count):
        expression = str(rng.randint(10, 999))
        for _ in range(n_numbers - 1):
            expression += f" {rng.choice('+-*')} {rng.randint(10, 999)}"
        problems.append((f"What is {expression}?", calculate(expression)))
    return problems


def _cut(text: str) -> str:
    if len(text) <= MAX_RESULT_CHARACTERS:
        return text
    return text[:MAX_RESULT_CHARACTERS] + f"... ({len(text)} characters in all)"
