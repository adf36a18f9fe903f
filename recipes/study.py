"""A study: many runs of one recipe that differ in a few settings, on engines that are kept from run to run."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Sequence
from pathlib import Path

from recipes.cells import Cell
from recipes.engine_house import EngineHouse, engine_house
from recipes.pipeline import Pipeline
from recipes.study_results import RunOutcome, write_results
from recipes.task import Task
from roll_ray.checkpoint import CheckpointFolder
from roll_ray.cluster.session import session
from roll_ray.controller import RunResult
from roll_ray.errors import SettingsError
from roll_ray.home import has_checkpoint
from roll_ray.settings import RunSettings
from roll_ray.tracking.run_folder import RunRecord, prepare


class Study:
    """Runs every cell with every seed and writes what came out after each run; a step of a study is a run.

    Finished runs are in its checkpoint, and a run that was interrupted goes on from its own.
    """

    def __init__(
        self,
        settings: RunSettings,
        task: Task,
        cells: Sequence[Cell],
        seeds: Sequence[int],
        recipe_file: Path,
    ) -> None:
        assert settings.run_dir is not None
        self.folder, self.name = settings.run_dir, settings.run_name or settings.run_dir.name
        self.settings, self.task, self.recipe_file = settings, task, recipe_file
        # seeds outermost: a study that is ended early has compared all cells with the seeds that it got to
        self.runs = [(cell, seed) for seed in seeds for cell in cells]
        self.interrupt = asyncio.Event()
        for cell in cells:  # what is wrong with one is said before any is run
            self._settings_of(cell, seeds[0])

    async def run(self) -> RunResult:
        """All runs that are not finished; the step of the result is how many are."""
        checkpoints = CheckpointFolder(self.folder, keep=1)
        done = await self._finished(checkpoints)
        with session(self.settings, f"roll-ray/{self.name}") as ray_session:
            async with contextlib.AsyncExitStack() as stack:
                house = await stack.enter_async_context(engine_house(self.settings, ray_session))
                for cell, seed in self.runs:
                    name = _run_name(cell, seed)
                    if name in done:
                        continue
                    print(f"run {len(done) + 1} of {len(self.runs)}: {name}", flush=True)
                    result = await self._run_one(cell, seed, house)
                    if result.step < result.max_steps:
                        return self._result(done)
                    done = [*done, name]
                    _save(checkpoints, done)
                    self._write()
        return self._result(done)

    async def _run_one(self, cell: Cell, seed: int, house: EngineHouse) -> RunResult:
        settings = self._settings_of(cell, seed)
        assert settings.run_dir is not None
        prepare(settings.run_dir, settings, RunRecord.now(self.recipe_file.stem, self.recipe_file))
        pipeline = Pipeline(settings, self.task)
        pipeline.kept, pipeline.interrupt = house, self.interrupt
        return await pipeline.run()

    def _settings_of(self, cell: Cell, seed: int) -> RunSettings:
        """The settings of one run. Raises SettingsError, with the cell's name, where they cannot run together."""
        folder = self.folder / "runs" / _run_name(cell, seed)
        place = {"seed": seed, "run_dir": folder, "run_name": folder.name, "resume": has_checkpoint(folder)}
        settings = cell.of(self.settings).model_copy(update=place)
        if problems := settings.problems():
            raise SettingsError(f"cell {cell.name}: " + "; ".join(problems))
        return settings

    async def _finished(self, checkpoints: CheckpointFolder) -> list[str]:
        checkpoint, _ = checkpoints.latest()
        if checkpoint is not None:
            return list(checkpoint.state["finished"])
        _save(checkpoints, [])  # from now on there is something to resume
        return []

    def _write(self) -> None:
        outcomes = [
            RunOutcome.read(self.folder / "runs" / _run_name(cell, seed), cell.name, seed)
            for cell, seed in self.runs
            if (self.folder / "runs" / _run_name(cell, seed) / "metrics.jsonl").is_file()
        ]
        table, *_ = write_results(self.folder, [o for o in outcomes if o.rows])
        print(f"results so far: {table}", flush=True)

    def _result(self, done: Sequence[str]) -> RunResult:
        return RunResult(len(done), len(self.runs), self.interrupt.is_set(), {}, {})


def _run_name(cell: Cell, seed: int) -> str:
    return f"{cell.name}-seed{seed}"


def _save(checkpoints: CheckpointFolder, done: Sequence[str]) -> None:
    checkpoints.commit(checkpoints.begin(len(done)), len(done), {"finished": list(done)})
