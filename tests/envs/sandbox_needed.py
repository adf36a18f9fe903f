"""What tests of code rewards share: bubblewrap, without which they fail with the line that installs it."""

from __future__ import annotations

from pathlib import Path

import pytest

from envs.sandbox_walls import require_bubblewrap
from roll_ray.errors import RollRayError


@pytest.fixture(scope="session")
def bubblewrap() -> None:
    try:
        require_bubblewrap()
    except RollRayError as error:
        pytest.fail(f"this test needs bubblewrap: {error}", pytrace=False)


def children() -> set[int]:
    """Pids of the processes that this one started and that it has not waited for."""
    found: set[int] = set()
    for task in Path("/proc/self/task").iterdir():
        found |= set(map(int, (task / "children").read_text().split()))
    return found
