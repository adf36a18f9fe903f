"""Code: does the program in a response pass the prompt's tests?

    verifier = CodeVerifier()
    verifier(view)              # Reward(value=1.0, reason="passed 3 of 3 cases", extracted=<the program>)
    verifier.run(program, info) # [CaseResult("case 1", "passed", seconds=0.004), ...]

The prompt's `info` holds the tests (`envs.code_cases`). A verifier is a reward function, safe in threads and Ray
workers; every thread keeps a sandbox of its own. A program that breaks a limit is wrong, with that reason; a sandbox
that cannot start makes the reward invalid.
"""

from __future__ import annotations

import signal
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from envs.code_answer import NoProgram, find_program
from envs.code_cases import Case, NoCases, StdioCase, cases_of
from envs.sandbox import Limits, Outcome, Sandbox, SandboxError, kept_sandbox, require_isolation
from envs.sandbox_filter import system_call_filter
from envs.sandbox_inside.checker import ENDED_EARLY
from envs.task import ScoredView
from roll_ray.sample import Reward

PASSED, WRONG, NOT_RUN = "passed", "wrong", "not run"
_SHOWN_CHARS = 200


@dataclass(frozen=True, slots=True)
class CaseResult:
    """How a program did on one case. `verdict`: passed, wrong or not run; `seconds` is wall clock."""

    name: str
    verdict: str
    seconds: float = 0.0
    reason: str = ""

    @property
    def passed(self) -> bool:
        return self.verdict == PASSED


@dataclass(frozen=True, slots=True)
class CodeVerifier:
    """1 for a program that passes all cases, else 0; it is not run any further after the first case that it fails.

    `fraction`: the share of passed cases instead; then all are run. `packages`: folders, such as a virtual
    environment's site-packages, that programs and tests may read and import from. `sandbox="none"` runs programs
    without walls, and says so loudly. `timeout_of(case_key)` gives a case's limit in seconds instead of
    `limits.timeout_s`; `on_correct(case_key, seconds)` hears how long each case of a right program took. A case's
    key is `<prompt id>/<case name>`. Raises `RollRayError` where no sandbox can be had.
    """

    limits: Limits = field(default_factory=Limits)
    fraction: bool = False
    packages: tuple[str, ...] = ()
    sandbox: str = "bubblewrap"
    timeout_of: Callable[[str], float] | None = None
    on_correct: Callable[[str, float], None] | None = None

    def __post_init__(self) -> None:
        require_isolation(self.sandbox)

    def __call__(self, view: ScoredView) -> Reward:
        info = {**view.prompt.info, **view.info}
        try:
            program = str(info.get("code_prefix", "")) + find_program(view.response_text)
        except NoProgram as error:
            return Reward(0.0, str(error))
        try:
            results = self.run(program, info, prompt_id=view.prompt.id)
        except NoCases as error:
            return Reward.invalid(str(error))
        except SandboxError as error:
            return Reward(None, f"sandbox: {error}", extracted=program)
        return self._reward(program, results)

    def run(self, program: str, info: Mapping[str, Any], *, prompt_id: str = "") -> list[CaseResult]:
        """The result of each case of `info`. Raises `NoCases` and `SandboxError`."""
        cases = cases_of(info)
        if system_call_filter():
            results = self._run_in(self._kept_sandbox(), program, cases, prompt_id)
        else:  # without the filter a program could change its supervisor's limits: it gets one of its own
            with Sandbox(self.limits, isolation=self.sandbox, packages=self.packages) as sandbox:
                results = self._run_in(sandbox, program, cases, prompt_id)
        if self.on_correct is not None and all(result.passed for result in results):
            for result in results:
                self.on_correct(_key(prompt_id, result.name), result.seconds)
        return results

    def _kept_sandbox(self) -> Sandbox:
        return kept_sandbox(self.limits, self.sandbox, self.packages)

    def _run_in(
        self, sandbox: Sandbox, program: str, cases: Sequence[Case], prompt_id: str
    ) -> list[CaseResult]:
        results: list[CaseResult] = []
        for case in cases:
            if not self.fraction and results and not results[-1].passed:
                results += [CaseResult(rest.name, NOT_RUN) for rest in cases[len(results) :]]
                break
            results.append(self._run_case(sandbox, program, case, _key(prompt_id, case.name)))
        return results

    def _run_case(self, sandbox: Sandbox, program: str, case: Case, key: str) -> CaseResult:
        timeout_s = self.limits.timeout_s if self.timeout_of is None else self.timeout_of(key)
        if isinstance(case, StdioCase):
            outcome = sandbox.run(program, case.stdin, timeout_s=timeout_s)
            reason = self._fault(outcome, timeout_s) or _wrong_output(case, outcome)
        else:
            outcome = sandbox.run_tests(program, case.tests(), timeout_s=timeout_s)
            reason = self._fault(outcome, timeout_s, with_tests=True) or _failed_tests(outcome)
        return CaseResult(case.name, WRONG if reason else PASSED, outcome.seconds, reason)

    def _fault(self, outcome: Outcome, timeout_s: float, *, with_tests: bool = False) -> str:
        """What a program did wrong whatever it printed; empty if it came to its end."""
        if outcome.breach:
            return self._broken_limit(outcome.breach, timeout_s)
        limit = _limit_met(outcome)
        if with_tests:
            if outcome.verdict is None:
                return "the process of the tests was brought down"
            return self._broken_limit(limit, timeout_s) if outcome.verdict and limit else ""
        if outcome.status == 0:
            return ""
        last = outcome.stderr.rstrip().rpartition("\n")[2][:_SHOWN_CHARS]
        if limit:
            return f"{self._broken_limit(limit, timeout_s)} ({last})"
        return f"{_how_it_ended(outcome.status)}{f': {last}' if last else ''}"

    def _broken_limit(self, breach: str, timeout_s: float) -> str:
        limits = self.limits
        return {
            "time-out": f"time-out: more than {timeout_s:g} s",
            "memory": f"memory: more than {limits.memory_bytes >> 20} MiB",
            "processes": f"processes: more than {limits.processes}, threads included",
            "output": f"output: more than {limits.output_bytes} bytes",
            "files": f"files: more than {limits.files}",
            "scratch": f"scratch folder: more than {limits.scratch_bytes} bytes",
            "ended": "the program brought its sandbox down",
        }[breach]

    def _reward(self, program: str, results: Sequence[CaseResult]) -> Reward:
        n_passed = sum(result.passed for result in results)
        share = n_passed / len(results)
        reason = f"passed {n_passed} of {len(results)} cases"
        if wrong := next((result for result in results if result.verdict == WRONG), None):
            reason += f"; {wrong.name} ({wrong.seconds:.2f} s): {wrong.reason}"
        value = share if self.fraction else float(n_passed == len(results))
        return Reward(value, reason, extracted=program, parts={"cases_passed": share})


