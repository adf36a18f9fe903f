"""A checkpoint is whole or it is not there."""

import errno

import pytest

from roll_ray.checkpoint import CheckpointFolder
from roll_ray.errors import RollRayError


def write(folder: CheckpointFolder, step: int, content: str = "weights") -> None:
    temporary = folder.begin(step)
    (temporary / "trainer" / "weights.bin").write_text(content)
    folder.commit(temporary, step, {"rollouts": {"position": step}})


def test_the_latest_checkpoint_carries_step_and_state(tmp_path):
    folder = CheckpointFolder(tmp_path, keep=2)
    assert folder.latest() == (None, [])
    for step in (1, 2, 3):
        write(folder, step)
    found, damaged = folder.latest()
    assert found is not None
    assert (found.step, found.state, damaged) == (3, {"rollouts": {"position": 3}}, [])
    assert sorted(p.name for p in folder.root.iterdir()) == ["step-000002", "step-000003"]


def test_a_damaged_checkpoint_is_passed_over_and_named(tmp_path):
    folder = CheckpointFolder(tmp_path, keep=2)
    write(folder, 1)
    write(folder, 2)
    (folder.root / "step-000002" / "trainer" / "weights.bin").write_text("weightz")
    found, damaged = folder.latest()
    assert found is not None
    assert found.step == 1
    assert "step-000002" in damaged[0]
    assert "weights.bin" in damaged[0]


def test_a_half_written_checkpoint_is_never_found(tmp_path):
    folder = CheckpointFolder(tmp_path, keep=2)
    write(folder, 1)
    (folder.begin(2) / "trainer" / "weights.bin").write_text("half")
    found, _ = folder.latest()
    assert found is not None
    assert found.step == 1


def test_a_full_disk_is_a_clear_error_and_the_checkpoint_before_it_stays(tmp_path, monkeypatch):
    folder = CheckpointFolder(tmp_path, keep=1)
    write(folder, 1)
    temporary = folder.begin(2)
    (temporary / "trainer" / "weights.bin").write_text("weights")

    def full(path):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("roll_ray.checkpoint._fsync", full)
    with pytest.raises(RollRayError, match="No space left on device") as caught:
        folder.commit(temporary, 2, {})
    assert "untouched" in caught.value.next_step
    assert not temporary.exists()
    assert folder.latest()[0].step == 1
