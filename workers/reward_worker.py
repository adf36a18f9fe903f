"""The reward worker: runs plain reward functions in threads and turns every fault into an invalid reward."""

from __future__ import annotations

import asyncio
import logging
import math
import numbers
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from envs.task import RewardFunction, ScoredView
from roll_ray.sample import Reward
from workers.daemon_threads import DaemonThreads, OutOfTimeError

log = logging.getLogger(__name__)


class RewardWorker:
    """Scores responses by the reward function of their domain.

    `domains` maps each domain to a factory, called once, in this process. A function that raises, that
    takes longer than `timeout_s` or that returns no finite number gives an *invalid* reward with the
    reason, never 0.
    """

    def __init__(
        self,
        domains: Mapping[str, Callable[[], RewardFunction]],
        n_threads: int = 4,
        timeout_s: float = 30.0,
        name: str = "reward",
    ) -> None:
        self.name = name
        self._functions = {domain: factory() for domain, factory in domains.items()}
        self._threads = DaemonThreads(n_threads, timeout_s, name)
        self._timeout_s = timeout_s
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

    async def _score(self, view: ScoredView) -> Reward:
        function = self._functions.get(view.domain)
        if function is None:
            return Reward.invalid(
                f"no reward function for domain {view.domain!r}; known: {', '.join(self.domains())}"
            )
        begun_s = time.perf_counter()
        try:
            value = await self._threads.run(lambda: function(view))
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

    def _log_once(self, view: ScoredView, error: Exception) -> None:
        text = "".join(traceback.format_exception(error))
        place = "".join(traceback.format_tb(error.__traceback__))
        if place not in self._logged:
            self._logged.add(place)
            log.warning("%s: the reward of prompt %s raised\n%s", self.name, view.prompt.id, text)


def checked(value: Any) -> Reward:
    """What a reward function or an environment gave, as a reward with a Python float or an invalid one."""
    given = value.value if isinstance(value, Reward) else value
    if isinstance(value, Reward) and given is None:
        return value
    number = given.item() if isinstance(given, np.generic) else given
    if not isinstance(number, numbers.Real) or not math.isfinite(number):
        return Reward.invalid(f"the reward is {given!r} ({type(given).__name__}), not a finite number")
    return replace(value, value=float(number)) if isinstance(value, Reward) else Reward(float(number))
