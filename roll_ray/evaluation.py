"""Held-out evaluation on the rollout engines: its own prompts, its own sampling, never in a batch."""

from __future__ import annotations

import asyncio
import itertools
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
        return heldout_metrics(await self._answers(), {p.id: p.domain for p in self.prompts})

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


def heldout_metrics(answers: Sequence[EvaluationAnswer], domains: Mapping[str, str]) -> dict[str, float]:
    """What held-out answers say, and where there are several `domains` (by prompt id) what those of each do.

    A domain without a valid reward has no accuracy. Raises RollRayError when no answer has one."""
    metrics = _summary(answers)
    if "heldout_accuracy" not in metrics:
        raise RollRayError(
            "evaluation: every held-out answer has an invalid reward",
            why=next((a.reward.reason for a in answers), "there was no answer"),
            next_step="mend the reward function, or set evaluation.every_steps=0",
        )
    if len(set(domains.values())) > 1:
        for domain in sorted(set(domains.values())):
            of_it = _summary([a for a in answers if domains[a.prompt_id] == domain])
            metrics |= {f"{name}/{domain}": value for name, value in of_it.items()}
    return metrics


def in_turns(prompts: Sequence[Prompt], n: int) -> list[Prompt]:
    """The first `n` prompts, the domains taking turns: a limit leaves no domain out that was named last."""
    by_domain: dict[str, list[Prompt]] = {}
    for prompt in prompts:
        by_domain.setdefault(prompt.domain, []).append(prompt)
    rounds = itertools.zip_longest(*by_domain.values())
    return [prompt for turn in rounds for prompt in turn if prompt is not None][:n]


def _summary(answers: Sequence[EvaluationAnswer]) -> dict[str, float]:
    if not answers:
        return {}
    valid = [a.reward.value for a in answers if a.reward.value is not None]
    accuracy = {"heldout_accuracy": sum(valid) / len(valid)} if valid else {}
    return {
        **accuracy,
        "heldout_invalid_share": 1 - len(valid) / len(answers),
        "heldout_tokens_mean": sum(a.n_tokens for a in answers) / len(answers),
    }
