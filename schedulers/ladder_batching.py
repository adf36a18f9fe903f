"""Tail batching with a rung between short and long: what was deferred once is tried once more in company of its kind.

RollPacker (2509.21009) sends every deferred prompt to a long round, which waits for its longest response. Most deferred
prompts had bad luck once; few are long again. So here they first meet in a *middle* round: N = ceil(eta_prompts P) of
them are launched with R responses each, the first P complete ones are the batch, and only what is deferred there too
goes to a long round. So a long round is rarer, and eta_prompts can be larger. Middle and long rounds launch no more
responses than they train, so less is chosen among siblings (docs/rollpacker.md has both rules side by side, simulated).

Invariant. That of `TailBatching`; a visit is deferred at most twice. Each queue holds less than its round takes plus
N - P. short : middle = N : (N - P), and middle : long = P : (N - P), in the long run.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from schedulers.protocol import Action, Defer, PromptsOffered, Visit
from schedulers.tail_batching import Deferred, TailBatching
from schedulers.visit_filter import VisitFilter

Rung = Literal["short", "middle", "long"]


class LadderBatching(TailBatching):
    """`TailBatching` with two queues. The defaults are those of the comparison."""

    COUNTERS = (*TailBatching.COUNTERS, "middle_rounds")

    def __init__(
        self,
        prompts_per_step: int,
        samples_per_prompt: int,
        eta_prompts: float = 1.5,
        eta_responses: float = 1.25,
        max_attempts: int = 3,
        keep: VisitFilter | None = None,
    ) -> None:
        super().__init__(prompts_per_step, samples_per_prompt, eta_prompts, eta_responses, max_attempts, keep)
        self._rung: Rung = "short"
        self._once: list[Deferred] = []  # deferred by short rounds; what middle rounds defer is in _queue

    def prompts_wanted(self) -> int:
        """None when a long or a middle round is due, ceil(eta_prompts P) for a short one."""
        return 0 if self._middle_due() else super().prompts_wanted()

    def _middle_due(self) -> bool:
        """Without over-launch of prompts nothing is ever deferred."""
        return len(self._once) >= self._prompts_launched

    def _begin(self, event: PromptsOffered, actions: list[Action]) -> None:
        if event.visits:
            self._rung = "short"
        else:
            self._rung = "long" if len(self._queue) >= self.prompts_per_step else "middle"
        if self._rung == "middle":
            self._begin_middle(actions)
        else:
            super()._begin(event, actions)

    def _begin_middle(self, actions: list[Action]) -> None:
        self._vacant = []
        self._counters["middle_rounds"] += 1
        self._step.launched = self.samples_per_prompt
        n = self._prompts_launched
        again, self._once = self._once[:n], self._once[n:]
        self._divide([deferred.domain for deferred in again])
        for deferred in again:
            if self._places[deferred.domain].room:
                self._open_visit(deferred.visit, deferred.domain, deferred.domain, actions, deferred.attempt)
            else:  # its domain has no place in this batch
                self._queue.append(deferred)

    def _defer(self, deferred: Deferred, actions: list[Action]) -> None:
        if self._rung != "short":
            super()._defer(deferred, actions)
            return
        self._once.append(deferred)
        self._counters["visits_deferred"] += 1
        actions.append(Defer(deferred.visit, f"the batch of step {self._step.number} is full without it"))

    # --- state -------------------------------------------------------------------------------------

    def state(self) -> dict[str, Any]:
        return {
            **super().state(),
            "rung": self._rung,
            "once": [[*deferred.visit, deferred.domain, deferred.attempt] for deferred in self._once],
        }

    def load(self, state: Mapping[str, Any]) -> None:
        super().load(state)
        self._rung = state["rung"]
        self._once = [Deferred(Visit(prompt, number), d, a) for prompt, number, d, a in state["once"]]

    def metrics(self) -> dict[str, float]:
        metrics = super().metrics()
        return {**metrics, "visits_queued": metrics["visits_queued"] + len(self._once)}
