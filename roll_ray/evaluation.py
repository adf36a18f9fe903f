"""Held-out evaluation on the rollout engines: its own prompts, its own sampling, never in a batch."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from roll_ray.actors import ActorUnavailable, Pool
from roll_ray.errors import RollRayError, WorkerDiedError
from roll_ray.sample import Prompt
from roll_ray.settings import EvaluationSettings
from roll_ray.worker_protocols import EvaluationAnswer, RunnerWorker

PATIENCE_S = 60.0
RETRY_INTERVAL_S = 0.5


@dataclass(slots=True)
class Evaluator:
    """Answers the held-out prompts before the first step, every `every_steps` and after the last."""

    runners: Pool[RunnerWorker]
    prompts: Sequence[Prompt]
    settings: EvaluationSettings
    max_steps: int

    async def __call__(self, step: int) -> Mapping[str, float]:
        """Metrics when an evaluation is due after `step`, else nothing. Accuracy is the mean reward; a prompt
        whose reward is invalid counts in `heldout_invalid_share`, never as 0."""
        if not self._due(step):
            return {}
        return _summary(await self._answers())

    async def _answers(self) -> list[EvaluationAnswer]:
        """An answer to each prompt. What a runner had that goes away is asked of the others, or of whoever is back."""
        sampling, answers = self.settings.sampling, list[EvaluationAnswer]()
        left, away = list(self.prompts), set[str]()
        deadline_s = time.monotonic() + PATIENCE_S
        while left:
            up = [runner for runner in self.runners if runner.name not in away]
            shares = [left[i :: len(up)] for i in range(len(up))]
            results = await asyncio.gather(
                *(
                    runner.call(
                        RunnerWorker.evaluate, share, sampling.distribution(), sampling.max_new_tokens
                    )
                    for runner, share in zip(up, shares, strict=True)
                ),
                return_exceptions=True,
            )
            left = []
            for runner, share, result in zip(up, shares, results, strict=True):
                if not isinstance(result, BaseException):
                    answers += result
                    deadline_s = time.monotonic() + PATIENCE_S
                elif isinstance(result, ActorUnavailable | WorkerDiedError):
                    away.add(runner.name)
                    left += share
                    reason = result
                else:
                    raise result
            if left and len(away) == len(self.runners):
                if time.monotonic() > deadline_s:
                    raise reason
                await asyncio.sleep(RETRY_INTERVAL_S)
                away.clear()
        return answers

    def _due(self, step: int) -> bool:
        every = self.settings.every_steps
        return bool(every and self.prompts) and (step % every == 0 or step == self.max_steps)


def _summary(answers: Sequence[object]) -> dict[str, float]:
    rewards = [a.reward for a in answers]  # type: ignore[attr-defined]
    valid = [r.value for r in rewards if r.valid]
    if not valid:
        raise RollRayError(
            "evaluation: every held-out answer has an invalid reward",
            why=next((r.reason for r in rewards), "there was no answer"),
            next_step="mend the reward function, or set evaluation.every_steps=0",
        )
    tokens = [a.n_tokens for a in answers]  # type: ignore[attr-defined]
    return {
        "heldout_accuracy": sum(valid) / len(valid),
        "heldout_invalid_share": 1 - len(valid) / len(rewards),
        "heldout_tokens_mean": sum(tokens) / len(tokens),
    }
