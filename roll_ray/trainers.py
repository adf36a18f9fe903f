"""All trainer ranks as one trainer: shares go out by data-parallel rank, metric sums come back and merge."""

from __future__ import annotations

from roll_ray.actors import Pool
from roll_ray.algorithms.metric_sums import MetricSum, merge_sums, values
from roll_ray.parts import MiniBatch
from roll_ray.worker_protocols import TrainerWorker


class TrainerGroup:
    """The `Trainer` of the controller over a pool of ranks."""

    def __init__(self, pool: Pool[TrainerWorker]) -> None:
        self.pool = pool
        self._sums: dict[str, MetricSum] = {}
        self._last_step: dict[str, float] = {}
        self._rejected = 0.0

    async def accumulate(self, mini_batch: MiniBatch) -> None:
        calls = [(dict(share.extra_B), *share.handles) for share in mini_batch.shares]
        sums = await self.pool.scatter(TrainerWorker.train_on, calls)
        self._sums = merge_sums([self._sums, *sums])
        self._rejected += sum(s["rejected_denominator"].total for s in sums if "rejected_denominator" in s)

    async def step(self, denominator: float) -> None:
        """Responses that a correction rejected leave the denominator, as if they had not been sampled."""
        results = await self.pool.broadcast(TrainerWorker.step, denominator - self._rejected)
        self._rejected = 0.0
        before, self._last_step = self._last_step, {**self._last_step, **results[0]}
        for name in ("optimizer_steps", "step_skipped"):
            if name in results[0]:
                self._last_step[name] += before.get(name, 0.0)

    async def save(self, folder: str) -> None:
        await self.pool.broadcast(TrainerWorker.save, folder)

    async def load(self, folder: str) -> None:
        await self.pool.broadcast(TrainerWorker.load, folder)

    def take_metrics(self) -> dict[str, float | None]:
        """What was summed since the last call, reduced, and of each number of an optimizer step the last one;
        steps taken and skipped are counted."""
        taken = {**values(self._sums), **self._last_step}
        self._sums, self._last_step = {}, {}
        return taken
