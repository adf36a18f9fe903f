"""Stream training (RollPacker, 2509.21009, section 4.4): complete prompts are trained on while the rest is generated.

Wraps a scheduler whose complete visits are certain to be in the batch (`Synchronous`, `TailBatching`). Until the
`StreamTrigger` releases half the engines the actions are those of the scheduler; from then on the visits that are
complete, and each that becomes so, are cut as parts. The batch is cut whole, as ever: its last part is what is in no
part yet.

Events do not say how much a running response has written. It is taken to have written at the mean pace of the step's
responses that ended, from its own start on.

Invariant. The parts of a step are disjoint, hold whole visits, and lie in the batch that the step cuts, which holds at
least one visit more. A sample of a part is not launched, aborted or filtered any more, unless the step is given up: the
trainer has its tokens, so a loss of them is counted and ignored. No part is cut before the release nor after a batch.
Equal events give equal actions; `restore` says again what was released and cut.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from schedulers.protocol import (
    Aborted,
    Action,
    BatchTrained,
    CutPart,
    Event,
    Failed,
    Generated,
    PromptsOffered,
    ReleaseEngines,
    SampleId,
    Scored,
    Started,
    Stop,
    Visit,
)
from schedulers.step_scheduler import StepScheduler
from schedulers.stream_trigger import Remaining, StreamTrigger


class StreamingScheduler:
    """`rollout` with stream training. `prompt_tokens` bounds the length of a prompt."""

    def __init__(self, rollout: StepScheduler, trigger: StreamTrigger, prompt_tokens: int) -> None:
        self.rollout, self.trigger, self.prompt_tokens = rollout, trigger, prompt_tokens
        self.max_attempts = rollout.max_attempts
        self._released: tuple[str, ...] = ()
        self._streamed: set[Visit] = set()
        self._began_s: dict[SampleId, float] = {}
        self._now_s = 0.0
        self._tokens, self._seconds = 0, 0.0  # of the step's responses that ended
        self._counters = {"releases": 0, "parts_cut": 0, "visits_streamed": 0, "lost_after_part": 0}

    def prompts_wanted(self) -> int:
        """As many as `rollout` wants."""
        return self.rollout.prompts_wanted()

    def handle(self, events: Sequence[Event]) -> list[Action]:
        """Actions for the events, one event after the other. Raises ValueError as `rollout` does."""
        return [action for event in events for action in self._handle(event)]

    def _handle(self, event: Event) -> list[Action]:
        if isinstance(event, Failed | Aborted | Scored) and self._in_a_part(event):
            self._counters["lost_after_part"] += not isinstance(event, Scored)
            return []
        self._now_s = event.t_s
        self._learn(event)
        actions = self.rollout.handle([event])
        self._follow(event, actions)
        return [*actions, *self._stream()]

    def _in_a_part(self, event: Failed | Aborted | Scored) -> bool:
        """Whether the event is about the attempt that a part holds."""
        if event.sample.visit not in self._streamed:
            return False
        return self.rollout.open_step.visits.listening(event.sample, event.attempt) is not None

    def _learn(self, event: Event) -> None:
        """Lengths and pace, of attempts that are waited for."""
        match event:
            case Started(t_s, sample, attempt) if self._runs(sample, attempt):
                self._began_s[sample] = t_s
            case Generated(t_s, sample, attempt, n_tokens) if self._runs(sample, attempt):
                self.trigger.generated(n_tokens)
                if sample in self._began_s:
                    self._tokens += n_tokens
                    self._seconds += max(0.0, t_s - self._began_s.pop(sample))
            case Aborted(n_tokens=n_tokens):
                self.trigger.aborted(n_tokens)
            case _:
                pass

    def _runs(self, sample: SampleId, attempt: int) -> bool:
        response = self.rollout.open_step.visits.listening(sample, attempt)
        return response is not None and response.state == "running"

    def _follow(self, event: Event, actions: Sequence[Action]) -> None:
        """What begins or ends with the event."""
        starts = isinstance(event, PromptsOffered) and event.starts_step
        if starts or isinstance(event, BatchTrained) or any(isinstance(a, Stop) for a in actions):
            self._forget_step()
        if starts:
            self.trigger.begin(self.rollout.prompts_per_step * self.rollout.samples_per_prompt)

    def _forget_step(self) -> None:
        self._released = ()
        self._streamed.clear()
        self._began_s.clear()
        self._tokens, self._seconds = 0, 0.0

    # --- release and parts ---------------------------------------------------------------------------

    def _stream(self) -> list[Action]:
        complete = self.rollout.open_step.certain()
        if not complete:
            return []
        self.trigger.completed(len(complete) * self.rollout.samples_per_prompt)
        released = [] if self._released else self._release()
        new = complete - self._streamed
        if not self._released or not new:
            return released
        self._streamed |= new
        self._counters["parts_cut"] += 1
        self._counters["visits_streamed"] += len(new)
        return [*released, self._part(new)]

    def _release(self) -> list[Action]:
        release = self.trigger.decide(self._remaining()) if self.trigger.due() else None
        if release is None:
            return []
        self._released = release.engines
        self._counters["releases"] += 1
        return [release]

    def _remaining(self) -> list[Remaining]:
        """Those of the step that generate, now being the time of the last event."""
        pace = self._tokens / self._seconds if self._seconds > 0 else 0.0
        limit = self.trigger.max_new_tokens
        return [
            Remaining(self.prompt_tokens, min(limit, int(pace * self._age_s(sample))))
            for sample in self.rollout.open_step.visits.samples("running")
        ]

    def _age_s(self, sample: SampleId) -> float:
        return max(0.0, self._now_s - self._began_s.get(sample, self._now_s))

    def _part(self, visits: set[Visit]) -> CutPart:
        scored = self.rollout.open_step.visits.samples("scored")
        return CutPart(tuple(sorted(sample for sample in scored if sample.visit in visits)))

    # --- state ---------------------------------------------------------------------------------------

    def state(self) -> dict[str, Any]:
        return {
            "rollout": self.rollout.state(),
            "trigger": self.trigger.state(),
            "released": list(self._released),
            "streamed": [list(visit) for visit in sorted(self._streamed)],
            "began_s": [[*s.visit, s.index, t_s] for s, t_s in sorted(self._began_s.items())],
            "now_s": self._now_s,
            "pace": [self._tokens, self._seconds],
            "counters": dict(self._counters),
        }

    def load(self, state: Mapping[str, Any]) -> None:
        """Become exactly the scheduler that gave `state`; nothing is launched."""
        self.rollout.load(state["rollout"])
        self.trigger.load(state["trigger"])
        self._released = tuple(state["released"])
        self._streamed = {Visit(*visit) for visit in state["streamed"]}
        self._began_s = {SampleId(Visit(p, n), i): t_s for p, n, i, t_s in state["began_s"]}
        self._now_s = state["now_s"]
        self._tokens, self._seconds = state["pace"]
        self._counters = dict(state["counters"])

    def restore(self, state: Mapping[str, Any]) -> list[Action]:
        """As `rollout` does; the release and the parts are said first, the parts as one."""
        self.load(state)
        self._began_s.clear()
        again: list[Action] = [ReleaseEngines(self._released)] if self._released else []
        if self._streamed:
            again.append(self._part(self._streamed))
        return [*again, *self.rollout.restore(state["rollout"])]

    def metrics(self) -> dict[str, float]:
        """Those of `rollout`, and how much was released and streamed."""
        return {**self.rollout.metrics(), **{name: float(n) for name, n in self._counters.items()}}
