"""What is added to rewards: punishment of responses that are too long, repeat themselves or cannot be read. numpy
only."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from roll_ray.sample import Reward, TurnRecord

Array = npt.NDArray[Any]


def soft_overlong(tokens_B: Array, limit_tokens: int, cache_tokens: int) -> npt.NDArray[np.float64]:
    """Soft overlong punishment of responses of `tokens_B` tokens, [B], to be added to the reward (DAPO,
    2503.14476, equation 13).

    0 up to `limit_tokens - cache_tokens`, from there falling linearly to -1 at `limit_tokens`, -1 beyond.
    """
    if not 0 < cache_tokens <= limit_tokens:
        raise ValueError(f"a cache of {cache_tokens} tokens is not within 1 and the limit of {limit_tokens}")
    into_cache_B = np.asarray(tokens_B, np.float64) - (limit_tokens - cache_tokens)
    return -np.clip(into_cache_B / cache_tokens, 0.0, 1.0)


def repeated_ngram_share(tokens_T: Array, ngram_tokens: int) -> float:
    """Which share of the n-grams of one response stood in it before: 1 - distinct / all, in [0, 1).

    `tokens_T`: ids of the tokens that the policy wrote. 0 for a response shorter than an n-gram. A penalty is
    its product with a negative weight.
    """
    n_ngrams = len(tokens_T) - ngram_tokens + 1
    if ngram_tokens < 1:
        raise ValueError(f"an n-gram has one token at least, not {ngram_tokens}")
    if n_ngrams < 1:
        return 0.0
    distinct, token_codes = np.unique(tokens_T, return_inverse=True)
    codes = token_codes[:n_ngrams]
    for place in range(1, ngram_tokens):
        # dense codes of the first tokens, times the vocabulary seen, never leave int64
        longer = codes * len(distinct) + token_codes[place : place + n_ngrams]
        codes = np.unique(longer, return_inverse=True)[1]
    return 1.0 - len(np.unique(codes)) / n_ngrams


@dataclass(frozen=True, slots=True)
class Shaping:
    """What is added to a valid reward; a weight, cache or penalty of 0 leaves a part out. `limit_tokens`: of a
    response. `format_penalty`: of each turn that the environment could not read."""

    limit_tokens: int
    overlong_cache_tokens: int = 0
    repetition_weight: float = 0.0
    repetition_ngram: int = 4
    format_penalty: float = 0.0

    def shape(self, reward: Reward, policy_tokens: Array, turns: Sequence[TurnRecord] = ()) -> Reward:
        """The reward with its parts, each also by itself in `parts`; an invalid reward stays as it is.

        Of an episode of several `turns` the longest counts as the response that may be too long."""
        if reward.value is None:
            return reward
        parts: dict[str, float] = {}
        if self.overlong_cache_tokens:
            counts = np.asarray([max((t.end - t.begin for t in turns), default=len(policy_tokens))])
            parts["overlong"] = float(soft_overlong(counts, self.limit_tokens, self.overlong_cache_tokens)[0])
        if self.repetition_weight:
            share = repeated_ngram_share(policy_tokens, self.repetition_ngram)
            parts["repetition"] = -self.repetition_weight * share
        if self.format_penalty and any(turn.malformed for turn in turns):
            parts["format"] = -self.format_penalty * sum(turn.malformed for turn in turns)
        if not parts:
            return reward
        return Reward(
            reward.value + sum(parts.values()),
            reward.reason,
            reward.extracted,
            {"score": reward.value, **reward.parts, **parts},
        )
