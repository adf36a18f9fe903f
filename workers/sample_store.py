"""The sample store of a node: owns the tokens of scored samples until they are trained or dropped.

Everything else passes receipts (numbers) around; tokens leave only by `fetch`, towards a trainer rank.
"""

from __future__ import annotations

from collections.abc import Sequence

from roll_ray.batch import Batch
from roll_ray.receipts import Receipt, TurnNumbers
from roll_ray.sample import NO_VERSION, Role, Sample
from schedulers.protocol import SampleId

Key = tuple[SampleId, int]
"""A sample and the number of the attempt that made it."""

_NAMED = 3


class SamplesLostError(LookupError):
    """Samples that a store was asked for and does not hold (any more)."""

    def __init__(self, store: str, keys: Sequence[Key]) -> None:
        named = ", ".join(f"{s.visit.prompt_id}/{s.visit.number}/{s.index}@{a}" for s, a in keys[:_NAMED])
        more = f" and {len(keys) - _NAMED} more" if len(keys) > _NAMED else ""
        super().__init__(f"{store} does not hold {named}{more} (prompt/visit/response@attempt)")
        self.store, self.keys = store, tuple(keys)

    def __reduce__(self) -> tuple[object, ...]:
        return type(self), (self.store, self.keys)


class SampleStore:
    """Samples by (sample id, attempt). Putting one twice and dropping one that is gone change nothing."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._samples: dict[Key, Sample] = {}
        self._bytes = 0
        self._bytes_max = 0

    def put_many(self, samples: Sequence[Sample]) -> list[Receipt]:
        """Take samples over; a receipt for each, in their order."""
        for sample in samples:
            key = (sample.id, sample.attempt)
            if key not in self._samples:
                self._samples[key] = sample
                self._bytes += _n_bytes(sample)
        self._bytes_max = max(self._bytes_max, self._bytes)
        return [receipt_of(sample, self.name) for sample in samples]

    def fetch(self, ids: Sequence[Key]) -> Batch:
        """A batch of these samples in this order; they stay until dropped. Raises `SamplesLostError`."""
        missing = [key for key in map(_key, ids) if key not in self._samples]
        if missing:
            raise SamplesLostError(self.name, missing)
        return Batch.of([self._samples[_key(key)] for key in ids])

    def drop(self, ids: Sequence[Key]) -> None:
        for key in map(_key, ids):
            sample = self._samples.pop(key, None)
            if sample is not None:
                self._bytes -= _n_bytes(sample)

    def inventory(self) -> list[Receipt]:
        """Receipts of all that is held: what a restarted rollout manager asks for."""
        return [receipt_of(sample, self.name) for sample in self._samples.values()]

    def metrics(self) -> dict[str, float]:
        """Samples and bytes held now, and the most bytes held so far."""
        return {
            "samples": float(len(self._samples)),
            "bytes": float(self._bytes),
            "bytes_max": float(self._bytes_max),
        }


def receipt_of(sample: Sample, store: str) -> Receipt:
    """What the control plane needs to know of a sample."""
    policy = sample.roles_T == Role.POLICY
    versions = sample.versions_T[policy]
    times = sample.times
    return Receipt(
        sample=sample.id,
        attempt=sample.attempt,
        store=store,
        n_tokens=len(sample.tokens_T),
        n_policy_tokens=len(versions),
        truncated=sample.truncated,
        reward=sample.reward.value,
        reason=sample.reward.reason,
        domain=sample.domain,
        version_min=int(versions.min()) if len(versions) else NO_VERSION,
        version_max=int(versions.max()) if len(versions) else NO_VERSION,
        generation_s=max(0.0, times.generated_s - times.started_s),
        reward_s=max(0.0, times.scored_s - times.generated_s),
        parts=sample.reward.parts,
        turns=_turn_numbers(sample),
    )


def _turn_numbers(sample: Sample) -> tuple[TurnNumbers, ...]:
    if len(sample.turns) == 1 and sample.turns[0].state is None:
        return ()
    return tuple(TurnNumbers(t.end - t.begin, t.reward, t.state) for t in sample.turns)


def _key(key: Key) -> Key:
    sample, attempt = key
    return sample, attempt


def _n_bytes(sample: Sample) -> int:
    return (
        sample.tokens_T.nbytes + sample.roles_T.nbytes + sample.logprobs_T.nbytes + sample.versions_T.nbytes
    )
