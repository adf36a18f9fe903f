"""Held-out evaluation on the rollout engines: its own prompts, its own sampling, never in a batch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from roll_ray.actors import Pool
from roll_ray.errors import RollRayError
from roll_ray.sample import Prompt
from roll_ray.settings import EvaluationSettings
from roll_ray.worker_protocols import RunnerWorker


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
        n = len(self.runners)
        shares = [(self.prompts[i::n],) for i in range(n)]
        sampling = self.settings.sampling
        calls = [(share, sampling.distribution(), sampling.max_new_tokens) for (share,) in shares]
        answers = await self.runners.scatter(RunnerWorker.evaluate, calls)
        return _summary([a for answered in answers for a in answered])

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
