"""The step that a scheduler has open: its visits, and what went wrong in it so far."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from schedulers.protocol import PromptsOffered, SampleId, Visit
from schedulers.visit_filter import VisitFilter
from schedulers.visits import OpenVisits

Phase = Literal["idle", "rollout", "cut", "stopped"]
_REASONS_NAMED = 3


@dataclass(slots=True)
class Step:
    """`launched` responses belong to each new visit; `wanted` prompts were asked for and have not come. `in_cut` are
    the visits of the last batch cut, trained when it is; `reasons` are the last ones for which visits ended invalid,
    `filtered_because` the last of the filter."""

    number: int
    phase: Phase = "idle"
    launched: int = 0
    visits: OpenVisits = field(default_factory=OpenVisits)
    wanted: int = 0
    invalid: int = 0
    filtered: int = 0
    reasons: list[str] = field(default_factory=list)
    filtered_because: str = ""
    in_cut: set[Visit] = field(default_factory=set)

    def problem_with(self, event: PromptsOffered, wanted_at_start: int) -> str:
        """Why there is no place for these prompts; empty when there is."""
        if len(set(event.visits)) != len(event.visits):
            return "a visit is offered twice"
        if event.starts_step:
            if self.phase != "idle":
                return f"step {self.number} is not trained yet"
            if len(event.visits) != wanted_at_start:
                return f"this step begins with {wanted_at_start}"
            return ""
        if self.phase not in ("rollout", "cut") or event.step != self.number:
            return f"step {self.number} is in phase {self.phase}"
        if any(visit in self.visits for visit in event.visits):
            return "a visit of this step is offered again"
        if len(event.visits) > self.wanted:
            return f"only {self.wanted} were asked for"
        return ""

    def note_invalid(self, sample: SampleId, reason: str) -> None:
        """A visit ended invalid with this sample's last failure."""
        visit, index = sample
        said = f"{visit.prompt_id} (visit {visit.number}), response {index}: {reason}"
        self.invalid += 1
        self.reasons = [*self.reasons, said][-_REASONS_NAMED:]

    def note_filtered(self, visit: Visit, reason: str) -> None:
        self.filtered += 1
        self.filtered_because = f"{visit.prompt_id} (visit {visit.number}) is filtered: {reason}"

    def certain(self) -> set[Visit]:
        """Visits that are complete, and so will be in the batch of the step, while none was cut in it."""
        return set(self.visits.complete) if self.phase == "rollout" and not self.in_cut else set()

    def why_wanted(self) -> str:
        return self.reasons[-1] if self.reasons else self.filtered_because

    def why_stopped(self, prompts_per_step: int, keep: VisitFilter | None) -> str:
        """The reason of a `Stop`: too many visits were filtered, or else ended invalid."""
        if keep is not None and self.filtered > keep.max_batches * prompts_per_step:
            return (
                f"step {self.number}: dynamic sampling filtered {self.filtered} visits, more than "
                f"{keep.max_batches} times the {prompts_per_step} prompts of a step: the data has "
                f"nothing to teach this model. The last one: {self.filtered_because}"
            )
        return (
            f"step {self.number}: {self.invalid} visits ended invalid, more than the {prompts_per_step} "
            f"prompts of a step. The last reasons: {'; '.join(self.reasons)}"
        )

    def state(self) -> dict[str, Any]:
        return {
            "step": self.number,
            "phase": self.phase,
            "launched": self.launched,
            **self.visits.state(),
            "wanted": self.wanted,
            "invalid": self.invalid,
            "reasons": list(self.reasons),
            "filtered": self.filtered,
            "filtered_because": self.filtered_because,
            "in_cut": [list(v) for v in sorted(self.in_cut)],
        }

    @classmethod
    def of(cls, state: Mapping[str, Any]) -> Step:
        """The inverse of `state`."""
        return cls(
            number=state["step"],
            phase=state["phase"],
            launched=state["launched"],
            visits=OpenVisits.of(state),
            wanted=state["wanted"],
            invalid=state["invalid"],
            filtered=state["filtered"],
            reasons=list(state["reasons"]),
            filtered_because=state["filtered_because"],
            in_cut={Visit(*v) for v in state["in_cut"]},
        )