def _key(prompt_id: str, name: str) -> str:
    return f"{prompt_id}/{name}"


def _wrong_output(case: StdioCase, outcome: Outcome) -> str:
    if case.accepts(outcome.stdout):
        return ""
    return f"printed {_shown(outcome.stdout)}, not {_shown(case.expected_stdout)}"


def _failed_tests(outcome: Outcome) -> str:
    if outcome.verdict == ENDED_EARLY and outcome.status is not None:
        return f"{ENDED_EARLY} ({_how_it_ended(outcome.status)})"
    return outcome.verdict or ""


def _shown(text: str) -> str:
    text = text.rstrip()
    return repr(text if len(text) <= _SHOWN_CHARS else text[:_SHOWN_CHARS] + "...")


def _limit_met(outcome: Outcome) -> str:
    """The limit that the kernel held against a program, as far as its end tells."""
    last = (outcome.verdict or outcome.stderr).rstrip().rpartition("\n")[2]
    if outcome.status == -signal.SIGXCPU:
        return "time-out"
    if "MemoryError" in last:
        return "memory"
    if "can't start new thread" in last or "Resource temporarily unavailable" in last:
        return "processes"
    if outcome.status == -signal.SIGXFSZ or "File too large" in last:
        return "scratch"
    return "scratch" if outcome.scratch_full or "No space left on device" in last else ""


def _how_it_ended(status: int | None) -> str:
    if status is None or status >= 0:
        return f"exit status {status}"
    return f"ended by a signal: {signal.strsignal(-status) or -status}"
