"""Makes a tiny judge for the demo task, by a supervised warm-up on questions, answers and scores.

    python recipes/judge_warmup.py                   make it, and measure how often it agrees with the true reward
    python recipes/rlvr_judge.py                     train the demo with its verdicts as reward

Agreement is measured on held-out questions: right answers, made-up faults, and what the demo's model itself answers
when it is sampled.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Sequence
from pathlib import Path

from pydantic import Field

from recipes import sft_warmup
from recipes.running import guarded
from roll_ray.settings import StrictModel
from roll_ray.settings_io import load_settings


class Settings(StrictModel):
    """What decides the judge; equal settings give equal judges."""

    steps: int = Field(700, gt=0, description="Optimizer steps.")
    examples_per_step: int = Field(64, gt=0, description="Judgements in the batch of one step.")
    learning_rate: float = Field(1e-3, gt=0, description="AdamW learning rate, after warm-up constant.")
    seed: int = Field(0, ge=0, description="Seeds new weights, questions and faults.")


def judge_model(settings: Settings | None = None) -> Path:
    """The folder of the judge, made on first use."""
    from envs import sort_letters, sorted_judge
    from recipes.taught_models import examples_file, taught_model

    chosen = settings or Settings()
    questions = sort_letters.training_prompts(chosen.steps * chosen.examples_per_step, chosen.seed + 1)
    examples = sorted_judge.judgements(questions, chosen.seed)
    file = examples_file(f"sorted-judge-{chosen.seed}-{len(questions)}", examples)
    return taught_model(sft_warmup.Settings(data=str(file), **chosen.model_dump()))


def agreement(judge: str, policy: str | None, seed: int = 0) -> dict[str, float]:
    """Share of held-out answers on which the judge's verdict is the true reward, by where the answer comes from.

    `policy`: the model whose sampled answers are among them; None: only right answers and made-up faults. A judgement
    without a score agrees with nothing."""
    from envs import sort_letters, sorted_judge
    from recipes.greedy import greedy_answers, sampled_answers
    from roll_ray.sample import Prompt

    questions, rng = sort_letters.heldout_prompts(), random.Random(seed)
    answers: dict[str, list[tuple[Prompt, str]]] = {
        "right": [(q, q.reference or "") for q in questions],
        "faulty": [(q, sorted_judge.wrong_answer(q, rng)) for q in questions],
    }
    if policy is not None:
        views = sampled_answers(policy, questions, max_new_tokens=sort_letters.MAX_LETTERS + 5, seed=seed)
        answers["sampled"] = [(view.prompt, view.response_text) for view in views]
    found = {}
    for source, pairs in answers.items():
        shown = [sorted_judge.judgement(question, answer) for question, answer in pairs]
        said = greedy_answers(judge, shown, max_new_tokens=sorted_judge.MAX_JUDGEMENT_TOKENS)
        score = sorted_judge.judge_reward().parse
        agreed = [
            score(verdict.response_text, 10.0) == float(answer == question.reference)
            for (question, answer), verdict in zip(pairs, said, strict=True)
        ]
        found[source] = sum(agreed) / len(agreed)
    return found


def main(words: Sequence[str]) -> int:
    if words and words[0] in ("-h", "--help"):
        print(__doc__)
        return 0
    from recipes.demo import demo_model

    folder = judge_model(load_settings(Settings, words))  # type: ignore[type-var]
    print(f"the judge: {folder}")
    for source, share in agreement(str(folder), str(demo_model())).items():
        print(f"agreement with the true reward, {source} answers: {share:.3f}")
    return 0


if __name__ == "__main__":
    sys.exit(guarded(lambda: main(sys.argv[1:])))
