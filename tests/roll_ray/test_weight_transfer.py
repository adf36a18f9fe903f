"""Which way weights go follows from the devices; what cannot work is told with both settings."""

import pytest

from roll_ray.errors import SettingsError
from roll_ray.settings import RunSettings
from roll_ray.weight_transfer import transfer_problems, weight_transfer


def settings(rollout, train, asked="auto", tensor_parallel=1, kind="auto", **more):
    return RunSettings(
        model="m",
        devices={"rollout": rollout, "train": train, "kind": kind},
        engine={"tensor_parallel": tensor_parallel, "weight_transfer": asked},
        **more,
    )


@pytest.mark.parametrize(
    ("rollout", "train", "on_gpu", "transfer"),
    [
        ("0-3", "0-3", False, "shm"),
        ("0-3", "4-7", False, "shm"),
        ("0-3", "0-3", True, "ipc"),
        ("2-3", "0-3", True, "ipc"),
        ("0-3", "4-7", True, "nccl"),
        ("0-3", "4-7,0", True, "nccl"),  # not all share: no ipc; rank 0 has its GPU for itself
        ("0-3", "0-1", True, "shm"),  # neither: two engines share no GPU, and rank 0 shares one
    ],
)
def test_auto_is_the_first_that_can_be(rollout, train, on_gpu, transfer):
    assert weight_transfer(settings(rollout, train), on_gpu) == transfer


@pytest.mark.parametrize("asked", ["shm", "ipc"])
def test_what_is_asked_for_and_possible_is_done(asked):
    assert weight_transfer(settings("0-1", "0-1", asked), on_gpu=True) == asked


@pytest.mark.parametrize(
    ("made", "words"),
    [
        (settings("0-1", "0-1", "ipc", kind="cpu"), "weight_transfer=ipc needs GPUs"),
        (settings("0-1", "2-3", "nccl", kind="cpu"), "weight_transfer=nccl needs GPUs"),
        (settings("0-1", "1-2", "ipc"), "whose devices all train too"),
        (settings("0-1", "0-1", "nccl"), "needs the first training device for itself"),
        (settings("0-1", "0-1", tensor_parallel=2, kind="gpu"), "no worker a share of several GPUs"),
    ],
)
def test_a_contradiction_is_one_problem_of_the_settings(made, words):
    (problem,) = made.problems()
    assert words in problem
    on_gpu = made.devices.kind != "cpu"
    with pytest.raises(SettingsError, match=words):
        weight_transfer(made, on_gpu)


def test_what_only_the_machine_decides_waits_for_it():
    made = settings("0-1", "0-1", "ipc", tensor_parallel=2)
    assert made.problems() == []
    assert "needs GPUs" in transfer_problems(made, on_gpu=False)[0]
    assert "share of several GPUs" in transfer_problems(made, on_gpu=True)[0]


def test_a_replayed_run_has_no_engines_to_push_to():
    assert settings("0-1", "5", "ipc", replay="recorded").problems() == []
