"""The four directions of grid worlds, and how a response names one."""

from __future__ import annotations

import re

STEPS = {"L": (0, -1), "D": (1, 0), "R": (0, 1), "U": (-1, 0)}
"""Row and column change of each direction, in the order of Gymnasium's FrozenLake."""
WORDS = {"left": "L", "down": "D", "right": "R", "up": "U"}

_WORD = re.compile(rf"\b({'|'.join(WORDS)})\b", re.IGNORECASE)


def direction_in(text: str) -> str | None:
    """L, D, R or U: a response of that one letter, else the last of the words left, down, right, up in it."""
    alone = text.strip()
    if alone.upper() in STEPS:
        return alone.upper()
    words = _WORD.findall(text)
    return WORDS[words[-1].lower()] if words else None
