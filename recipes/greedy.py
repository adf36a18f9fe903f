"""Answers of a model folder with plain transformers, for models that a recipe has just made."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence

from envs.task import Observation, RewardFunction, ScoredView
from roll_ray.sample import Prompt, Reward
from workers.tokenizer import load_tokenizer


def greedy_accuracy(
    model: str, prompts: Sequence[Prompt], reward: RewardFunction, *, max_new_tokens: int
) -> float:
    """Mean reward of greedy answers, in [0, 1] where rewards are. Prompts of equal length share a batch."""
    answers = greedy_answers(model, prompts, max_new_tokens=max_new_tokens)
    rewards = [reward(view) for view in answers]
    values = [r.value if isinstance(r, Reward) else float(r) for r in rewards]
    valid = [value for value in values if value is not None]
    return sum(valid) / len(valid) if valid else 0.0


def greedy_answers(
    model: str, prompts: Sequence[Prompt], *, max_new_tokens: int, batch_size: int = 128
) -> list[ScoredView]:
    """What the model answers, in the order of `prompts`; a cut answer has finish_reason "length"."""
    return _answers(model, prompts, max_new_tokens, batch_size, sample=False)


def sampled_answers(
    model: str, prompts: Sequence[Prompt], *, max_new_tokens: int, seed: int, batch_size: int = 128
) -> list[ScoredView]:
    """As `greedy_answers`, drawn at temperature 1."""
    import torch

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return _answers(model, prompts, max_new_tokens, batch_size, sample=True)


def _answers(
    model: str, prompts: Sequence[Prompt], max_new_tokens: int, batch_size: int, sample: bool
) -> list[ScoredView]:
    import torch
    from transformers import AutoModelForCausalLM

    tokenizer = load_tokenizer(model)
    ends = tokenizer.end_token_ids()
    policy = AutoModelForCausalLM.from_pretrained(model).eval()
    rows = [Observation.of(prompt).tokens(tokenizer) for prompt in prompts]
    by_length: dict[int, list[int]] = defaultdict(list)
    for i, row in enumerate(rows):
        by_length[len(row)].append(i)
    views: dict[int, ScoredView] = {}
    for indices in by_length.values():
        for begin in range(0, len(indices), batch_size):
            part = indices[begin : begin + batch_size]
            ids = torch.tensor([rows[i] for i in part])
            with torch.inference_mode():
                output = policy.generate(
                    ids,
                    attention_mask=torch.ones_like(ids),
                    do_sample=sample,
                    **({"top_k": 0} if sample else {}),  # transformers keeps 50 unless told
                    max_new_tokens=max_new_tokens,
                    eos_token_id=list(ends),
                    pad_token_id=ends[0],
                )
            for i, tokens in zip(part, output[:, ids.shape[1] :].tolist(), strict=True):
                views[i] = _view(prompts[i], tokens, ends, tokenizer.decode)
    return [views[i] for i in range(len(prompts))]


def _view(
    prompt: Prompt, tokens: list[int], ends: Sequence[int], decode: Callable[[Sequence[int]], str]
) -> ScoredView:
    stop = next((n for n, token in enumerate(tokens) if token in ends), None)
    return ScoredView(prompt, decode(tokens[:stop]), "length" if stop is None else "stop")
