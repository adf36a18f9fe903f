"""The supervised warm-up: learns, repeats for a seed, is found again, takes a user's data, ends cleanly."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from recipes import sft_warmup
from recipes.sft_warmup import Settings, main, read_report, warm_up
from roll_ray.errors import RollRayError, SettingsError

RECIPE = Path(sft_warmup.__file__)


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("ROLL_RAY_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


def test_a_few_steps_lower_the_loss_and_are_bit_equal_for_a_seed(tmp_path: Path) -> None:
    short = {"examples_per_step": 8, "warmup_steps": 0}
    one = warm_up(Settings(steps=1, out=tmp_path / "one", **short))
    a = warm_up(Settings(steps=25, out=tmp_path / "a", **short))
    b = warm_up(Settings(steps=25, out=tmp_path / "b", **short))
    other = warm_up(Settings(steps=25, out=tmp_path / "c", seed=1, **short))
    weights = [(folder / "model.safetensors").read_bytes() for folder in (a, b, other)]
    assert weights[0] == weights[1] != weights[2]
    assert read_report(a)["loss"] < read_report(one)["loss"] - 0.5
    assert 0 <= read_report(a)["heldout_accuracy"] <= 1


def test_equal_settings_find_the_model_again_below_the_home(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["steps=1", "examples_per_step=2"]
    assert main(words) == 0
    (folder,) = (home / "models").iterdir()
    made_s = (folder / "model.safetensors").stat().st_mtime_ns
    assert main(words) == 0
    assert (folder / "model.safetensors").stat().st_mtime_ns == made_s
    assert main(["steps=2", "examples_per_step=2"]) == 0
    assert len(list((home / "models").iterdir())) == 2
    first, second, third = capsys.readouterr().out.splitlines()
    assert first.startswith("made: ")
    assert second.startswith(f"made before: {folder}")
    assert third.startswith("made: ")


def test_a_users_rows_of_prompt_and_response_are_learnt(tmp_path: Path) -> None:
    from recipes.greedy import greedy_answers
    from roll_ray.sample import Prompt

    data = tmp_path / "answers.jsonl"
    rows = [{"prompt": f"{i}?", "response": "yes" if i % 2 else "no"} for i in range(10)]
    data.write_text("".join(json.dumps(row) + "\n" for row in rows))
    settings = Settings(
        data=str(data), steps=60, examples_per_step=10, learning_rate=3e-3, out=tmp_path / "m"
    )
    folder = warm_up(settings)
    assert read_report(folder)["heldout_accuracy"] is None
    prompts = [Prompt(id=str(i), text=f"{i}?") for i in range(10)]
    answers = greedy_answers(str(folder), prompts, max_new_tokens=5)
    assert [view.response_text for view in answers] == ["no", "yes"] * 5
    assert {view.finish_reason for view in answers} == {"stop"}


def test_an_unknown_setting_names_the_nearest() -> None:
    with pytest.raises(SettingsError, match="learning_rte, did you mean learning_rate"):
        main(["learning_rte=1"])


def test_a_model_that_is_not_there_is_an_error_and_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(RollRayError, match="there is no model folder"):
        warm_up(Settings(model=str(tmp_path / "none"), out=tmp_path / "m"))
    assert not list(tmp_path.iterdir())


def test_the_settings_are_readable_without_torch() -> None:
    program = "import sys, recipes.sft_warmup; print([m for m in ('torch', 'ray') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_ctrl_c_ends_cleanly_and_leaves_no_half_model(tmp_path: Path) -> None:
    process = subprocess.Popen(
        [sys.executable, str(RECIPE), "steps=100000", "examples_per_step=4", f"out={tmp_path / 'm'}"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    assert process.stderr is not None
    while "step 20 of" not in (line := process.stderr.readline()):
        assert line, "the warm-up ended before it trained"
    process.send_signal(signal.SIGINT)
    started_s = time.monotonic()
    _, rest = process.communicate(timeout=30)
    assert time.monotonic() - started_s < 10
    assert process.returncode == 130
    assert "interrupted" in rest
    assert "Traceback" not in rest
    assert not [p for p in tmp_path.iterdir() if p.name != "home"]
