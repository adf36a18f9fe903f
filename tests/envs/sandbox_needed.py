"""Tests of code rewards need bubblewrap; without it they fail with the line that installs it."""

from __future__ import annotations

import pytest

from envs.sandbox_walls import require_bubblewrap
from roll_ray.errors import RollRayError


@pytest.fixture(scope="session")
def bubblewrap() -> None:
    try:
        require_bubblewrap()
    except RollRayError as error:
        pytest.fail(f"this test needs bubblewrap: {error}", pytrace=False)
