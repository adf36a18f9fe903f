"""Foreign agents of three kinds, run where they cannot hold up the runner: coroutines in a loop of their own,
plain functions in a thread each, programs as processes.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import inspect
import json
import os
import signal
import threading
from collections.abc import Callable, Coroutine, Sequence
from concurrent.futures import Future
from dataclasses import asdict
from typing import Any

from roll_ray.sample import Prompt, Reward

Verdict = float | Reward | None
"""What an agent returns: the episode's reward; None leaves it to the reward function of the domain."""

Agent = Callable[[str, str, Prompt], Verdict | Coroutine[Any, Any, Verdict]] | Sequence[str]
"""`agent(base_url, api_key, prompt)`, async or not, or the words of a command line."""

_SHOWN = 500


class AgentExitedError(Exception):
    """The agent called `sys.exit`; the message is its status."""


class AgentLoop:
    """An event loop in a daemon thread, for all coroutines of a runner's agents.

    One that blocks it, say by a client that is not async, holds up other agents but not the runner, whose
    time-outs go on.
    """

    def __init__(self) -> None:
        self._loop: asyncio.AbstractEventLoop | None = None

    async def run(self, coroutine: Coroutine[Any, Any, Verdict]) -> Verdict:
        """The coroutine's result; cancelling the call cancels it."""
        if self._loop is None:
            self._loop = asyncio.new_event_loop()
            threading.Thread(target=_run_loop, args=(self._loop,), name="foreign-agents", daemon=True).start()
        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(_no_exit(coroutine), self._loop))

    def close(self) -> None:
        if self._loop is not None:
            self._loop.call_soon_threadsafe(self._loop.stop)


def _run_loop(loop: asyncio.AbstractEventLoop) -> None:
    loop.run_forever()
    loop.close()


async def _no_exit(coroutine: Coroutine[Any, Any, Verdict]) -> Verdict:
    """An agent that wants to end the process ends itself."""
    try:
        return await coroutine
    except SystemExit as error:
        raise AgentExitedError(error.code) from None


async def run_agent(agent: Agent, loop: AgentLoop, base_url: str, api_key: str, prompt: Prompt) -> Verdict:
    """Run an agent to its end. Raises what it raises; cancelling the call ends a coroutine or a program, and
    leaves a thread to fail at its next call."""
    if not callable(agent):
        return await _run_program(agent, base_url, api_key, prompt)
    call = functools.partial(agent, base_url, api_key, prompt)
    said = call() if inspect.iscoroutinefunction(agent) else await asyncio.wrap_future(_in_thread(call))
    return await loop.run(said) if isinstance(said, Coroutine) else said


def _in_thread(function: Callable[[], Any]) -> Future[Any]:
    """A daemon thread of its own: a process can end with agents that hang."""
    future: Future[Any] = Future()

    def work() -> None:
        try:
            future.set_result(function())
        except SystemExit as error:
            future.set_exception(AgentExitedError(error.code))
        except Exception as error:
            future.set_exception(error)

    future.set_running_or_notify_cancel()
    threading.Thread(target=work, name="foreign-agent", daemon=True).start()
    return future


async def _run_program(words: Sequence[str], base_url: str, api_key: str, prompt: Prompt) -> Verdict:
    """The prompt goes to standard input as one JSON object; whatever the program started ends with it."""
    process = await asyncio.create_subprocess_exec(
        *words,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env={**os.environ, "OPENAI_BASE_URL": base_url, "OPENAI_API_KEY": api_key},
        start_new_session=True,
    )
    try:
        out, complaint = await process.communicate(json.dumps(asdict(prompt)).encode())
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        await process.wait()
    if process.returncode != 0:
        last_words = complaint.decode(errors="replace").strip()[-_SHOWN:]
        raise ChildProcessError(f"{words[0]} ended with status {process.returncode}: {last_words}")
    return verdict_of(out.decode(errors="replace"))


def verdict_of(output: str) -> Verdict:
    """The reward in the last line of a program's output: a number, `{"reward": ..., "reason": ...}`, or `null`.

    No output is no verdict. Raises `ValueError` for anything else.
    """
    lines = output.strip().splitlines()
    if not lines:
        return None
    try:
        said = json.loads(lines[-1])
        if isinstance(said, dict):
            return Reward(float(said["reward"]), str(said.get("reason", "")))
        return None if said is None else float(said)
    except (ValueError, TypeError, KeyError):
        raise ValueError(
            f"the last line of the program's output is no reward: {lines[-1][:_SHOWN]!r} (a number, "
            '{"reward": number, "reason": text} or null was expected)'
        ) from None
