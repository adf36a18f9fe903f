"""The pipeline that recipes hand over to: workers on their seats, the controller's parts, one run.

    Pipeline(settings, Task(train, heldout, rewards={"default": my_reward})).run()

A recipe says what is trained on (`Task`) and which rules it changes (`Rules`); the rest is here.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Sequence
from pathlib import Path
from typing import Any

from recipes.checks import check_before_start
from recipes.engine_house import EngineHouse
from recipes.judges import judge_problems
from recipes.rules import Rules, default_rules
from recipes.staff import Staff, staffed
from recipes.task import Task
from roll_ray.checkpoint import Checkpoint, CheckpointFolder
from roll_ray.cluster.metrics_sink import RayMetricsSink
from roll_ray.cluster.objects import RayObjectStore
from roll_ray.cluster.session import session
from roll_ray.controller import Controller, RunResult
from roll_ray.data_stream import prompt_stream
from roll_ray.engines import EnginePool
from roll_ray.errors import RollRayError, SettingsError
from roll_ray.evaluation import Evaluator, in_turns
from roll_ray.interruption import Interrupted, cancelled, unless_interrupted
from roll_ray.parts import MiniBatch, Part
from roll_ray.placement import missing_devices
from roll_ray.recording import Recorder, ReplayRollouts
from roll_ray.rollouts import LiveRollouts
from roll_ray.sample import Prompt
from roll_ray.scoring import Scorer
from roll_ray.settings import RunSettings
from roll_ray.tracking.display import open_display
from roll_ray.tracking.run_folder import RunFolder, begin, last_heldout_accuracy
from roll_ray.tracking.run_tracker import RunTracker
from roll_ray.tracking.tensorboard_sink import TensorBoardSink
from roll_ray.tracking.timeline import Timeline
from roll_ray.trainers import TrainerGroup
from roll_ray.weight_push import WeightPush
from roll_ray.weights.folders import remove_run, run_folder, sweep_stale
from workers.tokenizer import load_tokenizer

DEATH_IS_KNOWN_S = 15.0
"""From a fault that a dead trainer causes in another rank until the death itself is noticed."""


class Pipeline:
    """A run that can be started once. Set `interrupt` to end it after saving the last finished step."""

    def __init__(self, settings: RunSettings, task: Task, rules: Rules | None = None) -> None:
        problems = settings.problems() + task.problems() + judge_problems(settings, task)
        if settings.run_dir is None:
            problems.append("run_dir is not set: run_recipe sets it, a program of your own has to")
        if problems:
            raise SettingsError("these settings cannot run together:\n  " + "\n  ".join(problems))
        assert settings.run_dir is not None
        self.settings, self.task = settings, task
        self.rules = rules or default_rules(settings)
        self.folder: Path = settings.run_dir
        self.name = settings.run_name or self.folder.name
        self.interrupt = asyncio.Event()
        self.staff: Staff | None = None
        self.engines: EnginePool | None = None
        self.kept: EngineHouse | None = None  # engines that outlive this run, which a study hands over

    async def run(self) -> RunResult:
        """Start the workers, train, and leave nothing behind."""
        checkpoints = CheckpointFolder(self.folder, self.settings.keep_checkpoints)
        checkpoint = self._checkpoint_to_resume(checkpoints)
        sweep_stale()  # before the checks: they count free memory
        check_before_start(self.settings, self.task, self.rules)
        with session(self.settings, f"roll-ray/{self.name}") as ray_session:
            if missing := missing_devices(self.settings, ray_session.devices):
                raise SettingsError("\n".join(missing))
            begin(self.folder)
            async with contextlib.AsyncExitStack() as stack:
                hired = staffed(self.settings, self.task, self.rules, ray_session, self.folder, self.kept)
                try:
                    staff = await unless_interrupted(self.interrupt, stack.enter_async_context(hired))
                except Interrupted:
                    step = checkpoint.step if checkpoint is not None else 0
                    return RunResult(step, self.settings.max_steps, True, {}, {})
                tracker = await stack.enter_async_context(self._tracker(staff, checkpoint))
                engines = await stack.enter_async_context(self._engines(staff, tracker))
                self.staff, self.engines = staff, engines
                controller = self._controller(staff, engines, tracker, checkpoints)
                result = await _while_trainers_live(staff, controller.run(checkpoint))
                if result.interrupted and result.step:
                    # now: Ray may be gone, and would end this process before the last lines of the run
                    tracker.say(f"step {result.step} is saved; ending the workers")
                return result

    def _checkpoint_to_resume(self, checkpoints: CheckpointFolder) -> Checkpoint | None:
        if not self.settings.resume:
            return None
        checkpoint, damaged = checkpoints.latest()
        for sentence in damaged:
            print(sentence, flush=True)
        if checkpoint is None and damaged:
            raise RollRayError(
                f"{self.folder} has no checkpoint that is whole",
                why="; ".join(damaged),
                next_step="start a new run, or restore the checkpoint's files from a copy",
            )
        return checkpoint

    def _controller(
        self, staff: Staff, engines: EnginePool | None, tracker: RunTracker, checkpoints: CheckpointFolder
    ) -> Controller:
        settings = self.settings
        scorer = Scorer(
            self.rules.estimator,
            self.rules.weigh,
            staff.trainers,
            keeps_proximal=settings.proximal == "trainer",
            tokenwise=self.rules.finish if self.rules.token_stage is not None else None,
            say=tracker.say,
        )
        trainer = TrainerGroup(staff.trainers)
        rollouts = self._rollouts(staff, tracker)
        tracker.shown = lambda: rollouts.shown
        tracker.sources = (trainer.take_metrics, lambda: scorer.metrics, lambda: rollouts.metrics)
        return Controller(
            max_steps=settings.max_steps,
            rollouts=rollouts,
            score=scorer if engines is None else _after(engines.make_way, scorer),
            trainer=trainer,
            publish=engines.publish if engines is not None else _nobody_to_publish_to,
            evaluate=Evaluator(staff.runners, self._heldout(), settings.evaluation, settings.max_steps),
            checkpoints=checkpoints,
            checkpoint_every_steps=settings.checkpoint_every_steps,
            tracker=tracker,
            interrupt=self.interrupt,
        )

    def _heldout(self) -> Sequence[Prompt]:
        if self.settings.replay:
            return ()
        return in_turns(self.task.heldout, self.settings.evaluation.max_prompts)

    def _rollouts(self, staff: Staff, tracker: RunTracker) -> Any:
        settings = self.settings
        k, ranks = settings.optimizer_steps_per_batch, len(staff.trainers)
        if settings.replay is not None:
            return ReplayRollouts(settings.replay, k, ranks)
        assert staff.manager is not None
        live = LiveRollouts(
            manager=staff.manager,
            stores={store.name: store for store in staff.stores},
            rewards=staff.rewards,
            prompts=prompt_stream(self.task.train, settings.seed, settings.domain_weights),
            objects=RayObjectStore(),
            mini_batches=k,
            ranks=ranks,
            say_waiting=tracker.say,
            example=staff.invalid_example,
        )
        return live if settings.record is None else Recorder(live, staff.trainers, settings.record)

    @contextlib.asynccontextmanager
    async def _tracker(self, staff: Staff, checkpoint: Checkpoint | None) -> AsyncIterator[RunTracker]:
        done = checkpoint.step if checkpoint is not None else 0
        tokenizer = load_tokenizer(self.settings.model)
        folder = RunFolder(self.folder, done)
        known = {"heldout_accuracy": last_heldout_accuracy(self.folder)}
        tracker = RunTracker(
            folder=folder,
            timeline=Timeline(self.folder / "timeline.json"),
            display=open_display(self.settings.max_steps, done, known=known),
            decode=tokenizer.decode,
            shown=tuple,
            by_domain=len({p.domain for p in self.task.train}) > 1,
            sinks=(TensorBoardSink(self.folder / "tensorboard", done), RayMetricsSink(self.name)),
        )
        staff.listen(tracker.say)
        try:
            yield tracker
        finally:
            tracker.close()

    def _push(self, staff: Staff) -> WeightPush | None:
        engine = self.settings.engine
        if staff.transfer == "shm":
            return None
        return WeightPush(staff.transfer, staff.trainers, engine.tensor_parallel, engine.update_mode)

    @contextlib.asynccontextmanager
    async def _engines(self, staff: Staff, tracker: RunTracker) -> AsyncIterator[EnginePool | None]:
        """The engines under supervision, and the folder that their weights come from."""
        if self.settings.replay is not None:
            yield None
            return
        folder = run_folder(self.name)
        engines = EnginePool(
            engines=staff.engines,
            trainers=staff.trainers,
            announce=staff.announce,
            folder_root=folder,
            update_mode=self.settings.engine.update_mode,
            say=tracker.say,
            push=self._push(staff),
            sleepers=staff.sleepers,
        )
        supervision = asyncio.create_task(engines.supervise())
        try:
            yield engines
        finally:
            supervision.cancel()
            await asyncio.gather(supervision, return_exceptions=True)
            await engines.close()
            remove_run(folder)


def _after(
    first: Callable[[], Awaitable[None]], score: Callable[[Part], Awaitable[list[MiniBatch]]]
) -> Callable[[Part], Awaitable[list[MiniBatch]]]:
    """Score a part when `first` is done: scoring is the first that needs the trainer."""

    async def scored(part: Part) -> list[MiniBatch]:
        await first()
        return await score(part)

    return scored


async def _while_trainers_live(staff: Staff, work: Coroutine[Any, Any, RunResult]) -> RunResult:
    """The result of `work`, unless a trainer rank dies. A fault that its death causes elsewhere (a broken
    connection in another rank, say) is told as that death."""
    run, death = asyncio.create_task(work), asyncio.create_task(staff.trainer_died())
    try:
        await asyncio.wait({run, death}, return_when=asyncio.FIRST_COMPLETED)
        fault = run.exception() if run.done() else None
        if fault is not None and not isinstance(fault, RollRayError):
            await asyncio.wait({death}, timeout=DEATH_IS_KNOWN_S)
        if death.done():
            await death
        return await run
    finally:
        await cancelled(run, death)


async def _nobody_to_publish_to(version: int) -> None:
    """A replayed run has no engines."""
