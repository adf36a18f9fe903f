"""Prompts for training and evaluation from what `data` and `evaluation.data` name."""

from __future__ import annotations

import hashlib

from envs.task import Observation
from recipes.model_folder import check_model_folder
from roll_ray.data import load_prompts
from roll_ray.sample import Prompt
from roll_ray.settings import RunSettings
from workers.tokenizer import load_tokenizer

BOXED = "\n\nPut your final answer within \\boxed{}."
HELDOUT_SHARE = 0.1


def prompts_of(settings: RunSettings) -> tuple[list[Prompt], list[Prompt]]:
    """Training and held-out prompts; questions become chats where the tokenizer has a template for them.

    Without `evaluation.data` up to a tenth of the data is held out, chosen by the prompts' ids.
    """
    assert settings.data is not None
    check_model_folder(settings.model)
    train = _load(settings.data, settings)
    if not settings.evaluation.every_steps:
        return train, []
    if settings.evaluation.data is not None:
        return train, _load(settings.evaluation.data, settings)
    n = min(settings.evaluation.max_prompts, int(len(train) * HELDOUT_SHARE))
    heldout = sorted(train, key=lambda prompt: hashlib.blake2b(prompt.id.encode()).digest())[:n]
    chosen = {prompt.id for prompt in heldout}
    print(f"held out for evaluation: {n} of {len(train)} prompts")
    return [prompt for prompt in train if prompt.id not in chosen], heldout


def _load(source: str, settings: RunSettings) -> list[Prompt]:
    tokenizer = load_tokenizer(settings.model)
    loaded = load_prompts(
        source,
        max_prompt_tokens=settings.max_prompt_tokens,
        length_of=lambda prompt: len(Observation.of(prompt).tokens(tokenizer)),
        as_chat=tokenizer.has_chat_template,
        suffix=BOXED,
    )
    print(f"{source}: {loaded.counts.sentence()}")
    return loaded.prompts
