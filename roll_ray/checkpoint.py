"""Checkpoints: written to a temporary folder, checksummed, fsynced, renamed. One manifest names everything.

checkpoints/step-000025/manifest.json   step, version, states, and the xxh3 of every file
checkpoints/step-000025/trainer/...     what the trainer backend wrote
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import xxhash

from roll_ray.errors import RollRayError

FORMAT = 1
_READ_BYTES = 8 << 20


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A complete checkpoint on disk: the run as it was after training step `step`."""

    folder: Path
    step: int
    state: Mapping[str, Any]

    @property
    def trainer_folder(self) -> Path:
        return self.folder / "trainer"


class CheckpointFolder:
    """The checkpoints of one run. A crash at any instant leaves the last complete one usable."""

    def __init__(self, run_dir: Path, keep: int) -> None:
        self.root, self.keep = run_dir / "checkpoints", keep

    def begin(self, step: int) -> Path:
        """An empty temporary folder, with `trainer/` in it, for the checkpoint of `step`."""
        temporary = self.root / f".writing-{step:06d}"
        try:
            shutil.rmtree(temporary, ignore_errors=True)
            (temporary / "trainer").mkdir(parents=True)
        except OSError as error:
            raise disk_error(temporary, error) from error
        return temporary

    def commit(self, temporary: Path, step: int, state: Mapping[str, Any]) -> Checkpoint:
        """Seal what was written below `temporary`; older checkpoints beyond `keep` go away afterwards."""
        final = self.root / f"step-{step:06d}"
        try:
            files = {str(p.relative_to(temporary)): _hash(p) for p in _files(temporary)}
            manifest = {"format": FORMAT, "step": step, "state": dict(state), "files": files}
            (temporary / "manifest.json").write_text(json.dumps(manifest, indent=1))
            for path in [*_files(temporary), *(p for p in temporary.rglob("*") if p.is_dir()), temporary]:
                _fsync(path)
            if final.exists():
                shutil.rmtree(final)
            temporary.rename(final)
            _fsync(self.root)
        except OSError as error:
            self.abandon(temporary)
            raise disk_error(temporary, error) from error
        for old in self._complete()[: -self.keep]:
            shutil.rmtree(old, ignore_errors=True)
        return Checkpoint(final, step, state)

    def abandon(self, temporary: Path) -> None:
        """Remove a checkpoint that could not be finished, so that it takes no room."""
        shutil.rmtree(temporary, ignore_errors=True)

    def latest(self) -> tuple[Checkpoint | None, list[str]]:
        """The newest checkpoint whose files are all as they were written, and a sentence for each damaged one."""
        damaged: list[str] = []
        for folder in reversed(self._complete()):
            problem = _problem(folder)
            if problem is None:
                manifest = json.loads((folder / "manifest.json").read_text())
                return Checkpoint(folder, int(manifest["step"]), manifest["state"]), damaged
            damaged.append(f"checkpoint {folder} is damaged and was passed over: {problem}")
        return None, damaged

    def _complete(self) -> list[Path]:
        return sorted(p for p in self.root.glob("step-*") if p.is_dir())


def _problem(folder: Path) -> str | None:
    try:
        manifest = json.loads((folder / "manifest.json").read_text())
    except (OSError, ValueError) as error:
        return f"its manifest cannot be read ({error})"
    if manifest.get("format") != FORMAT:
        return f"its format is {manifest.get('format')}, this version reads {FORMAT}"
    for name, digest in manifest["files"].items():
        path = folder / name
        if not path.is_file():
            return f"{name} is missing"
        if _hash(path) != digest:
            return f"{name} is not as it was written"
    return None


def _files(folder: Path) -> list[Path]:
    return sorted(p for p in folder.rglob("*") if p.is_file())


def _hash(path: Path) -> str:
    digest = xxhash.xxh3_64()
    with path.open("rb") as file:
        while chunk := file.read(_READ_BYTES):
            digest.update(chunk)
    return digest.hexdigest()


def _fsync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def disk_error(folder: Path, error: BaseException) -> RollRayError:
    """A checkpoint below `folder` that could not be written: what the system said, and the room that is left."""
    try:
        free = f"{shutil.disk_usage(folder.parent).free / 2**20:.0f} MiB are free there"
    except OSError:
        free = "the folder is not there"
    return RollRayError(
        f"a checkpoint could not be written below {folder.parent}",
        why=f"{getattr(error, 'strerror', None) or str(error).splitlines()[0]}; {free}",
        next_step="free some room and `roll-ray resume` the run: the checkpoints before this one are untouched",
    )
