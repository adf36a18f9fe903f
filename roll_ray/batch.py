"""A batch of samples as flat arrays with offsets: no padding until a backend asks for it.

Names carry their dimensions: `_T` all tokens of the batch one after another, `_B` samples,
`offsets` has B + 1 entries, sample i owns tokens `offsets[i]:offsets[i + 1]`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from roll_ray.sample import Reward, Role, Sample, SamplingDistribution, Times
from schedulers.protocol import SampleId, Visit

_TOKEN_FIELDS = ("tokens_T", "roles_T", "logprobs_T", "versions_T")


@dataclass(slots=True)
class Batch:
    """Samples side by side. `extra_T` and `extra_B` hold what features add, under their declared names:
    per token for example `old_logprobs`, `reference_logprobs`; per sample for example `advantages`."""

    ids: tuple[SampleId, ...]
    attempts_B: npt.NDArray[np.int32]
    offsets: npt.NDArray[np.int64]
    tokens_T: npt.NDArray[np.int32]
    roles_T: npt.NDArray[np.int8]
    logprobs_T: npt.NDArray[np.float32]
    versions_T: npt.NDArray[np.int32]
    rewards_B: npt.NDArray[np.float32]  # NaN where invalid
    truncated_B: npt.NDArray[np.bool_]
    sampling: tuple[SamplingDistribution, ...]
    domains: tuple[str, ...]
    reasons: tuple[str, ...]
    extracted: tuple[str | None, ...]
    parts: tuple[dict[str, float], ...]
    times: tuple[Times, ...]
    extra_T: dict[str, npt.NDArray[Any]] = field(default_factory=dict)
    extra_B: dict[str, npt.NDArray[Any]] = field(default_factory=dict)

    @staticmethod
    def of(samples: Sequence[Sample]) -> Batch:
        lengths = [len(s.tokens_T) for s in samples]

        def flat(name: str, dtype: Any) -> npt.NDArray[Any]:
            return np.concatenate([getattr(s, name) for s in samples] or [np.empty(0)]).astype(
                dtype, copy=False
            )

        return Batch(
            ids=tuple(s.id for s in samples),
            attempts_B=np.asarray([s.attempt for s in samples], np.int32),
            offsets=np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64),
            tokens_T=flat("tokens_T", np.int32),
            roles_T=flat("roles_T", np.int8),
            logprobs_T=flat("logprobs_T", np.float32),
            versions_T=flat("versions_T", np.int32),
            rewards_B=np.asarray(
                [np.nan if s.reward.value is None else s.reward.value for s in samples], np.float32
            ),
            truncated_B=np.asarray([s.truncated for s in samples], np.bool_),
            sampling=tuple(s.sampling for s in samples),
            domains=tuple(s.domain for s in samples),
            reasons=tuple(s.reward.reason for s in samples),
            extracted=tuple(s.reward.extracted for s in samples),
            parts=tuple(s.reward.parts for s in samples),
            times=tuple(s.times for s in samples),
        )

    def __len__(self) -> int:
        return len(self.ids)

    @property
    def lengths_B(self) -> npt.NDArray[np.int64]:
        return np.diff(self.offsets)

    @property
    def policy_mask_T(self) -> npt.NDArray[np.bool_]:
        return self.roles_T == Role.POLICY

    @property
    def policy_tokens_B(self) -> npt.NDArray[np.int64]:
        """How many tokens of each sample the policy wrote."""
        ends = np.concatenate([[0], np.cumsum(self.policy_mask_T)])
        return (ends[self.offsets[1:]] - ends[self.offsets[:-1]]).astype(np.int64)

    @property
    def visits(self) -> tuple[Visit, ...]:
        return tuple(i.visit for i in self.ids)

    def token_span(self, i: int) -> slice:
        return slice(int(self.offsets[i]), int(self.offsets[i + 1]))

    def select(self, indices: Sequence[int]) -> Batch:
        """The samples at `indices`, in that order, with everything that belongs to them."""
        idx = np.asarray(indices, np.int64)
        lengths = self.lengths_B[idx] if len(idx) else np.empty(0, np.int64)
        take_T = np.concatenate(
            [np.arange(self.offsets[i], self.offsets[i + 1]) for i in idx] or [np.empty(0, np.int64)]
        ).astype(np.int64)

        def pick(values: tuple[Any, ...]) -> tuple[Any, ...]:
            return tuple(values[i] for i in idx)

        return Batch(
            ids=pick(self.ids),
            attempts_B=self.attempts_B[idx],
            offsets=np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64),
            rewards_B=self.rewards_B[idx],
            truncated_B=self.truncated_B[idx],
            sampling=pick(self.sampling),
            domains=pick(self.domains),
            reasons=pick(self.reasons),
            extracted=pick(self.extracted),
            parts=pick(self.parts),
            times=pick(self.times),
            extra_T={k: v[take_T] for k, v in self.extra_T.items()},
            extra_B={k: v[idx] for k, v in self.extra_B.items()},
            **{name: getattr(self, name)[take_T] for name in _TOKEN_FIELDS},
        )

    def sample(self, i: int) -> Sample:
        value = float(self.rewards_B[i])
        return Sample(
            id=self.ids[i],
            attempt=int(self.attempts_B[i]),
            reward=Reward(
                None if np.isnan(value) else value, self.reasons[i], self.extracted[i], self.parts[i]
            ),
            finish_reason="length" if self.truncated_B[i] else "stop",
            sampling=self.sampling[i],
            domain=self.domains[i],
            times=self.times[i],
            **{name: getattr(self, name)[self.token_span(i)] for name in _TOKEN_FIELDS},
        )

    @staticmethod
    def concatenate(batches: Sequence[Batch]) -> Batch:
        """One batch after another. All must carry the same extra fields."""
        samples = Batch.of([b.sample(i) for b in batches for i in range(len(b))])
        for kind in ("extra_T", "extra_B"):
            names = {frozenset(getattr(b, kind)) for b in batches}
            if len(names) > 1:
                raise ValueError(f"batches carry different fields in {kind}: {[sorted(n) for n in names]}")
            for name in next(iter(names), frozenset()):
                getattr(samples, kind)[name] = np.concatenate([getattr(b, kind)[name] for b in batches])
        return samples


def micro_batches(lengths_B: npt.NDArray[np.int64], tokens_per_device: int) -> list[list[int]]:
    """Indices cut so that no micro-batch holds more than `tokens_per_device` tokens, longest first, first fit.

    A sample longer than the limit gets a micro-batch of its own. The order of samples inside a
    micro-batch is that of the batch.
    """
    bins: list[list[int]] = []
    room: list[int] = []
    for i in sorted(range(len(lengths_B)), key=lambda i: (-int(lengths_B[i]), i)):
        length = int(lengths_B[i])
        slot = next((b for b, free in enumerate(room) if free >= length), None)
        if slot is None:
            bins.append([i])
            room.append(tokens_per_device - length)
        else:
            bins[slot].append(i)
            room[slot] -= length
    return [sorted(b) for b in bins]


def balance_by_tokens(lengths: Sequence[int], n_ranks: int) -> list[list[int]]:
    """Indices for each data-parallel rank with about equal token sums: longest first to the lightest rank."""
    ranks: list[list[int]] = [[] for _ in range(n_ranks)]
    load = [0] * n_ranks
    for i in sorted(range(len(lengths)), key=lambda i: (-lengths[i], i)):
        r = min(range(n_ranks), key=lambda r: (load[r], len(ranks[r]), r))
        ranks[r].append(i)
        load[r] += lengths[i]
    return [sorted(r) for r in ranks]
