"""The policy trainer: one rank, a plain class. `roll_ray.cluster` makes actors of it; tests call it as it is.

Importing this module loads no torch: a driver writes `TrainerSpec`s down without it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import numpy.typing as npt

from roll_ray.algorithms.adaptive_kl import AdaptiveKl
from roll_ray.algorithms.loss_registry import RegisteredLoss
from roll_ray.algorithms.loss_settings import LossSettings
from roll_ray.algorithms.metric_sums import MetricSum
from roll_ray.algorithms.token_stage import TokenStage, finished
from roll_ray.algorithms.whitening import Moments
from roll_ray.batch import Batch
from roll_ray.generation import Canary
from roll_ray.weights.folders import remove_run
from roll_ray.weights.manifest import WeightManifest
from workers.backends.base import OptimizerSettings
from workers.kept_tokens import KeptTokens, with_tokens
from workers.kl_coefficient import KlCoefficient

if TYPE_CHECKING:
    from roll_ray.actors import Actor
    from roll_ray.recording import RecordedBatch
    from workers.rollout_engine import RolloutEngine
    from workers.vllm_gpu import EngineControl

CANARY_TOKENS = 32
CANARY_TOLERANCE = {"float32": 1e-4, "bfloat16": 0.6}
"""In nats. Two forwards of one float32 model differ by some 1e-6. In bfloat16 the random tokens of a canary have
log-probabilities of -15, where rounding alone makes 0.25 (SmolLM2-135M); a stale embedding makes several nats."""


@dataclass(frozen=True, slots=True)
class TrainerSpec:
    """What a rank needs to know. `model` and `reference` are Hugging Face folders or hub names; the reference
    is loaded only when there is a KL term, and is the model itself unless given. `registered`: the loss as it was
    registered, where that was in a file that trainers do not import. `token_stage`: how a sample's advantage
    becomes those of its tokens; None: it is that of each. `adaptive_kl`: where the KL coefficient begins and
    what it follows; None: it is fixed. `shares_gpu`: engines compute
    on it in turns with the trainer, which keeps no memory there that it does not use."""

    model: str
    optimizer: OptimizerSettings
    loss: LossSettings = field(default_factory=LossSettings)
    registered: RegisteredLoss | None = None
    token_stage: TokenStage | None = None
    adaptive_kl: AdaptiveKl | None = None
    dtype: Literal["float32", "bfloat16"] = "float32"
    backend: Literal["fsdp2"] = "fsdp2"
    tokens_per_device: int = 4096
    device_kind: Literal["cpu", "gpu"] = "cpu"
    threads: int = 1
    seed: int = 0
    reference: str | None = None
    shares_gpu: bool = False

    @property
    def kl_coefficient(self) -> float:
        """Of the KL in the loss or in the token reward, whichever there is."""
        return self.loss.kl_coefficient or (self.token_stage.kl_coefficient if self.token_stage else 0.0)


@dataclass(frozen=True, slots=True)
class TrainerInfo:
    """What a started rank says of itself."""

    rank: int
    world_size: int
    n_parameters: int
    vocab_size: int
    model_type: str
    max_positions: int | None


class PolicyTrainer:
    """Rank `rank` of `world_size`. All but `rendezvous_address`, `record`, `weight_bucket`, `unpublish` and the
    constructor are collective: every rank must call them, in the same order, with its own share.

    Shares are `Batch`es whose arrays may be read-only; `extra_B["advantages"]` (float32 [B]) comes with them.
    `extra_T["old_logprobs"]` is used where given; else the log-probabilities of the first forward are the
    old ones, and the ratio of a first optimizer step is exactly 1.
    """

    def __init__(self, spec: TrainerSpec, rank: int = 0, world_size: int = 1) -> None:
        self.spec, self.rank, self.world_size = spec, rank, world_size
        self._loss_sum = 0.0
        self._sender: Any = None
        self._control: EngineControl | None = None
        self._kl = KlCoefficient(spec.kl_coefficient, spec.adaptive_kl)
        self._proximal = KeptTokens("old_logprobs")
        self._token_advantages = KeptTokens("advantages")

    def rendezvous_address(self) -> tuple[str, int]:
        """Where the ranks meet: asked of rank 0, which listens there, given to every rank's `start`."""
        from workers.backends.process_group import meeting_place

        return meeting_place()

    def start(self, host: str, port: int) -> TrainerInfo:
        """Join the other ranks, load the model and shard it. Returns when all ranks have."""
        import torch

        from roll_ray.algorithms.losses import build_loss
        from workers.backends.fsdp2 import FSDP2Backend
        from workers.backends.fsdp2_policy import FSDP2Policy
        from workers.backends.process_group import join

        spec = self.spec
        torch.set_num_threads(spec.threads)
        self._loss = build_loss(spec.loss, spec.registered)
        join(self.rank, self.world_size, host, port, spec.device_kind)
        self._backend = FSDP2Backend(
            spec.model,
            spec.optimizer,
            dtype=spec.dtype,
            tokens_per_device=spec.tokens_per_device,
            kind=spec.device_kind,
            seed=spec.seed,
        )
        self._reference: FSDP2Policy | None = None
        if spec.kl_coefficient > 0:
            self._reference = FSDP2Policy(
                spec.reference or spec.model,
                dtype=spec.dtype,
                tokens_per_device=spec.tokens_per_device,
                kind=spec.device_kind,
                trainable=False,
            )
        config = self._backend.config
        return TrainerInfo(
            rank=self.rank,
            world_size=self.world_size,
            n_parameters=sum(p.numel() for _, p in self._backend.named_parameters()),
            vocab_size=config.vocab_size,
            model_type=config.model_type,
            max_positions=getattr(config, "max_position_embeddings", None),
        )

    def stop(self) -> None:
        """Leave the group; the rank is of no use afterwards."""
        from workers.backends.process_group import leave

        leave()

    # --- training ---------------------------------------------------------------------------------

    def accumulate(self, share: Batch, final: bool = True) -> dict[str, MetricSum]:
        """Add the gradient of this rank's share (it may be empty), un-normalised; metric sums of the share.

        `final=False` promises another share before the next `step` and leaves the sum over ranks to it.
        """
        if self._reference is not None and self._loss.settings.kl_coefficient > 0:
            share = with_tokens(share, "reference_logprobs", self._reference.logprobs(share))
        sums = self._backend.accumulate(share, self._loss, final=final)
        if (kl := sums.get(f"kl_{self.spec.loss.kl_estimator}")) is not None:
            self._kl.count(kl, len(share))
        if "loss_sum" in sums:
            self._loss_sum += sums["loss_sum"].total
        return sums

    def logprobs(self, share: Batch) -> npt.NDArray[np.float32]:
        """Log-probabilities [T] of the share's policy tokens under the weights of now, 0 elsewhere."""
        return self._backend.logprobs(share)

    def step(self, denominator: float) -> dict[str, float]:
        """Divide by `denominator` (the same on every rank), clip, update. Equal results on every rank.

        `step_skipped` is 1 where nothing was updated: no valid token, or a gradient that is not finite.
        """
        from workers.backends.process_group import total

        loss_sum = total(self._loss_sum)
        self._loss_sum = 0.0
        result = self._backend.step(denominator)
        kl_metrics = {} if self._reference is None else self._kl.step()
        self._use_kl_coefficient()
        return kl_metrics | {
            "loss": loss_sum / denominator if denominator > 0 else 0.0,
            "grad_norm": result.grad_norm,
            "learning_rate": result.learning_rate,
            "denominator": denominator,
            "step_skipped": float(bool(result.skipped)),
            "optimizer_steps": float(not result.skipped),
        }

    def _use_kl_coefficient(self) -> None:
        if self.spec.adaptive_kl is not None and self.spec.loss.kl_coefficient > 0:
            settings = dataclasses.replace(self._loss.settings, kl_coefficient=self._kl.value)
            self._loss = dataclasses.replace(self._loss, settings=settings)

    # --- the calls of the controller (roll_ray.worker_protocols.TrainerWorker) -----------------------

    def train_on(
        self, extra_B: Mapping[str, npt.NDArray[Any]], *sources: Batch | RecordedBatch
    ) -> dict[str, MetricSum]:
        """`accumulate` for a share that lies in several places; `extra_B` is in the order of the sources."""
        share = _share_of(sources)
        share = dataclasses.replace(share, extra_B={**share.extra_B, **extra_B})
        return self.accumulate(self._token_advantages.onto(self._proximal.onto(share)))

    def remember_proximal(self, *sources: Batch | RecordedBatch) -> None:
        """Keep the log-probabilities of these samples under the weights of now, for their `train_on`."""
        share = _share_of(sources)
        self._proximal.keep(share, self.logprobs(share))

    def token_advantages(
        self, extra_B: Mapping[str, npt.NDArray[Any]], *sources: Batch | RecordedBatch
    ) -> Moments:
        """Advantages per token from those of samples or turns in `extra_B`, kept for `train_on`; their moments."""
        assert self.spec.token_stage is not None
        share = _share_of(sources)
        mask_T = share.policy_mask_T
        if "trained" in extra_B:
            mask_T = mask_T & np.repeat(extra_B["trained"], share.lengths_B)
        kl_T = self._reward_kl(share, mask_T)
        advantages_T = self.spec.token_stage.advantages(
            extra_B, share.policy_mask_T, share.offsets, kl_T, self._kl.value
        )
        self._token_advantages.keep(share, advantages_T)
        return Moments.of(advantages_T, mask_T)

    def finish_advantages(self, moments: Moments | None, clip: float | None) -> None:
        """Whiten with the moments of the whole batch unless None, then clip unless None."""
        self._token_advantages.change(lambda advantages_T: finished(advantages_T, moments, clip))

    def _reward_kl(self, share: Batch, mask_T: npt.NDArray[np.bool_]) -> npt.NDArray[np.float32] | None:
        """The KL of each token of the weights of now to the reference, where it goes into the reward."""
        stage = self.spec.token_stage
        if stage is None or stage.kl_coefficient == 0:
            return None
        import torch

        from roll_ray.algorithms.kl import KL_ESTIMATORS

        assert self._reference is not None
        here, there = (torch.from_numpy(p.logprobs(share)) for p in (self._backend, self._reference))
        kl_T = np.where(mask_T, KL_ESTIMATORS[stage.kl_estimator](here, there).numpy(), np.float32(0))
        self._kl.count(MetricSum("mean", float(kl_T.sum()), float(mask_T.sum())), len(share))
        return kl_T

    def record(self, path: str, *sources: Batch | RecordedBatch) -> None:
        """Write these samples to `path`, for a later replay."""
        from roll_ray.recording import save_batch

        save_batch(Path(path), _share_of(sources))

    # --- weights and files ------------------------------------------------------------------------

    def publish(self, version: int, folder_root: str) -> WeightManifest | None:
        """Write all weights as `version` below `folder_root`, with a canary; rank 0 answers with the manifest."""
        token_ids = self._canary_tokens()
        logprobs = self._backend.sequence_logprobs(token_ids)
        named_tensors = self._backend.named_tensors()
        if self.rank:
            _exhaust(named_tensors)
            self._leave_room()
            return None
        from roll_ray.weights.buckets import write_buckets

        try:
            manifest = write_buckets(
                folder_root, version, named_tensors, total_bytes=self._backend.published_bytes()
            )
        finally:
            # a full disk must not leave the other ranks waiting in a collective
            _exhaust(named_tensors)
            self._leave_room()
        tolerance = CANARY_TOLERANCE[self.spec.dtype]
        return manifest.with_canary(Canary(tuple(token_ids), tuple(logprobs), tolerance))

    def open_sender(
        self,
        transfer: Literal["ipc", "nccl"],
        engines: Sequence[Actor[RolloutEngine]],
        ranks_per_engine: int,
        timeout_s: float,
    ) -> None:
        """Agree with these engines on how weights are pushed to them, in the place of any before. Rank 0 speaks."""
        from workers.vllm_gpu import EngineControl, open_sender

        if self._control is not None:
            self._sender.shutdown()
            self._control.close()
        self._control = EngineControl(engines, ranks_per_engine, transfer == "nccl", timeout_s)
        self._sender = open_sender(
            transfer, self.rank, self._backend, self._control, engine_ranks=len(engines) * ranks_per_engine
        )

    def push_weights(self) -> None:
        """Send the weights of now to the engines of `open_sender`, which wait for them."""
        self._sender.send_weights()
        self._leave_room()

    def _leave_room(self) -> None:
        if self.spec.shares_gpu:
            import torch

            torch.cuda.empty_cache()

    def weight_bucket(self, manifest: WeightManifest, bucket: int) -> npt.NDArray[np.uint8]:
        """One bucket of the version published last, mapped; rank 0 has it."""
        from roll_ray.weights.buckets import bucket_bytes

        return bucket_bytes(manifest)[bucket]

    def unpublish(self, folder_root: str) -> None:
        """Remove every published version. (The driver may live on another node, where it cannot.)"""
        remove_run(folder_root)

    def _canary_tokens(self) -> list[int]:
        config = self._backend.config
        n = min(CANARY_TOKENS, getattr(config, "max_position_embeddings", CANARY_TOKENS))
        return [int(t) for t in np.random.default_rng(0).integers(0, config.vocab_size, n)]

    def save(self, folder: str) -> None:
        """Weights, optimizer, schedule, random state: what `load` needs to go on bit-equal."""
        self._backend.save(folder)
        if self.rank == 0:
            self._kl.save(folder)

    def load(self, folder: str) -> None:
        """Go on from `save`. Another number of ranks is fine."""
        self._backend.load(folder)
        self._kl.load(folder)
        self._use_kl_coefficient()
        self._proximal.clear()
        self._token_advantages.clear()
        self._loss_sum = 0.0

    def export_hf(self, folder: str) -> None:
        """An ordinary Hugging Face folder with tokenizer, in the dtype of the run; rank 0 writes it."""
        from workers.hf_model import save_hf_folder

        tensors = {name: t.clone() for name, t in self._backend.named_tensors() if self.rank == 0}
        if self.rank == 0:
            save_hf_folder(self.spec.model, self._backend.config, tensors, folder)


def _share_of(sources: tuple[Batch | RecordedBatch, ...]) -> Batch:
    batches = [source if isinstance(source, Batch) else source.load() for source in sources]
    return batches[0] if len(batches) == 1 else Batch.concatenate(batches)


def _exhaust(tensors: Any) -> None:
    for _ in tensors:
        pass
