"""Who sits where follows from two device lists; what does not fit is an error that names the numbers."""

from fractions import Fraction

import pytest

from roll_ray.errors import SettingsError
from roll_ray.placement import missing_devices, place
from roll_ray.settings import RunSettings


def placed(rollout, train, tensor_parallel=1, **more):
    return place(
        RunSettings(
            model="m",
            devices={"rollout": rollout, "train": train},
            engine={"tensor_parallel": tensor_parallel},
            **more,
        )
    )


def test_colocated_roles_share_a_whole_device_in_equal_parts():
    placement = placed([0, 1], [0, 1])
    assert placement.bundles == (1, 1)
    assert [(s.name, s.bundle, s.share) for s in placement.seats] == [
        ("rollout-0", 0, Fraction(1, 2)),
        ("rollout-1", 1, Fraction(1, 2)),
        ("actor-train-0", 0, Fraction(1, 2)),
        ("actor-train-1", 1, Fraction(1, 2)),
    ]


def test_disjoint_roles_own_their_devices():
    placement = placed("0-1", "2-3")
    assert placement.bundles == (1, 1, 1, 1)
    assert {s.share for s in placement.seats} == {Fraction(1)}


def test_tensor_parallel_2_on_8_devices_makes_4_engines():
    placement = placed("0-7", "0-7", tensor_parallel=2)
    assert [s.devices for s in placement.of("rollout")] == [(0, 1), (2, 3), (4, 5), (6, 7)]
    assert placement.bundles == (2, 2, 2, 2)
    assert [s.bundle for s in placement.of("actor-train")] == [0, 0, 1, 1, 2, 2, 3, 3]


def test_8_devices_with_tensor_parallel_3_are_refused_with_both_numbers():
    with pytest.raises(SettingsError, match="8 is not a multiple of 3"):
        placed("0-7", "0-7", tensor_parallel=3)


def test_a_replayed_run_seats_no_engine():
    assert {s.role for s in placed([0, 1], [0, 1], replay="recorded").seats} == {"actor-train"}


def test_device_8_of_8_does_not_exist():
    settings = RunSettings(model="m", devices={"rollout": [7, 8], "train": [0]})
    assert missing_devices(settings, 8) == [
        "devices.rollout names device 8 of 8: devices are numbered 0 to 7; name existing ones or start Ray with more"
    ]


def shares(placement, role):
    return [(s.devices, s.bundle, s.share) for s in placement.of(role)]


def test_a_judge_shares_the_device_of_an_engine_and_a_trainer_in_thirds():
    placement = placed([0, 1], [0, 1], judge={"model": "j", "devices": [1]})
    assert placement.bundles == (1, 1)
    assert shares(placement, "judge") == [((1,), 1, Fraction(1, 3))]
    assert [s.share for s in placement.of("rollout")] == [Fraction(1, 2), Fraction(1, 3)]
    assert [s.share for s in placement.of("actor-train")] == [Fraction(1, 2), Fraction(1, 3)]


def test_a_judge_on_devices_of_its_own_has_them_whole_and_trainers_may_join_it():
    placement = placed([0, 1], [0, 1], judge={"model": "j", "devices": "2-3", "tensor_parallel": 2})
    assert placement.bundles == (1, 1, 2)
    assert shares(placement, "judge") == [((2, 3), 2, Fraction(1))]
    placement = placed([0], [1, 2], judge={"model": "j", "devices": "1-2", "tensor_parallel": 2})
    assert placement.bundles == (1, 2)
    assert {s.share for s in placement.of("actor-train")} == {Fraction(1, 2)}


def test_two_judges_on_one_tensor_parallel_engine_take_no_more_than_there_is():
    placement = placed([0, 1], [0, 1], 2, judge={"model": "j", "devices": "0-1"})
    assert placement.bundles == (2,)
    assert sum(len(s.devices) * s.share for s in placement.seats) == 2


def test_a_judge_across_two_engines_is_refused():
    with pytest.raises(SettingsError, match=r"devices \[1, 2\] would lie across several rollout engines"):
        placed("0-3", [0], judge={"model": "j", "devices": "1-2", "tensor_parallel": 2})


def test_a_judge_behind_an_endpoint_or_in_a_replayed_run_has_no_seat(tmp_path):
    assert not placed([0], [0], judge={"model": "j", "endpoint": "http://h/v1"}).of("judge")
    assert not placed([0], [0], judge={"model": "j"}, replay=tmp_path).of("judge")


def test_a_judge_on_a_device_that_is_not_there_is_said():
    settings = RunSettings(model="m", judge={"model": "j", "devices": [7]})
    (sentence,) = missing_devices(settings, 2)
    assert sentence.startswith("judge.devices names device 7 of 2")
