"""The words that schedulers and the live system share: ids, events and actions.

A scheduler is a pure state machine. It is told what happened (events) and answers what to do
(actions). It owns no task, no clock and no connection: the only time that it knows is the `t_s`
written on its events. The rollout manager carries the actions out in a live run; the simulator
carries them out in virtual time. Events and actions hold ids and numbers, never a sample.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol


class Visit(NamedTuple):
    """One use of a prompt: epochs and repeated prompts never collide."""

    prompt_id: str
    number: int


class SampleId(NamedTuple):
    """One of the R responses of a visit. Sorts by prompt, visit, index."""

    visit: Visit
    index: int  # type: ignore[assignment]  # hides tuple.index, which nobody asks of an id


# --- events -------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class PromptsOffered:
    """Prompts that may be launched. With `starts_step` they begin training step `step`, as many as
    `Scheduler.prompts_wanted` said, which may be none; without, they answer a `RequestPrompts` of the step that
    is open."""

    t_s: float
    step: int
    visits: tuple[Visit, ...]
    domains: tuple[str, ...]
    starts_step: bool = True


@dataclass(frozen=True, slots=True)
class Started:
    """An attempt began to generate under weight version `version`."""

    t_s: float
    sample: SampleId
    attempt: int
    version: int


@dataclass(frozen=True, slots=True)
class Generated:
    """The response ended: `finish` is "stop" or "length"."""

    t_s: float
    sample: SampleId
    attempt: int
    n_tokens: int
    finish: str


@dataclass(frozen=True, slots=True)
class Scored:
    """The reward arrived. `reward` is None when it is invalid, and `reason` then says why."""

    t_s: float
    sample: SampleId
    attempt: int
    reward: float | None
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Failed:
    """The attempt was lost: a worker died, a time-out, a store that no longer holds the sample."""

    t_s: float
    sample: SampleId
    attempt: int
    reason: str


@dataclass(frozen=True, slots=True)
class Aborted:
    """The attempt was stopped by an `Abort`; `n_tokens` were generated for nothing."""

    t_s: float
    sample: SampleId
    attempt: int
    n_tokens: int


@dataclass(frozen=True, slots=True)
class EngineUp:
    t_s: float
    engine: str


@dataclass(frozen=True, slots=True)
class EngineDown:
    t_s: float
    engine: str
    reason: str


@dataclass(frozen=True, slots=True)
class Progress:
    """What an engine is doing: running and waiting requests, KV use in [0, 1], preemptions so far."""

    t_s: float
    engine: str
    running: int
    waiting: int
    kv_use: float
    preemptions: int


@dataclass(frozen=True, slots=True)
class WeightsPublished:
    t_s: float
    version: int


@dataclass(frozen=True, slots=True)
class BatchTrained:
    """The last batch cut was trained and gave weight version `version`; its samples are closed."""

    t_s: float
    version: int


@dataclass(frozen=True, slots=True)
class Tick:
    t_s: float


Event = (
    PromptsOffered
    | Started
    | Generated
    | Scored
    | Failed
    | Aborted
    | EngineUp
    | EngineDown
    | Progress
    | WeightsPublished
    | BatchTrained
    | Tick
)

# --- actions ------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Launch:
    """Generate these responses of a visit, all as attempt number `attempt` (the first is 0)."""

    visit: Visit
    sample_indices: tuple[int, ...]
    attempt: int


@dataclass(frozen=True, slots=True)
class Abort:
    samples: tuple[SampleId, ...]


@dataclass(frozen=True, slots=True)
class CutPart:
    """These samples may be trained on already, while the step's rollout goes on (stream training)."""

    samples: tuple[SampleId, ...]


@dataclass(frozen=True, slots=True)
class CutBatch:
    """The batch of step `step` is complete with these samples, sorted by id."""

    step: int
    samples: tuple[SampleId, ...]


@dataclass(frozen=True, slots=True)
class RequestPrompts:
    """`count` visits of the open step ended without training; offer as many others."""

    step: int
    count: int
    reason: str


@dataclass(frozen=True, slots=True)
class Stop:
    """The step cannot be completed. The run ends with this reason and a non-zero exit."""

    reason: str


@dataclass(frozen=True, slots=True)
class SetTensorParallel:
    degree: int


@dataclass(frozen=True, slots=True)
class ReleaseEngines:
    engines: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Migrate:
    samples: tuple[SampleId, ...]
    engines: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Defer:
    """The visit waits in the scheduler's queue for a later step, which launches it without another offer: its
    prompt must be kept. Nothing of it runs meanwhile."""

    visit: Visit
    reason: str


Action = (
    Launch
    | Abort
    | CutPart
    | CutBatch
    | RequestPrompts
    | Stop
    | SetTensorParallel
    | ReleaseEngines
    | Migrate
    | Defer
)


class Scheduler(Protocol):
    """A rollout scheduler. Equal events give equal actions, whatever the process or the clock."""

    max_attempts: int

    def prompts_wanted(self) -> int:
        """How many prompts the next step is to begin with; asked before each offer that starts a step. 0 when
        the scheduler will launch visits that it deferred: then a step begins with an offer of none."""

    def handle(self, events: Sequence[Event]) -> list[Action]:
        """Take note of what happened and say what to do. Events of closed attempts are counted and ignored."""

    def state(self) -> dict[str, Any]:
        """Plain data (JSON types) that `restore` understands; goes into the checkpoint."""

    def load(self, state: Mapping[str, Any]) -> None:
        """Become exactly the scheduler that gave `state`; nothing is launched. Replay starts from it."""

    def restore(self, state: Mapping[str, Any]) -> list[Action]:
        """Take over a state and launch again, as the next attempt, what was open in it."""

    def metrics(self) -> dict[str, float]:
        """Counters since the start: launches, retries, ignored results, invalid visits, wasted tokens."""
