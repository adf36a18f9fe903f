"""What the controller asks of its workers. Worker classes fulfil these protocols; none is imported here."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy.typing as npt

from roll_ray.receipts import Outcome
from roll_ray.sample import Prompt, Reward, SamplingDistribution
from roll_ray.weight_transfer import WeightTransfer
from schedulers.protocol import SampleId, Visit


class TrainerWorker(Protocol):
    """One rank of the policy trainer. Collective methods must be entered by every rank."""

    def train_on(self, extra_B: Mapping[str, npt.NDArray[Any]], *sources: Any) -> Mapping[str, Any]:
        """Accumulate the gradient of this rank's share; metric sums by name."""

    def remember_proximal(self, *sources: Any) -> None:
        """Keep the log-probabilities of these samples under the weights of now, for later `train_on` calls."""

    def token_advantages(self, extra_B: Mapping[str, npt.NDArray[Any]], *sources: Any) -> Any:
        """Turn each sample's advantage into one per token and keep them for `train_on`; their `Moments`."""

    def finish_advantages(self, moments: Any, clip: float | None) -> None:
        """Whiten the kept advantages with the moments of the whole batch (None: do not), then clip them."""

    def step(self, denominator: float) -> Mapping[str, float]:
        """Divide what was accumulated, clip, step. Equal results on every rank."""

    def publish(self, version: int, folder_root: str) -> Any | None:
        """Write the weights for the engines; rank 0 answers with the manifest."""

    def weight_bucket(self, manifest: Any, bucket: int) -> Any:
        """The bytes of one bucket of the version published last, for a node that cannot map it."""

    def unpublish(self, folder_root: str) -> None:
        """Remove every published version."""

    def open_sender(
        self, transfer: WeightTransfer, engines: Sequence[Any], ranks_per_engine: int, timeout_s: float
    ) -> None:
        """Agree with these engines on how weights are pushed to them; before `push_weights`, while they wait."""

    def push_weights(self) -> None:
        """Send the weights of now to the engines of `open_sender`."""

    def record(self, path: str, *sources: Any) -> None:
        """Write this rank's share of a batch to `path`."""

    def save(self, folder: str) -> None: ...

    def load(self, folder: str) -> None: ...


class EngineWorker(Protocol):
    """A rollout engine."""

    async def start(self) -> Any: ...

    async def sleep(self) -> None: ...

    async def begin_push(self, manifest: Any, update_mode: str = "keep", timeout_s: float = 0.0) -> bool: ...

    async def finish_push(self) -> Any: ...

    async def update_weights(self, manifest: Any, update_mode: str = "keep") -> Any: ...

    async def receive_weights(self, manifest: Any, *buckets: Any) -> Any: ...


class ManagerWorker(Protocol):
    """The rollout manager."""

    async def start(self) -> None: ...

    async def prompts_wanted(self) -> int: ...

    async def renew_prompts(self, visits: Sequence[Visit], prompts_ref: Any) -> None: ...

    async def offer(
        self, step: int, visits: Sequence[Visit], domains: Sequence[str], prompts_ref: Any, starts_step: bool
    ) -> None: ...

    async def next_outcome(self, timeout_s: float) -> Outcome | None: ...

    async def trained(self, version: int) -> None: ...

    async def weights_published(self, version: int) -> None: ...

    async def lost(self, samples: Sequence[SampleId], reason: str) -> None: ...

    async def waiting_for(self) -> str: ...

    async def metrics(self) -> dict[str, float]: ...

    async def state(self) -> dict[str, Any]: ...

    async def restore(self, state: Mapping[str, Any]) -> Sequence[Visit]: ...


class LearningWorker(Protocol):
    """A reward worker, as far as checkpoints need it."""

    def learnt(self) -> Mapping[str, Any]: ...

    def learn(self, learnt: Mapping[str, Any]) -> None: ...


class StoreWorker(Protocol):
    """A sample store."""

    def fetch(self, ids: Sequence[tuple[SampleId, int]]) -> Any: ...


@dataclass(frozen=True, slots=True)
class EvaluationAnswer:
    """One held-out prompt, answered and judged."""

    prompt_id: str
    response_text: str
    reward: Reward
    n_tokens: int
    version: int


class RunnerWorker(Protocol):
    """An episode runner, as far as evaluation needs it."""

    async def evaluate(
        self, prompts: Sequence[Prompt], sampling: SamplingDistribution, max_new_tokens: int
    ) -> Sequence[Any]: ...
