"""How per-token losses become one number: a weight per token, and one denominator for the whole batch.

Every aggregation is `sum over tokens of weight x loss, divided by denominator`. The weight of a token is
known from its own sample (for `prompt_mean`: from the token count of its prompt, which the driver sends
along), the denominator from the per-sample scalars of the complete batch, and the division happens once
per optimizer step. So micro-batches, ranks and streamed parts cannot change it.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from roll_ray.errors import SettingsError

Array = npt.NDArray[Any]


@dataclass(frozen=True, slots=True)
class Aggregation:
    """`weights_B`: the weight of each policy token of a sample, `counts_B`: what the sample adds to the
    denominator; both from policy-token counts [B].

    `per_prompt`: both take the counts of whole prompts instead. `fixed_length`: the denominator is multiplied
    by a length that settings give.
    """

    weights_B: Callable[[Array], Array]
    counts_B: Callable[[Array], Array]
    per_prompt: bool = False
    fixed_length: bool = False


def _ones(policy_tokens_B: Array) -> Array:
    return np.ones(len(policy_tokens_B), np.float64)


def _inverse_length(policy_tokens_B: Array) -> Array:
    return 1.0 / np.maximum(policy_tokens_B, 1).astype(np.float64)


def _tokens(policy_tokens_B: Array) -> Array:
    return np.asarray(policy_tokens_B, np.float64)


def _sequences(policy_tokens_B: Array) -> Array:
    """Responses with a policy token: an answer of no tokens has no mean to average."""
    return (np.asarray(policy_tokens_B) > 0).astype(np.float64)


AGGREGATIONS: dict[str, Aggregation] = {
    "token_mean": Aggregation(_ones, _tokens),
    "seq_mean_token_mean": Aggregation(_inverse_length, _sequences),
    "seq_mean_token_sum": Aggregation(_ones, _sequences),
    "seq_mean_token_sum_norm": Aggregation(_ones, _sequences, fixed_length=True),
    "prompt_mean": Aggregation(_inverse_length, _sequences, per_prompt=True),
}
"""token_mean: sum / tokens (DAPO 2503.14476, equation 8). seq_mean_token_mean: mean over responses of their token
mean (GRPO 2402.03300, equation 3). seq_mean_token_sum: mean over responses of their token sum.
seq_mean_token_sum_norm: the latter over a fixed length (Dr. GRPO 2503.20783). prompt_mean: mean over prompts of
the mean over all tokens of their responses."""


def aggregation_named(name: str) -> Aggregation:
    if name not in AGGREGATIONS:
        raise SettingsError(f"unknown aggregation {name!r}", next_step=f"use one of {sorted(AGGREGATIONS)}")
    return AGGREGATIONS[name]


def sample_counts(aggregation: str, policy_tokens_B: Array, length: int | None = None) -> Array:
    """What each sample adds to the denominator, [B]; not for `prompt_mean`, where samples share a count."""
    chosen = aggregation_named(aggregation)
    if chosen.per_prompt:
        raise SettingsError(f"the denominator of {aggregation!r} is no sum over samples")
    return chosen.counts_B(np.asarray(policy_tokens_B)) * _length(aggregation, length)


def denominator(
    aggregation: str,
    policy_tokens_B: Array,
    *,
    groups_B: Sequence[Hashable] | None = None,
    trained_B: Array | None = None,
    length: int | None = None,
) -> float:
    """What the accumulated sum is divided by, once; 0 for a batch without a token to train on.

    All arguments cover the whole optimizer step: `policy_tokens_B` [B]; `groups_B`: the prompt of each sample,
    needed by `prompt_mean`; `trained_B` [B]: False where a sample is left out of the loss; `length`: the
    fixed length of `seq_mean_token_sum_norm`, in tokens.
    """
    chosen = aggregation_named(aggregation)
    tokens = _trained_tokens(policy_tokens_B, trained_B)
    if chosen.per_prompt:
        tokens = np.bincount(_codes(groups_B, len(tokens)), weights=tokens)
    return float(np.sum(chosen.counts_B(tokens)) * _length(aggregation, length))


def prompt_tokens(
    policy_tokens_B: Array, groups_B: Sequence[Hashable], trained_B: Array | None = None
) -> npt.NDArray[np.int64]:
    """The trained policy tokens of each sample's whole prompt, [B]: `extra_B["prompt_tokens"]` of a batch."""
    tokens = _trained_tokens(policy_tokens_B, trained_B)
    codes = _codes(groups_B, len(tokens))
    return np.bincount(codes, weights=tokens).astype(np.int64)[codes]


def _trained_tokens(policy_tokens_B: Array, trained_B: Array | None) -> Array:
    tokens = np.asarray(policy_tokens_B)
    return tokens if trained_B is None else np.where(trained_B, tokens, 0)


def _length(aggregation: str, length: int | None) -> float:
    if not AGGREGATIONS[aggregation].fixed_length:
        return 1.0
    if length is None or length <= 0:
        raise SettingsError(
            f"aggregation {aggregation!r} needs a fixed length in tokens, not {length}",
            next_step="set aggregation_length, for example to the most tokens of an answer",
        )
    return float(length)


def _codes(groups_B: Sequence[Hashable] | None, n_samples: int) -> npt.NDArray[np.int64]:
    """Prompts numbered as they come."""
    if groups_B is None or len(groups_B) != n_samples:
        raise ValueError(f"prompt_mean needs the group of each of {n_samples} samples")
    numbers: dict[Hashable, int] = {}
    return np.asarray([numbers.setdefault(group, len(numbers)) for group in groups_B], np.int64)
