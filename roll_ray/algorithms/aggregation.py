"""How per-token losses become one number: a weight per token, and one denominator for the whole batch.

Every aggregation is `sum over tokens of weight x loss, divided by denominator`. The weight of a token is
known from its own sample, the denominator from the per-sample scalars of the complete batch, and the
division happens once per optimizer step. So micro-batches, ranks and streamed parts cannot change it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]


@dataclass(frozen=True, slots=True)
class Aggregation:
    """`weights_B`: the weight of each policy token of a sample. `denominator`: of a whole batch; 0 if it is empty."""

    weights_B: Callable[[Array], Array]
    denominator: Callable[[Array], float]


def _ones(policy_tokens_B: Array) -> Array:
    return np.ones(len(policy_tokens_B), np.float64)


def _inverse_length(policy_tokens_B: Array) -> Array:
    return 1.0 / np.maximum(policy_tokens_B, 1).astype(np.float64)


def _n_tokens(policy_tokens_B: Array) -> float:
    return float(np.sum(policy_tokens_B))


def _n_sequences(policy_tokens_B: Array) -> float:
    """Responses with a policy token: an answer of no tokens has no mean to average."""
    return float(np.sum(np.asarray(policy_tokens_B) > 0))


AGGREGATIONS: dict[str, Aggregation] = {
    "token_mean": Aggregation(_ones, _n_tokens),
    "seq_mean_token_mean": Aggregation(_inverse_length, _n_sequences),
    "seq_mean_token_sum": Aggregation(_ones, _n_sequences),
}


def denominator(aggregation: str, policy_tokens_B: Array) -> float:
    """What the accumulated sum is divided by, once. `policy_tokens_B` [B] covers the whole optimizer step."""
    return AGGREGATIONS[aggregation].denominator(np.asarray(policy_tokens_B))
