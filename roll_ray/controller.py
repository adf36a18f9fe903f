"""The loop of a run. It knows its parts by protocols; it has no branch for a backend, a transport, an
algorithm or a scheduler. Weight version s is the policy after training step s; version 0 is where it began.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any, Protocol

from roll_ray.checkpoint import Checkpoint, CheckpointFolder
from roll_ray.interruption import Interrupted, unless_interrupted
from roll_ray.parts import MiniBatch, Part


class Rollouts(Protocol):
    """Where batches come from: engines, or a record of them."""

    def parts(self, step: int) -> AsyncIterator[Part]: ...

    async def trained(self, version: int) -> None: ...

    async def state(self) -> dict[str, Any]: ...

    async def restore(self, state: Mapping[str, Any]) -> None: ...


class Trainer(Protocol):
    """The policy trainer, all ranks as one."""

    async def accumulate(self, mini_batch: MiniBatch) -> None: ...

    async def step(self, denominator: float) -> None: ...

    async def save(self, folder: str) -> None: ...

    async def load(self, folder: str) -> None: ...


class Tracker(Protocol):
    """Where a run is written down and shown."""

    def phase(self, name: str) -> AbstractContextManager[None]: ...

    def begun(self, step: int, evaluation: Mapping[str, float]) -> None: ...

    def step_done(self, step: int, part: Part, evaluation: Mapping[str, float]) -> None: ...

    def interrupted(self, step: int) -> None: ...


@dataclass(frozen=True, slots=True)
class RunResult:
    """How a run ended: its last finished step and the last evaluation."""

    step: int
    max_steps: int
    interrupted: bool
    first_evaluation: Mapping[str, float]
    last_evaluation: Mapping[str, float]


@dataclass(slots=True)
class Controller:
    """One training run over pools of workers."""

    max_steps: int
    rollouts: Rollouts
    score: Callable[[Part], Awaitable[list[MiniBatch]]]
    trainer: Trainer
    publish: Callable[[int], Awaitable[None]]
    evaluate: Callable[[int], Awaitable[Mapping[str, float]]]
    checkpoints: CheckpointFolder
    checkpoint_every_steps: int
    tracker: Tracker
    step: int = 0
    interrupt: asyncio.Event = field(default_factory=asyncio.Event)
    _state: dict[str, Any] = field(default_factory=dict)
    _tried_to_save: int = -1
    _between_steps: bool = False

    async def run(self, resume_from: Checkpoint | None = None) -> RunResult:
        """Train from the checkpoint, or from the start, to `max_steps` or until `interrupt` is set.

        Whatever ends the run, its last finished step is saved if the trainer can still do it."""
        first: Mapping[str, float] = {}
        last: Mapping[str, float] = {}
        try:
            await self._begin(resume_from)
            first = last = await self._evaluate()
            self.tracker.begun(self.step, first)
            while self.step < self.max_steps:
                part = await self._train(self.step + 1)
                evaluation: Mapping[str, float] = {}
                try:
                    evaluation = await self._evaluate()
                finally:
                    self.tracker.step_done(self.step, part, evaluation)
                last = evaluation or last
                if self.checkpoint_every_steps and self.step % self.checkpoint_every_steps == 0:
                    await self._checkpoint()
        except Interrupted:
            self.tracker.interrupted(self.step)
        except Exception as error:
            await self._save_before_ending(error)
            raise
        await self._checkpoint()
        return RunResult(self.step, self.max_steps, self.interrupt.is_set(), first, last)

    async def _begin(self, resume_from: Checkpoint | None) -> None:
        if resume_from is not None:
            await self.trainer.load(str(resume_from.trainer_folder))
            await self.rollouts.restore(resume_from.state["rollouts"])
            self.step = self._tried_to_save = resume_from.step
        self._between_steps = True
        self._state = {"rollouts": await self.rollouts.state()}
        with self.tracker.phase("update"):
            await unless_interrupted(self.interrupt, self.publish(self.step))

    async def _train(self, step: int) -> Part:
        denominator = 0.0
        async for part in self._parts(step):
            with self.tracker.phase("train"):
                for mini_batch in await self.score(part):
                    await self.trainer.accumulate(mini_batch)
                    denominator += mini_batch.denominator
                    if mini_batch.closes_step:
                        self._between_steps = False
                        await self.trainer.step(denominator)
                        denominator = 0.0
        with self.tracker.phase("update"):
            await self.publish(step)
        await self.rollouts.trained(step)
        self.step, self._state = step, {"rollouts": await self.rollouts.state()}
        self._between_steps = True
        return part

    async def _parts(self, step: int) -> AsyncIterator[Part]:
        parts = self.rollouts.parts(step)
        while True:
            with self.tracker.phase("rollout"):
                if self._between_steps:
                    part = await unless_interrupted(self.interrupt, anext(parts, None))
                else:  # a step that has begun to change the weights is finished
                    part = await anext(parts, None)
            if part is None:
                return
            yield part

    async def _evaluate(self) -> Mapping[str, float]:
        with self.tracker.phase("evaluation"):
            return await unless_interrupted(self.interrupt, self.evaluate(self.step))

    async def _checkpoint(self) -> None:
        """Save the run as it was after the last finished step. Each step is tried once."""
        if self.step in (0, self._tried_to_save):
            return
        self._tried_to_save = self.step
        with self.tracker.phase("checkpoint"):
            temporary = self.checkpoints.begin(self.step)
            try:
                await self.trainer.save(str(temporary / "trainer"))
            except BaseException:
                self.checkpoints.abandon(temporary)
                raise
            self.checkpoints.commit(temporary, self.step, self._state)

    async def _save_before_ending(self, error: Exception) -> None:
        """The fault that ends the run stays the one that is raised, whatever becomes of this."""
        if not self._between_steps:
            return
        try:
            await self._checkpoint()
        except Exception as second:
            error.add_note(f"step {self.step} could not be saved: {second}")
