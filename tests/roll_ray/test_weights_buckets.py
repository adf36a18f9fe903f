"""Buckets: what is read is what was written, byte for byte; damage, missing room and dead owners are seen."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from roll_ray.errors import RollRayError, WeightUpdateError
from roll_ray.weights import bucket_files, folders
from roll_ray.weights.buckets import bucket_bytes, read_tensors, receive_buckets, write_buckets
from roll_ray.weights.folders import remove_run, run_folder, sweep_stale

DTYPES = [torch.float32, torch.bfloat16, torch.float16, torch.int64, torch.bool, torch.uint8]


@pytest.fixture
def root(tmp_path: Path) -> Iterator[str]:
    folder = str(tmp_path / "roll-ray-test")
    yield folder
    remove_run(folder)


def model(seed: int = 0, n: int = 5) -> list[tuple[str, torch.Tensor]]:
    generator = torch.Generator().manual_seed(seed)
    return [(f"layer.{i}.weight", torch.randn(3 + i, 7, generator=generator)) for i in range(n)]


def equal(a: torch.Tensor, b: torch.Tensor) -> bool:
    return a.dtype == b.dtype and a.shape == b.shape and torch.equal(a, b)


@given(
    st.lists(
        st.tuples(st.sampled_from(DTYPES), st.lists(st.integers(0, 5), max_size=3)), min_size=1, max_size=8
    ),
    st.integers(1, 400),
)
def test_any_tensors_come_back_equal_in_order_with_dtype_and_shape(
    kinds: list[tuple[torch.dtype, list[int]]], size: int
) -> None:
    tensors = [(f"t{i}", (torch.randn(shape) * 3).to(dtype)) for i, (dtype, shape) in enumerate(kinds)]
    with tempfile.TemporaryDirectory() as folder:
        manifest = write_buckets(f"{folder}/r", 3, tensors, size)
        back = list(read_tensors(manifest))
        remove_run(f"{folder}/r")
    assert [name for name, _ in back] == [name for name, _ in tensors]
    assert all(equal(a, b) for (_, a), (_, b) in zip(back, tensors, strict=True))


def test_tensors_of_any_layout_are_written_as_they_look(root: str) -> None:
    base = torch.arange(24.0).reshape(4, 6)
    views = [("transposed", base.T), ("strided", base[:, ::2]), ("grad", base.clone().requires_grad_())]
    back = dict(read_tensors(write_buckets(root, 1, iter(views))))
    assert all(equal(back[name], tensor.detach()) for name, tensor in views)


def test_a_generator_is_consumed_one_tensor_at_a_time(root: str) -> None:
    alive = 0

    def stream() -> Iterator[tuple[str, torch.Tensor]]:
        nonlocal alive
        for name, tensor in model():
            written = sum(f.stat().st_size for f in Path(root).glob(".writing*/bucket-*"))
            alive += 1
            assert alive == 1 or written > 0
            yield name, tensor

    assert len(write_buckets(root, 1, stream()).tensors) == 5


def test_files_are_read_only_and_nothing_temporary_stays(root: str) -> None:
    manifest = write_buckets(root, 12, model(), 200)
    assert len(manifest.bucket_sizes) > 1
    assert manifest.folder == f"{root}/v000012"
    for bucket in range(len(manifest.bucket_sizes)):
        assert manifest.bucket_path(bucket).stat().st_mode & 0o777 == 0o444
    assert not list(Path(root).glob(".writing*"))


def test_a_changed_byte_is_refused_with_the_name_of_its_tensor(root: str) -> None:
    manifest = write_buckets(root, 1, model())
    victim = manifest.tensors[3]
    path = manifest.bucket_path(victim.bucket)
    path.chmod(0o600)
    with path.open("r+b") as file:
        file.seek(victim.offset + 5)
        byte = file.read(1)
        file.seek(victim.offset + 5)
        file.write(bytes([byte[0] ^ 1]))
    with pytest.raises(WeightUpdateError, match=r"layer\.3\.weight with other bytes"):
        list(read_tensors(manifest))


def test_the_last_version_stays_and_older_ones_go(root: str) -> None:
    manifests = [write_buckets(root, v, model(v)) for v in range(1, 5)]
    assert [p.name for p in sorted(Path(root).glob("v*"))] == ["v000004"]
    with pytest.raises(WeightUpdateError, match="no longer"):
        list(read_tensors(manifests[2]))
    assert equal(dict(read_tensors(manifests[3]))["layer.0.weight"], model(4)[0][1])


def test_who_has_an_old_version_mapped_keeps_its_values(root: str) -> None:
    mapped = dict(read_tensors(write_buckets(root, 1, model(1))))
    for version in range(2, 6):
        write_buckets(root, version, model(version))
    assert all(equal(mapped[name], tensor) for name, tensor in model(1))


def test_unmapped_pages_are_written_again(root: str) -> None:
    write_buckets(root, 1, model(1))
    inode = Path(root, "v000001/bucket-000.bin").stat().st_ino
    write_buckets(root, 2, model(2))
    manifest = write_buckets(root, 3, model(3, n=2))  # fewer tensors: the file shrinks
    assert manifest.bucket_path(0).stat().st_ino == inode
    assert [name for name, _ in read_tensors(manifest)] == ["layer.0.weight", "layer.1.weight"]


def test_missing_room_names_folder_bytes_and_setting(root: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(folders, "free_bytes", lambda folder: 100)
    with pytest.raises(RollRayError) as caught:
        write_buckets(root, 1, model())
    assert root in str(caught.value)
    assert "700 bytes needed, 100 free" in str(caught.value)
    assert folders.BASE_VARIABLE in str(caught.value)


def test_missing_room_falls_back_where_told_to(
    root: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(folders, "free_bytes", lambda folder: 0 if "roll-ray-test" in str(folder) else 10**9)
    manifest = write_buckets(root, 1, model(), fallback_root=str(tmp_path / "disk"))
    assert manifest.folder.startswith(str(tmp_path / "disk"))
    remove_run(tmp_path / "disk")


def test_a_full_disk_in_mid_write_leaves_the_last_version_and_nothing_else(
    root: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = write_buckets(root, 1, model(1))
    calls = 0

    def full(file: int, data: memoryview, offset: int) -> None:
        nonlocal calls
        calls += 1
        if calls > 2:
            raise OSError(28, "No space left on device")

    monkeypatch.setattr(bucket_files, "_write_all", full)
    with pytest.raises(RollRayError, match="no room"):
        write_buckets(root, 2, iter(model(2)))
    assert sorted(p.name for p in Path(root).iterdir()) == ["owner.lock", "v000001"]
    assert len(list(read_tensors(first))) == 5


def test_buckets_sent_to_another_node_are_the_same_there(root: str, tmp_path: Path) -> None:
    manifest = write_buckets(root, 7, model(), 300)
    there = receive_buckets(manifest, bucket_bytes(manifest), str(tmp_path / "node2"))
    remove_run(root)
    back = dict(read_tensors(there))
    assert there.folder == str(tmp_path / "node2" / "v000007")
    assert all(equal(back[name], tensor) for name, tensor in model())
    with pytest.raises(WeightUpdateError, match="buckets of"):
        receive_buckets(manifest, bucket_bytes(there)[1:], str(tmp_path / "node2"))
    remove_run(tmp_path / "node2")


def test_a_killed_owner_leaves_a_folder_that_the_next_sweep_removes(tmp_path: Path) -> None:
    code = (
        "import torch, time; from roll_ray.weights.folders import run_folder;"
        "from roll_ray.weights.buckets import write_buckets;"
        f"m = write_buckets(run_folder('demo', {str(tmp_path)!r}), 1, [('a', torch.ones(3))]);"
        "print(m.folder, flush=True); time.sleep(60)"
    )
    child = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    assert child.stdout is not None
    folder = Path(child.stdout.readline().strip())
    mine = run_folder("demo", tmp_path)
    assert folder.parent.name == f"roll-ray-demo-{child.pid}"
    assert sweep_stale(tmp_path) == []
    child.send_signal(signal.SIGKILL)
    child.wait()
    child.stdout.close()
    assert sweep_stale(tmp_path) == [folder.parent.name]
    assert os.listdir(tmp_path) == [Path(mine).name]
    remove_run(mine)
    assert os.listdir(tmp_path) == []
