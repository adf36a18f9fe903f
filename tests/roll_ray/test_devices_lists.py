"""Device lists as users write them (cases 26 and 27)."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from roll_ray.devices import check_against, engines_of, parse_devices
from roll_ray.errors import SettingsError
from roll_ray.settings import RunSettings
from roll_ray.settings_io import read_settings


@pytest.mark.parametrize("text", ["[0,1,2,3]", "0-3", "list(range(0,4))", "range(4)", "0,1,2-3", "[0-3]"])
def test_all_ways_of_writing_four_devices_mean_the_same(text: str) -> None:
    settings = read_settings(RunSettings, ["model=m", f"devices.rollout={text}"])
    assert settings.devices.rollout == (0, 1, 2, 3)


@pytest.mark.parametrize(
    "text",
    ["[0,0]", "[-1]", "[]", "true", "[true]", "[0, 1.5]", "x", "__import__('os')", "[[0]]", "null", "3-1"],
)
def test_what_names_no_devices_is_an_error(text: str) -> None:
    with pytest.raises(SettingsError, match=r"devices\.rollout"):
        read_settings(RunSettings, ["model=m", f"devices.rollout={text}"])


def test_device_8_of_8_is_an_error_that_names_the_setting() -> None:
    said = check_against((0, 8), 8, "devices.train")
    assert said is not None
    assert "devices.train names device 8 of 8" in said
    assert check_against((0, 7), 8, "devices.train") is None


def test_8_devices_are_not_a_multiple_of_3() -> None:
    with pytest.raises(SettingsError, match="8 is not a multiple of 3"):
        read_settings(RunSettings, ["model=m", "devices.rollout=0-7", "engine.tensor_parallel=3"])


def test_tensor_parallel_2_on_8_devices_gives_4_engines() -> None:
    assert engines_of(tuple(range(8)), 2) == [(0, 1), (2, 3), (4, 5), (6, 7)]


@given(st.lists(st.integers(0, 10_000), min_size=1, unique=True))
def test_a_written_list_is_read_back(devices: list[int]) -> None:
    assert parse_devices(str(devices)) == parse_devices(devices) == tuple(devices)


@given(st.text())
def test_any_text_is_devices_or_a_value_error(text: str) -> None:
    try:
        devices = parse_devices(text)
    except ValueError:
        return
    assert devices
    assert all(isinstance(d, int) and d >= 0 for d in devices)
    assert len(set(devices)) == len(devices)
