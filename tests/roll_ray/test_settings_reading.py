"""Settings: files, then words; what is wrong is said with the setting, the value and a legal one."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import Field

from roll_ray.errors import SettingsError
from roll_ray.settings import EvaluationSettings, RunSettings, SamplingSettings
from roll_ray.settings_io import default_values, flat, load_settings, read_settings
from roll_ray.settings_values import parse_value, read_yaml, to_yaml


class Settings(RunSettings):
    model: str = "m"
    sampling: SamplingSettings = Field(default_factory=lambda: SamplingSettings(max_new_tokens=24))
    evaluation: EvaluationSettings = Field(default_factory=EvaluationSettings)


def message(*words: str) -> str:
    with pytest.raises(SettingsError) as caught:
        read_settings(Settings, words)
    return str(caught.value)


def test_a_misspelt_setting_is_an_error_that_names_the_nearest_one() -> None:
    assert message("adv_estmator=grpo").splitlines()[:2] == [
        "unknown setting adv_estmator, did you mean adv_estimator?",
        "  why:  the command line has adv_estmator=grpo",
    ]


def test_a_misspelt_setting_in_a_file_is_the_same_error_with_its_line(tmp_path: Path) -> None:
    (tmp_path / "s.yaml").write_text("seed: 1\nadv_estmator: grpo\n")
    assert message(f"@{tmp_path}/s.yaml").splitlines()[:2] == [
        "unknown setting adv_estmator, did you mean adv_estimator?",
        f"  why:  it stands in {tmp_path}/s.yaml, line 2",
    ]


def error(*words: str) -> SettingsError:
    with pytest.raises(SettingsError) as caught:
        read_settings(Settings, words)
    return caught.value


@pytest.mark.parametrize(
    ("word", "legal"),
    [
        ("aggregation=mean", "`token_mean` or `seq_mean_token_mean` or `seq_mean_token_sum`"),
        ("learning_rate=-1", "learning_rate is number >= 0, for example learning_rate=1e-06 (the default)"),
        ("max_steps=ten", "integer > 0"),
        ("sampling.top_p=2", "number > 0, <= 1"),
        ("devices.rollout=x", "list of integer, for example devices.rollout=[0,1]"),
        ("max_steps=true", "integer > 0"),
        ("deterministic=7", "true or false"),
    ],
)
def test_an_illegal_value_is_told_with_what_was_given_where_and_what_is_legal(
    word: str, legal: str, tmp_path: Path
) -> None:
    name, _, value = word.partition("=")
    said = error(word)
    assert said.what.startswith(f"{word}: ")
    assert said.why == f"the command line has {word}"
    assert legal in said.next_step
    group, _, leaf = name.rpartition(".")
    file = tmp_path / "s.yaml"
    file.write_text(f"seed: 1\n{group}:\n  {leaf}: {value}\n" if group else f"seed: 1\n\n{name}: {value}\n")
    said = error(f"@{file}")
    assert said.what.startswith(f"{word}: ")
    assert said.why == f"it stands in {file}, line 3"
    assert legal in said.next_step


def test_a_word_that_wins_over_a_file_is_the_one_that_is_named(tmp_path: Path) -> None:
    (tmp_path / "s.yaml").write_text("max_steps: 3\n")
    assert error(f"@{tmp_path}/s.yaml", "max_steps=0").why == "the command line has max_steps=0"


def test_of_several_faults_each_has_its_place_and_what_is_legal(tmp_path: Path) -> None:
    (tmp_path / "s.yaml").write_text("seed: -1\n")
    said = message(f"@{tmp_path}/s.yaml", "max_steps=0")
    assert said.startswith("2 settings are wrong")
    for words in (f"why:  it stands in {tmp_path}/s.yaml, line 1", "why:  the command line has max_steps=0"):
        assert words in said
    assert said.count("next: ") == 2


def test_a_name_without_its_group_is_told_the_group() -> None:
    assert message("tensor_parallel=2").startswith(
        "unknown setting tensor_parallel, did you mean engine.tensor_parallel or judge.tensor_parallel?\n"
    )
    assert "did you mean evaluation.every_steps?" in message("evaluation.every_stps=3")


def test_a_name_like_no_other_is_told_where_the_names_are() -> None:
    assert "docs/settings.md" in message("zzz=1")


def test_a_name_below_a_single_value_is_an_error() -> None:
    assert "model is a single value" in message("model=m", "model.name=x")


@pytest.mark.parametrize("text", ["1e-6", "1E-6", "0.000001", "1.0e-06", ".000001"])
def test_1e_minus_6_is_a_number_on_the_command_line_and_in_a_file(text: str, tmp_path: Path) -> None:
    (tmp_path / "s.yaml").write_text(f"learning_rate: {text}\n")
    assert read_settings(Settings, [f"learning_rate={text}"]).learning_rate == 0.000001
    assert read_settings(Settings, [], tmp_path / "s.yaml").learning_rate == 0.000001


@pytest.mark.parametrize("value", ["0", "-1"])
def test_max_steps_below_one_is_an_error(value: str) -> None:
    said = message(f"max_steps={value}")
    assert said.startswith(f"max_steps={value}: ")
    assert "max_steps=300" in said, "a legal value is named"


@pytest.mark.parametrize("value", ["true", "nan", ".inf", "ten", "[3]", ""])
def test_what_is_not_a_number_is_not_taken_for_one(value: str) -> None:
    assert message(f"learning_rate={value}").startswith("learning_rate=")


def test_all_that_is_wrong_is_said_at_once() -> None:
    said = message("max_steps=0", "adv_estmator=grpo", "loss=foo", "data=[1")
    assert said.startswith("4 settings are wrong")
    for word in ("max_steps=0", "did you mean adv_estimator?", "loss=foo: should be one of cispo", "data=[1"):
        assert word in said


def test_contradictions_name_both_settings() -> None:
    said = message("prompts_per_step=7", "optimizer_steps_per_batch=2")
    assert "prompts_per_step=7" in said
    assert "optimizer_steps_per_batch=2" in said


@pytest.mark.parametrize(
    "word", ["evaluation.sampling.stop_token_ids=[5]", "evaluation.sampling.ignore_eos=true"]
)
def test_what_evaluation_cannot_have_of_its_own_is_refused_and_not_ignored(word: str) -> None:
    assert "hold for both" in message(word)


def test_contradictions_do_not_keep_plan_from_showing_the_settings() -> None:
    settings = load_settings(Settings, ["prompts_per_step=7", "optimizer_steps_per_batch=2"])
    assert len(settings.problems()) == 1


def test_a_word_without_an_equals_sign_shows_the_form() -> None:
    assert "name=value" in message("max_steps")
    assert "prompts_per_step=8" in message("--resume")


def test_a_setting_given_twice_is_an_error() -> None:
    assert "given twice" in message("max_steps=3", "max_steps=4")


def test_words_win_over_files_and_later_files_over_earlier_ones(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text("max_steps: 1\nseed: 1\nsampling:\n  temperature: 0.5\n")
    (tmp_path / "b.yaml").write_text("seed: 2\n")
    settings = read_settings(
        Settings, ["max_steps=9", f"@{tmp_path}/a.yaml", f"settings={tmp_path}/b.yaml"], defaults={"seed": 7}
    )
    assert (settings.max_steps, settings.seed, settings.sampling.temperature) == (9, 2, 0.5)


def test_setting_one_value_of_a_group_keeps_the_recipes_other_values() -> None:
    settings = read_settings(Settings, ["sampling.temperature=0.6", "evaluation.sampling.top_p=0.9"])
    assert settings.sampling.max_new_tokens == 24
    assert settings.evaluation.sampling.temperature == 0.0, "evaluation stays greedy"


def test_text_that_looks_like_a_number_is_text_where_text_is_wanted() -> None:
    settings = read_settings(Settings, ["run_name=007", "model=1e3", "run_dir=12", "data=true"])
    assert (settings.run_name, settings.model, str(settings.run_dir)) == ("007", "1e3", "12")
    assert settings.data == "true"


def test_a_group_set_to_a_value_is_an_error_that_shows_how() -> None:
    assert "sampling.temperature=..." in message("sampling=3")


def test_a_required_setting_is_asked_for() -> None:
    with pytest.raises(SettingsError, match="model is not set"):
        read_settings(RunSettings, [])


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ("a: [1\n", "line 2"),
        ("seed: 1\nseed: 2\n", "seed is given twice"),
        ("- 1\n", "does not hold settings"),
    ],
)
def test_a_broken_file_is_named_with_its_fault(text: str, place: str, tmp_path: Path) -> None:
    (tmp_path / "s.yaml").write_text(text)
    said = message(f"@{tmp_path}/s.yaml")
    assert str(tmp_path / "s.yaml") in said
    assert place in said


def test_a_missing_file_is_named() -> None:
    assert "/nowhere/s.yaml" in message("@/nowhere/s.yaml")


def test_yaml_1_1_surprises_stay_text() -> None:
    assert [parse_value(t) for t in ("no", "on", "1:30", "0x10", "2026-01-01")] == [
        "no",
        "on",
        "1:30",
        "0x10",
        "2026-01-01",
    ]


plain = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False)
    | st.text()
    | st.sampled_from(["1e-6", "no", "010", "0-3", "null", "~", "", "1:30", "true", "=", "<<"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(min_size=1), inner, max_size=3),
    max_leaves=8,
)


@given(st.dictionaries(st.text(min_size=1), plain, max_size=4))
def test_settings_written_as_yaml_are_read_back_as_they_were(data: dict[str, object]) -> None:
    import yaml

    from roll_ray.settings_values import _CoreSchemaLoader

    assert (yaml.load(to_yaml(data), _CoreSchemaLoader) or {}) == data


def test_resolved_settings_read_back_equal(tmp_path: Path) -> None:
    settings = read_settings(Settings, ["learning_rate=1e-6", "run_name=1e3", "devices.rollout=0-3"])
    (tmp_path / "s.yaml").write_text(to_yaml(settings.plain()))
    assert read_settings(Settings, [], tmp_path / "s.yaml") == settings
    assert read_yaml(tmp_path / "s.yaml")["learning_rate"] == 1e-6


def test_every_setting_has_a_meaning_and_every_default_is_legal() -> None:
    from roll_ray.settings_io import dotted_fields

    assert [name for name, info in dotted_fields(RunSettings) if not info.description] == []
    assert flat(Settings().plain()) == default_values(Settings)


def test_the_settings_page_is_current() -> None:
    from roll_ray.settings_doc import document

    page = Path(__file__).parents[2] / "docs" / "settings.md"
    assert page.read_text() == document(), "run `make docs`"
