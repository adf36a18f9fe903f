"""Domain weights and the judge's settings: read as words and from files, contradictions named."""

from pathlib import Path

import pytest

from roll_ray.errors import SettingsError
from roll_ray.settings import RunSettings
from roll_ray.settings_io import read_settings


class Settings(RunSettings):
    model: str = "m"


@pytest.mark.parametrize(
    "words",
    [
        ["domain_weights={maths: 0.7, code: 0.3}"],
        ["domain_weights.maths=0.7", "domain_weights.code=0.3"],
        ["@weights.yaml"],
    ],
)
def test_domain_weights_are_written_as_one_mapping_or_name_by_name(
    words: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("weights.yaml").write_text("domain_weights:\n  maths: 0.7\n  code: 0.3\n")
    assert read_settings(Settings, words).domain_weights == {"maths": 0.7, "code": 0.3}


@pytest.mark.parametrize(
    ("word", "message"),
    [
        ("domain_weights.maths=-1", "greater than or equal to 0"),
        ("domain_weights.maths=much", "valid number"),
        ("domain_weights=0.7", "name: number"),
        ("domain_weight.maths=1", "did you mean domain_weights"),
        ("judge.model.name=a", "judge.model is a single value"),
    ],
)
def test_what_is_no_weight_is_refused(word: str, message: str) -> None:
    with pytest.raises(SettingsError, match=message):
        read_settings(Settings, [word])


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["judge.endpoint=http://localhost:1/v1"], "judge.model is not"),
        (["judge.model=m", "judge.timeout_s=30"], "set reward_timeout_s to 90 or more"),
        (["judge.model=m", "judge.devices=0-2", "judge.tensor_parallel=2"], "3 is not a multiple of 2"),
    ],
)
def test_a_judge_that_contradicts_itself_is_refused(words: list[str], message: str) -> None:
    with pytest.raises(SettingsError, match=message):
        read_settings(Settings, words)


def test_without_a_judge_its_other_settings_contradict_nothing() -> None:
    assert read_settings(Settings, ["reward_timeout_s=1"]).judge.model is None
