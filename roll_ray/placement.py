"""Who sits where, from a hand-written mapping: bundles of whole devices, and the share of each role on them.

A bundle reserves whole devices for the run. The k roles that live on a bundle declare 1/k of it each;
who may compute at a time is decided by the controller's phases, never by the share.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

from roll_ray.devices import check_against, engines_of
from roll_ray.errors import SettingsError
from roll_ray.settings import RunSettings

JUDGE = "judge"
"""The role of engines that judge (`settings.judge`)."""


@dataclass(frozen=True, slots=True)
class Seat:
    """One worker's place: `bundle` of the placement group, the devices it computes on, its share of them."""

    role: str
    rank: int
    bundle: int
    devices: tuple[int, ...]
    share: Fraction

    @property
    def name(self) -> str:
        return f"{self.role}-{self.rank}"


@dataclass(frozen=True, slots=True)
class Placement:
    """The bundles (how many devices each) and the seats on them."""

    bundles: tuple[int, ...]
    seats: tuple[Seat, ...]

    def of(self, role: str) -> tuple[Seat, ...]:
        return tuple(s for s in self.seats if s.role == role)

    def table(self) -> list[tuple[str, str, str]]:
        """Rows (worker, devices, share) for `plan` and the run's first lines."""
        return [(s.name, ", ".join(map(str, s.devices)), str(s.share)) for s in self.seats]


def place(settings: RunSettings) -> Placement:
    """The placement that `settings.devices` describes. Raises SettingsError when it cannot be."""
    degree = settings.engine.tensor_parallel
    replayed = settings.replay is not None
    rollout = () if replayed else settings.devices.rollout
    try:
        engines = engines_of(rollout, degree)
    except ValueError as error:
        raise SettingsError(
            f"devices.rollout={list(rollout)} does not fit engine.tensor_parallel={degree}: {error}",
            next_step=f"name a multiple of {degree} devices or lower engine.tensor_parallel",
        ) from None
    judges = _judges(settings) if not replayed else []
    bundles = [frozenset(e) for e in engines]
    bundles += [frozenset(j) for j in judges if not any(b & set(j) for b in bundles)]
    left = [d for d in settings.devices.train if not any(d in b for b in bundles)]
    bundles += [frozenset({d}) for d in left]

    def bundle_of(device: int) -> int:
        return next(i for i, b in enumerate(bundles) if device in b)

    roles_on = [0] * len(bundles)
    for engine in engines:
        roles_on[bundle_of(engine[0])] += 1
    for judge in judges:
        if not any(b >= set(judge) for b in bundles):
            raise SettingsError(
                f"judge.devices={list(settings.judge.devices)}: an engine of the judge on devices {list(judge)} "
                "would lie across several rollout engines",
                next_step="let it lie within the devices of one rollout engine, or on devices of its own",
            )
    for role in (settings.devices.train, [j[0] for j in judges]):
        for bundle in {bundle_of(d) for d in role}:
            roles_on[bundle] += 1

    def seat(role: str, rank: int, devices: tuple[int, ...]) -> Seat:
        bundle = bundle_of(devices[0])
        return Seat(role, rank, bundle, devices, Fraction(1, roles_on[bundle]))

    seats = [seat("rollout", rank, devices) for rank, devices in enumerate(engines)]
    seats += [seat("actor-train", rank, (device,)) for rank, device in enumerate(settings.devices.train)]
    seats += [seat(JUDGE, rank, devices) for rank, devices in enumerate(judges)]
    return Placement(tuple(len(b) for b in bundles), tuple(seats))


def _judges(settings: RunSettings) -> list[tuple[int, ...]]:
    """The devices of each engine of the judge; none when the run has none."""
    judge = settings.judge
    if not judge.in_the_run:
        return []
    try:
        return engines_of(judge.devices, judge.tensor_parallel)
    except ValueError as error:
        raise SettingsError(
            f"judge.devices={list(judge.devices)} does not fit judge.tensor_parallel={judge.tensor_parallel}: {error}",
            next_step=f"name a multiple of {judge.tensor_parallel} devices or lower judge.tensor_parallel",
        ) from None


def device_slots(settings: RunSettings, cores: int) -> int:
    """How many devices a CPU machine makes: as many as it has cores for, with the threads that each is given."""
    return max(1, cores // settings.devices.threads_per_device)


def missing_devices(settings: RunSettings, available: int) -> list[str]:
    """A sentence for each list that names a device which the cluster does not have."""
    lists = {"devices.rollout": settings.devices.rollout, "devices.train": settings.devices.train}
    if settings.judge.in_the_run:
        lists["judge.devices"] = settings.judge.devices
    if settings.replay is not None:
        lists = {"devices.train": settings.devices.train}
    return [s for name, devices in lists.items() if (s := check_against(devices, available, name))]
