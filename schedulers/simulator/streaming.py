"""Stream training in a simulation: the live StreamTrigger is told of the step, and complete prompts are trained on the
devices that it frees. For schedulers whose complete prompts are all in the batch (no dynamic sampling)."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from schedulers.protocol import ReleaseEngines, SampleId, Visit
from schedulers.simulator.engine import SimulatedEngine
from schedulers.simulator.training import StreamedTraining, TrainingCosts
from schedulers.stream_trigger import Remaining, StreamTrigger

MakeTrigger = Callable[[Sequence[SimulatedEngine]], StreamTrigger]


class Streaming:
    """What of a step can be trained before its rollout ends. `switch_s` passes between the release of engines and the
    first gradient on their devices."""

    def __init__(
        self, make_trigger: MakeTrigger, training: TrainingCosts, samples_per_prompt: int, switch_s: float
    ) -> None:
        self._make_trigger, self._training = make_trigger, training
        self._samples_per_prompt, self._switch_s = samples_per_prompt, switch_s
        self._trigger: StreamTrigger | None = None
        self._scored: dict[Visit, list[int]] = {}  # of visits that are not complete: tokens of each response
        self._complete: list[int] = []  # tokens of complete visits, prompts included
        self._streamed: StreamedTraining | None = None

    def engines_are(self, engines: Sequence[SimulatedEngine]) -> None:
        """The engines of the next rollout, at a degree that may be new; the history of lengths is kept."""
        history = self._trigger.history if self._trigger is not None else None
        self._trigger = self._make_trigger(engines)
        if history is not None:
            self._trigger.history = history

    @property
    def trigger(self) -> StreamTrigger:
        assert self._trigger is not None
        return self._trigger

    @property
    def devices(self) -> int:
        """How many train now."""
        return self._streamed.devices if self._streamed is not None else 0

    def begin(self, n_responses: int, longest_tokens: int) -> None:
        self.trigger.begin(n_responses)
        self.trigger.max_new_tokens = longest_tokens
        self._scored.clear()
        self._complete.clear()
        self._streamed = None

    def scored(self, t_s: float, sample: SampleId, n_tokens: int, prompt_tokens: int) -> None:
        """A response of the step was scored."""
        tokens = self._scored.setdefault(sample.visit, [])
        tokens.append(n_tokens + prompt_tokens)
        if len(tokens) == self._samples_per_prompt:
            self._complete.append(sum(tokens))
            if self._streamed is not None:
                self._streamed.part(t_s, sum(tokens))
            self.trigger.completed(len(self._complete) * self._samples_per_prompt)

    def decide(self, t_s: float, engines: Sequence[SimulatedEngine]) -> ReleaseEngines | None:
        if not self.trigger.due():
            return None
        return self.trigger.decide([Remaining(*r) for engine in engines for r in engine.remaining(t_s)])

    def released(self, t_s: float, devices: int) -> None:
        """So many devices are free: what is complete already comes first."""
        self._streamed = StreamedTraining(self._training, devices, t_s + self._switch_s)
        for tokens in self._complete:
            self._streamed.part(t_s, tokens)

    def tokens_done(self, t_s: float) -> float:
        return self._streamed.tokens_done(t_s) if self._streamed is not None else 0.0
