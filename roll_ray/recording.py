"""Recorded batches: training without engines, bit-equal each time.

record/step-000001/receipts.json   the cut: every sample's numbers, and which file holds it
record/step-000001/rank-0.npz      the samples that rank 0 trained on
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from roll_ray.actors import Pool
from roll_ray.batch import Batch
from roll_ray.errors import RollRayError
from roll_ray.parts import MiniBatch, Part, Share, share_out, split_by_visit
from roll_ray.receipts import Cut, Receipt, TurnNumbers
from roll_ray.sample import SamplingDistribution, Times
from roll_ray.worker_protocols import TrainerWorker
from schedulers.protocol import SampleId, Visit

_ARRAYS = (
    "attempts_B",
    "offsets",
    "tokens_T",
    "roles_T",
    "logprobs_T",
    "versions_T",
    "rewards_B",
    "truncated_B",
)


def save_batch(path: Path, batch: Batch) -> None:
    """Write a batch as one .npz file; text and numbers that are no array go in as JSON."""
    rest = {
        "ids": batch.ids,
        "sampling": [dataclasses.asdict(s) for s in batch.sampling],
        "domains": batch.domains,
        "reasons": batch.reasons,
        "extracted": batch.extracted,
        "parts": batch.parts,
        "times": [dataclasses.astuple(t) for t in batch.times],
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    arrays: dict[str, Any] = {name: getattr(batch, name) for name in _ARRAYS}
    with path.open("wb") as file:
        np.savez(file, json=np.frombuffer(json.dumps(rest).encode(), np.uint8), **arrays)


def load_batch(path: Path) -> Batch:
    """The inverse of `save_batch`."""
    with np.load(path) as data:
        rest = json.loads(data["json"].tobytes())
        arrays = {name: data[name] for name in _ARRAYS}
    return Batch(
        ids=tuple(_sample_id(i) for i in rest["ids"]),
        sampling=tuple(SamplingDistribution(**s) for s in rest["sampling"]),
        domains=tuple(rest["domains"]),
        reasons=tuple(rest["reasons"]),
        extracted=tuple(rest["extracted"]),
        parts=tuple(rest["parts"]),
        times=tuple(Times(*t) for t in rest["times"]),
        **arrays,
    )


@dataclass(frozen=True, slots=True)
class RecordedBatch:
    """Stands for samples in a recorded file; a trainer rank loads them itself."""

    path: str
    ids: tuple[SampleId, ...]

    def load(self) -> Batch:
        batch = load_batch(Path(self.path))
        position = {sample: i for i, sample in enumerate(batch.ids)}
        return batch.select([position[i] for i in self.ids])


class Recorder:
    """Writes every part that passes through; the ranks that train on it write their own shares."""

    def __init__(self, rollouts: Any, trainers: Pool[TrainerWorker], folder: Path) -> None:
        self.rollouts, self.trainers, self.folder = rollouts, trainers, folder

    def __getattr__(self, name: str) -> Any:
        return getattr(self.rollouts, name)

    async def parts(self, step: int) -> AsyncIterator[Part]:
        async for part in self.rollouts.parts(step):
            await self._write(step, part)
            yield part

    async def _write(self, step: int, part: Part) -> None:
        folder = step_folder(self.folder, step)
        lines: list[dict[str, Any]] = []
        for k, mini_batch in enumerate(part.mini_batches):
            names = [f"mini-{k}-rank-{rank}.npz" for rank in range(len(mini_batch.shares))]
            calls = [
                (str(folder / name), *share.handles)
                for name, share in zip(names, mini_batch.shares, strict=True)
            ]
            await self.trainers.scatter(TrainerWorker.record, calls)
            for name, share in zip(names, mini_batch.shares, strict=True):
                lines += [{**dataclasses.asdict(r), "store": name} for r in share.receipts]
        (folder / "receipts.json").write_text(json.dumps(lines))


class ReplayRollouts:
    """The `Rollouts` of a run without engines: batches come from a recorded folder, on any number of ranks."""

    def __init__(self, folder: Path, mini_batches: int, ranks: int) -> None:
        self.folder, self.mini_batches, self.ranks = folder, mini_batches, ranks
        self.shown: list[tuple[Any, Any]] = []
        self.metrics: dict[str, float] = {}

    async def parts(self, step: int) -> AsyncIterator[Part]:
        folder = step_folder(self.folder, step)
        cut = Cut(step, _read_receipts(folder, step))
        rows = []
        for receipts in split_by_visit(cut.receipts, self.mini_batches):
            shares = tuple(self._share(folder, r) for r in share_out(receipts, self.ranks))
            rows.append(MiniBatch(shares))
        yield Part(cut, tuple(rows))

    async def trained(self, version: int) -> None:
        """Nothing is held that could be released."""

    async def state(self) -> dict[str, Any]:
        return {}

    async def restore(self, state: Mapping[str, Any]) -> None:
        """A recorded step is found by its number: there is no position to restore."""

    def _share(self, folder: Path, receipts: list[Receipt]) -> Share:
        by_file: dict[str, list[SampleId]] = {}
        for r in receipts:
            by_file.setdefault(r.store, []).append(r.sample)
        handles = tuple(RecordedBatch(str(folder / name), tuple(ids)) for name, ids in by_file.items())
        return Share(tuple(receipts), handles)


def step_folder(root: Path, step: int) -> Path:
    return root / f"step-{step:06d}"


def _read_receipts(folder: Path, step: int) -> tuple[Receipt, ...]:
    path = folder / "receipts.json"
    if not path.is_file():
        recorded = sorted(p.name for p in folder.parent.glob("step-*") if (p / "receipts.json").is_file())
        raise RollRayError(
            f"replay: no recorded batch for step {step} in {folder.parent}",
            why=f"recorded there: {recorded[0]} to {recorded[-1]}"
            if recorded
            else "nothing is recorded there",
            next_step=f"set max_steps={len(recorded)}, or record a longer run"
            if recorded
            else "check replay=",
        )
    records = json.loads(path.read_text())
    return tuple(sorted(map(_receipt, records), key=lambda r: r.sample))


def _receipt(record: dict[str, Any]) -> Receipt:
    turns = tuple(TurnNumbers(*turn) for turn in record["turns"])
    return Receipt(**{**record, "sample": _sample_id(record["sample"]), "turns": turns})


def _sample_id(value: Any) -> SampleId:
    (prompt_id, number), index = value
    return SampleId(Visit(prompt_id, number), index)
