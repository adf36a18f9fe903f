"""The reward worker: runs reward functions and turns every fault into an invalid reward.

A plain function runs in a thread. One that gives an awaitable (an `async def`) is then awaited in the worker's event
loop: it holds no thread, and many wait for their answers at once.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
import time
import traceback
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

from envs.reward_parts import AnyRewardFunction, LearningReward, checked
from envs.task import ScoredView
from roll_ray.sample import Reward
from roll_ray.tracking.trajectories import example_text
from workers.daemon_threads import DaemonThreads, OutOfTimeError

log = logging.getLogger(__name__)

AWAITED_PER_THREAD = 16


class RewardWorker:
    """Scores responses by the reward function of their domain.

    `domains` maps each domain to a factory, called once, in this process. A function that raises, that
    takes longer than `timeout_s` or that returns no finite number gives an *invalid* reward with the
    reason, never 0. `n_threads` functions run at once, and 16 times as many are awaited; waiting for one's
    turn is not counted.
    """

    def __init__(
        self,
        domains: Mapping[str, Callable[[], AnyRewardFunction]],
        n_threads: int = 4,
        timeout_s: float = 30.0,
        name: str = "reward",
    ) -> None:
        self.name = name
        self._functions = {domain: factory() for domain, factory in domains.items()}
        self._threads = DaemonThreads(n_threads, timeout_s, name)
        self._awaiting = asyncio.Semaphore(AWAITED_PER_THREAD * n_threads)
        self._timeout_s = timeout_s
        self._example = ""
        self._logged: set[str] = set()
        self._counters = {"scored": 0, "invalid": 0, "seconds": 0.0}

    def domains(self) -> list[str]:
        """Domains that this worker scores."""
        return sorted(self._functions)

    async def score_many(self, views: Sequence[ScoredView]) -> list[Reward]:
        """A reward for each view, in order."""
        rewards = await asyncio.gather(*(self._score(view) for view in views))
        self._counters["scored"] += len(rewards)
        self._counters["invalid"] += sum(not r.valid for r in rewards)
        return list(rewards)

    def metrics(self) -> dict[str, float]:
        """Responses scored, how many of them invalid, seconds in functions, threads given up on."""
        return {**self._counters, "threads_abandoned": float(self._threads.abandoned)}

    def learnt(self) -> dict[str, Any]:
        """For the checkpoint: by domain, what its reward function has learnt, of those that learn."""
        learnt = {d: f.learnt() for d, f in self._functions.items() if isinstance(f, LearningReward)}
        return {domain: what for domain, what in learnt.items() if what}

    def learn(self, learnt: Mapping[str, Any]) -> None:
        """Take in what a worker had learnt, as far as its domains are scored here."""
        for domain, function in self._functions.items():
            if domain in learnt and isinstance(function, LearningReward):
                function.learn(learnt[domain])

    def invalid_example(self) -> str:
        """The last response that got an invalid reward, whole, with the reason; empty when there was none."""
        return self._example

    async def _score(self, view: ScoredView) -> Reward:
        reward = await self._verdict(view)
        if not reward.valid:
            verdict = f"invalid ({reward.reason})"
            self._example = example_text(view.prompt.shown(), view.response_text, view.reference, verdict)
        return reward

    async def _verdict(self, view: ScoredView) -> Reward:
        function = self._functions.get(view.domain)
        if function is None:
            return Reward.invalid(
                f"no reward function for domain {view.domain!r}; known: {', '.join(self.domains())}"
            )
        begun_s = time.perf_counter()
        try:
            value = await self._threads.run(lambda: function(view))
            if inspect.isawaitable(value):
                value = await self._awaited(value)
        except OutOfTimeError:
            log.warning("%s: no verdict on prompt %s within %g s", self.name, view.prompt.id, self._timeout_s)
            return Reward.invalid(f"verifier timed out after {self._timeout_s:g} s")
        except Exception as error:
            # The boundary to user code: its fault becomes the reason of an invalid reward.
            self._log_once(view, error)
            return Reward.invalid(f"{type(error).__name__}: {error}")
        finally:
            self._counters["seconds"] += time.perf_counter() - begun_s
        return checked(value)

    async def _awaited(self, value: Awaitable[Any]) -> Any:
        async with self._awaiting:
            try:
                async with asyncio.timeout(self._timeout_s) as limit:
                    return await value
            except TimeoutError:
                if limit.expired():
                    raise OutOfTimeError from None
                raise

    def _log_once(self, view: ScoredView, error: Exception) -> None:
        text = "".join(traceback.format_exception(error))
        place = "".join(traceback.format_tb(error.__traceback__))
        if place not in self._logged:
            self._logged.add(place)
            log.warning("%s: the reward of prompt %s raised\n%s", self.name, view.prompt.id, text)
