"""Response lengths that do not depend on what is generated, the same on both sides of a comparison.

Equal lengths: no token ends a response (the model folder is copied with an end token that is never drawn) and
every response runs to its limit. A long tail: each prompt carries a limit of its own, log-normal with the
given median, cut at the maximum; its responses end there.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path

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


def endless(model: Path, folder: Path, end_token_id: int) -> Path:
    """A copy of `model` whose end token is `end_token_id`, one that the model never writes."""
    if not folder.exists():
        shutil.copytree(model, folder)
        for name in ("config.json", "generation_config.json"):
            path = folder / name
            if path.exists():
                path.write_text(json.dumps({**json.loads(path.read_text()), "eos_token_id": end_token_id}))
    return folder
