"""The bookkeeping of a weight update: begin(version), tensors, commit; pure, and strict at every step.

`ArrivalLog` lives where the tensors arrive and checks them; `VersionGate` lives where requests are admitted
and keeps the committed version. Invariants: the committed version never goes back; a version is committed
only after every declared tensor arrived once with the declared bytes and every parameter was loaded; after a
failure nothing is admitted until an update succeeds.
"""

from __future__ import annotations

from collections.abc import Iterable

from roll_ray.errors import WeightUpdateError
from roll_ray.generation import Canary
from roll_ray.weights.manifest import WeightManifest

_NAMES_SHOWN = 4


class ArrivalLog:
    """Which tensors of a manifest have arrived, and whether they are what was declared."""

    def __init__(self, manifest: WeightManifest) -> None:
        self._version = manifest.version
        self._declared = {entry.name: entry.xxh3 for entry in manifest.tensors}
        self._arrived: set[str] = set()
        if len(self._declared) != len(manifest.tensors):
            names = [entry.name for entry in manifest.tensors]
            repeated = sorted({n for n in names if names.count(n) > 1})
            raise self._error(f"declares {_some(repeated)} more than once")

    def arrived(self, name: str, xxh3: int) -> None:
        """Record a tensor by the hash of the bytes received."""
        if name not in self._declared:
            raise self._error(f"brought tensor {name}, which its manifest does not declare")
        if name in self._arrived:
            raise self._error(f"brought tensor {name} twice")
        if xxh3 != self._declared[name]:
            raise self._error(
                f"brought tensor {name} with other bytes than were published "
                f"(hash {xxh3:016x}, declared {self._declared[name]:016x})"
            )
        self._arrived.add(name)

    def finish(self, parameters: Iterable[str], loaded: Iterable[str]) -> None:
        """All declared tensors must have arrived and every parameter of the engine's model been loaded."""
        if missing := sorted(set(self._declared) - self._arrived):
            raise self._error(f"lacks {_some(missing)}, which its manifest declares")
        if left := sorted(set(parameters) - set(loaded)):
            raise self._error(f"left parameters of the engine's model at their old values: {_some(left)}")

    def _error(self, what: str) -> WeightUpdateError:
        return WeightUpdateError(
            f"weight version {self._version} {what}",
            why="the update is refused, since it would leave the engine with weights that no trainer has",
            next_step="publish the version again; if it persists, compare the trainer's parameter names "
            "with those of the model folder",
        )


class VersionGate:
    """The committed version of an engine, and whether it may serve."""

    def __init__(self, version: int) -> None:
        self.version = version
        self.fenced = ""
        self._open: WeightManifest | None = None
        self._committed: WeightManifest | None = None

    def has(self, manifest: WeightManifest) -> bool:
        """Whether these very weights are committed already: a repeated update is then nothing to do."""
        return (
            not self.fenced
            and self._committed is not None
            and self._committed.version == manifest.version
            and bool(manifest.tensors)
            and self._committed.same_weights_as(manifest)
        )

    def begin(self, manifest: WeightManifest) -> None:
        """Open an update. The version at hand is accepted again only to mend a fenced engine, or in the place of
        the model folder's own weights, which nobody published."""
        if self._open is not None:
            raise WeightUpdateError(
                f"weight version {manifest.version} was begun while {self._open.version} is being committed",
                next_step="wait for the update under way to end",
            )
        again = manifest.version == self.version and not self.fenced and self._committed is not None
        if manifest.version < self.version or again:
            raise WeightUpdateError(
                f"weight version {manifest.version} does not follow {self.version}, which this engine has",
                why="versions only go up, so that a token's version says which weights sampled it",
                next_step="publish the weights under a higher version",
            )
        self._open = manifest

    def commit(self) -> None:
        """The open update is in force; a fence is lifted."""
        if self._open is None:
            raise WeightUpdateError("a weight update was committed that was never begun")
        self.version, self._committed, self._open, self.fenced = self._open.version, self._open, None, ""

    def fail(self, reason: str) -> None:
        """The open update was refused half-way: nothing is served until one succeeds."""
        version = self._open.version if self._open else self.version
        self._open, self.fenced = None, f"the update to weight version {version} failed: {reason}"

    def withdraw(self, reason: str) -> None:
        """The committed weights are gone: nothing is served until an update succeeds, of this version or a later."""
        self.fenced = reason

    def check_open_for_requests(self, engine: str) -> None:
        if self.fenced:
            raise WeightUpdateError(
                f"{engine} takes no requests",
                why=self.fenced,
                next_step=f"update it again, with weight version {self.version} or a later one",
            )


def check_canary(version: int, canary: Canary, engine_logprobs: list[float]) -> float:
    """Largest difference in nats between the engine's and the trainer's log-probabilities of the canary.

    `engine_logprobs` may stop early (a canary longer than the engine scores in one piece): a causal model's
    log-probabilities of the first tokens do not depend on the rest. Raises WeightUpdateError beyond the
    tolerance, and for a value that is not a number."""
    differences = [abs(a - b) for a, b in zip(engine_logprobs, canary.logprobs, strict=False)]
    worst = max(differences, default=0.0)
    if not differences or not all(d <= canary.tolerance for d in differences):
        raise WeightUpdateError(
            f"weight version {version}: the engine scores the canary {worst:.3g} nats off the trainer "
            f"(tolerance {canary.tolerance:.3g}, {len(differences)} tokens compared)",
            why="the engine computes with other weights than the trainer, although every tensor arrived",
            next_step="the engine stays fenced until an update passes; `roll-ray selfcheck` tells which part",
        )
    return worst


def _some(names: list[str]) -> str:
    """A few names and how many more."""
    more = len(names) - _NAMES_SHOWN
    return ", ".join(names[:_NAMES_SHOWN]) + (f" and {more} more" if more > 0 else "")
