"""Response lengths that do not depend on what is generated, the same on both sides of a comparison.

The end token is ignored on our side and suppressed on TRL's. Equal lengths: every response runs to one limit. A
long tail: each prompt carries a limit of its own, log-normal with the given median, cut at the maximum.
"""

from __future__ import annotations

import numpy as np

TAIL_MEDIAN, TAIL_SIGMA = 8, 1.0


def limits_of(lengths: str, n: int, longest: int) -> list[int]:
    """Token limits of `n` responses: all `longest` for "equal", log-normal up to `longest` for "tail"."""
    if lengths == "equal":
        return [longest] * n
    drawn = np.random.default_rng(0).lognormal(np.log(TAIL_MEDIAN), TAIL_SIGMA, n)
    limits = np.clip(np.round(drawn), 1, longest).astype(int)
    limits[-1] = longest  # the tail is there in every batch
    return [int(x) for x in limits]
