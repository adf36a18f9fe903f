"""Synchronous rollout: launch P prompts x R responses, wait for all of them, cut the batch.

Invariant. Between a step's offer and its `BatchTrained`, each offered visit is in exactly one of four
states: open, trained, filtered, or invalid; it leaves the first once and for good. A batch that is cut holds P
visits with R samples each, each sample once, each validly scored under its highest attempt. Attempts of a
sample only rise, and only the highest one is listened to, so a result of any other is counted and ignored.
A sample is launched only while its visit is open. With a `VisitFilter` no visit of a batch is one that it
refuses.
"""

from __future__ import annotations

from schedulers.step_scheduler import StepScheduler
from schedulers.visit_filter import VisitFilter


class Synchronous(StepScheduler):
    """The baseline rollout scheduler, and what the others reduce to. `keep` is dynamic sampling's rule."""

    def __init__(
        self,
        prompts_per_step: int,
        samples_per_prompt: int,
        max_attempts: int = 3,
        keep: VisitFilter | None = None,
    ) -> None:
        super().__init__(prompts_per_step, samples_per_prompt, max_attempts, keep)
