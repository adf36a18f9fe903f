"""`roll-ray simulate`: what it writes, what it refuses, and that the experiments compare what they say."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from recipes import simulate, simulate_beyond
from recipes.simulate_paper import ROLLPACKER, SIZES, STRONG, VERL, paper_setup, steps_of_periods
from roll_ray.errors import RollRayError
from schedulers.simulator.records import mean
from schedulers.simulator.workload import LengthMix

SMALL = ["devices=8", "prompts_per_step=16", "samples_per_prompt=4", "steps=5", "lengths.longest_tokens=2000"]


def test_a_simulation_of_ones_own_writes_table_timeline_and_plot_without_torch_or_ray(tmp_path: Path) -> None:
    program = (
        "import sys; from recipes.cli import main; code = main(['simulate', *sys.argv[1:]]);"
        "print([m for m in ('torch', 'ray', 'vllm') if m in sys.modules]); sys.exit(code)"
    )
    command = [sys.executable, "-c", program, *SMALL, f"out={tmp_path / 'out'}"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "events in" in done.stdout
    assert done.stdout.splitlines()[-1] == "[]"
    table = (tmp_path / "out" / "steps.md").read_text()
    assert "| short | 4 |" in table
    assert "| long | 1 |" in table
    text = (tmp_path / "out" / "timeline.json").read_text()
    timeline = json.loads(text if text.rstrip().endswith("]") else text.rstrip().rstrip(",") + "]")
    assert {"step 1 (short)", "rollout", "train"} <= {event.get("name") for event in timeline}
    assert "plotly" in (tmp_path / "out" / "utilisation.html").read_text()


@pytest.mark.parametrize(
    ("words", "what"),
    [
        (["nonsense"], "simulate nonsense is not known"),
        (["paper", "devices=8"], "an experiment is named alone"),
        (["model=gpt-9"], "model=gpt-9 has no profile"),
        (["model=qwen2.5-32b", "tensor_parallel=1"], "does not fit on 1 H800"),
        (["devices=6", "tensor_parallel=4"], "does not fit 6 devices"),
        (["steps=0"], "steps"),
        (["eta=2"], "eta"),
    ],
)
def test_what_cannot_be_simulated_is_said(words: list[str], what: str) -> None:
    with pytest.raises(RollRayError) as refused:
        simulate.simulate(words)
    assert what in str(refused.value)


def test_a_measured_engine_takes_the_place_of_the_profile() -> None:
    slow, fast = (
        simulate.load_settings(
            simulate.SimulationSettings,  # type: ignore[type-var]  # not a run's settings
            [*SMALL, "scheduler=synchronous", f"engine.base_s={base_s}", "engine.kv_tokens=100000"],
        )
        .simulation()
        .run(1)
        for base_s in (0.02, 0.01)
    )
    assert slow[0].rollout_s == pytest.approx(2 * fast[0].rollout_s, rel=1e-6)


@pytest.mark.parametrize("size", SIZES)
def test_each_mechanism_of_the_paper_shortens_its_own_phase(size: str) -> None:
    setup = paper_setup(size)
    setup = replace(
        setup,
        devices=2 * setup.training_replica_devices,
        prompts_per_step=4 * setup.training_replica_devices,
        lengths=LengthMix(4_096),
    )
    after, strong, packed = (system.run(setup, 5) for system in (VERL, STRONG, ROLLPACKER))
    assert mean(strong, "reward_s") < mean(after, "reward_s")
    assert mean(strong, "train_s") < mean(after, "train_s")
    assert mean(packed, "rollout_s") < mean(strong, "rollout_s")
    assert [r.kind for r in packed] == ["short"] * 4 + ["long"]


def test_sensitivity_takes_whole_periods() -> None:
    assert [steps_of_periods(eta, 18) for eta in (1, 1.125, 1.25, 1.5)] == [18, 18, 20, 18]


def test_the_ladder_is_compared_on_whole_periods_and_nothing_is_faster_than_the_bound() -> None:
    setup = replace(paper_setup("7B"), devices=4, prompts_per_step=16, lengths=LengthMix(2_048))
    pair = simulate_beyond.compare(setup)
    assert pair.bound_s < pair.unchosen_bound_s < min(pair.papers_s, pair.ladder_s)
    assert 0.5 < pair.papers_kept < pair.ladder_kept < 1
