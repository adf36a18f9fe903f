"""The programs in docs/environments.md do what the guide says."""

from __future__ import annotations

import asyncio
import itertools
import re
from pathlib import Path
from typing import Any

import pytest

from envs.scripted import Played, Policy, play_scripted, text_of
from envs.task import Observation
from roll_ray.sample import Reward

GUIDE = Path(__file__).parents[2] / "docs" / "environments.md"


@pytest.fixture(scope="module")
def programs() -> list[str]:
    return re.findall(r"```python\n(.*?)```", GUIDE.read_text(), re.DOTALL)


def test_the_environment_of_the_guide_is_some_30_lines_and_is_won_by_who_knows_how(
    programs: list[str],
) -> None:
    assert len(programs[0].strip().splitlines()) <= 40
    module: dict[str, Any] = {}
    exec(programs[0], module)

    def play(n: int, policy: Policy) -> Played:
        prompt = next(p for p in module["prompts"](range(1000)) if p.info["matches"] == n)
        return asyncio.run(play_scripted(module["Nim"](), prompt, policy))

    def able(observation: Observation) -> str:
        return str(int(re.findall(r"([0-9]+) (?:matches|are left)", text_of(observation))[-1]) % 4 or 1)

    for n in (5, 6, 7, 17):
        won = play(n, able)
        assert won.last.reward == Reward(1.0, "took the last match")
        assert won.results_N[0].state == str(n)
    assert play(8, able).last.reward == Reward(0.0, "the other took the last match")
    answers = itertools.chain(["none", "4", "2"], itertools.cycle("321"))
    told = play(6, lambda _: next(answers))
    assert [r.info.get("malformed", False) for r in told.results_N[:3]] == [True, True, False]
    assert text_of(told.observations_N[2]) == "Answer with 1, 2 or 3. 6 are left."


def test_the_other_programs_of_the_guide_run(programs: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    module: dict[str, Any] = {}
    exec(programs[0] + programs[1], module)
    assert "matches. We take 1 to 3" in capsys.readouterr().out
    exec(programs[2], {})
