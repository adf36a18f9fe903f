"""The transaction's bookkeeping refuses every way in which an update can be incomplete or out of order."""

from __future__ import annotations

import math
import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st

from roll_ray.errors import WeightUpdateError
from roll_ray.generation import Canary
from roll_ray.weights.manifest import TensorEntry, WeightManifest
from roll_ray.weights.transaction import ArrivalLog, VersionGate, check_canary


def manifest(version: int = 1, names: tuple[str, ...] = ("a", "b", "c"), salt: int = 0) -> WeightManifest:
    entries = tuple(TensorEntry(n, "float32", (2,), 0, 64 * i, 8, i + salt) for i, n in enumerate(names))
    return WeightManifest(version, "/nowhere", (64 * len(names),), entries, Canary((1, 2), (-0.5,), 1e-3))


def test_a_complete_update_passes_in_any_order() -> None:
    log = ArrivalLog(manifest())
    for name, digest in (("c", 2), ("a", 0), ("b", 1)):
        log.arrived(name, digest)
    log.finish(parameters=["p", "q"], loaded=["q", "p"])


def test_a_missing_tensor_is_named() -> None:
    log = ArrivalLog(manifest())
    log.arrived("a", 0)
    log.arrived("c", 2)
    with pytest.raises(WeightUpdateError, match="lacks b,"):
        log.finish([], [])


@pytest.mark.parametrize(
    ("name", "digest", "words"),
    [
        ("a", 0, "tensor a twice"),
        ("z", 0, "z, which its manifest does not declare"),
        ("b", 7, "b with other bytes"),
    ],
)
def test_repeated_unknown_and_damaged_tensors_are_named(name: str, digest: int, words: str) -> None:
    log = ArrivalLog(manifest())
    log.arrived("a", 0)
    with pytest.raises(WeightUpdateError, match=words):
        log.arrived(name, digest)


def test_a_name_declared_twice_is_refused() -> None:
    with pytest.raises(WeightUpdateError, match="declares a more than once"):
        ArrivalLog(manifest(names=("a", "b", "a")))


def test_a_parameter_that_nothing_loaded_is_named() -> None:
    log = ArrivalLog(manifest(names=("a",)))
    log.arrived("a", 0)
    with pytest.raises(WeightUpdateError, match=r"old values: head\.weight"):
        log.finish(["head.weight", "norm"], ["norm"])


def test_the_weights_of_the_model_folder_may_be_published_under_their_own_version() -> None:
    gate = VersionGate(0)
    gate.begin(manifest(0))
    gate.commit()
    with pytest.raises(WeightUpdateError, match="version 0 does not follow 0"):
        gate.begin(manifest(0))


def test_versions_only_go_up() -> None:
    gate = VersionGate(0)
    gate.begin(manifest(3))
    gate.commit()
    for version in (3, 2):
        with pytest.raises(WeightUpdateError, match=f"version {version} does not follow 3"):
            gate.begin(manifest(version))
    gate.begin(manifest(5))
    gate.commit()
    assert gate.version == 5


def test_two_updates_at_once_are_refused() -> None:
    gate = VersionGate(0)
    gate.begin(manifest(1))
    with pytest.raises(WeightUpdateError, match="while 1 is being committed"):
        gate.begin(manifest(2))


def test_a_failure_fences_until_the_committed_version_or_a_later_one_is_loaded() -> None:
    gate = VersionGate(0)
    gate.begin(manifest(1))
    gate.commit()
    gate.begin(manifest(2))
    gate.fail("the canary sang")
    assert gate.version == 1
    with pytest.raises(WeightUpdateError, match="the canary sang"):
        gate.check_open_for_requests("rollout-0")
    gate.begin(manifest(1))
    gate.commit()
    gate.check_open_for_requests("rollout-0")


def test_an_update_that_is_in_force_already_is_recognised_by_its_bytes() -> None:
    gate = VersionGate(0)
    gate.begin(manifest(1))
    gate.commit()
    assert gate.has(manifest(1))
    assert not gate.has(manifest(1, salt=9))
    assert not gate.has(manifest(2))


@given(st.lists(st.tuples(st.integers(0, 6), st.booleans()), max_size=30))
def test_the_committed_version_never_goes_back(updates: list[tuple[int, bool]]) -> None:
    gate, seen = VersionGate(0), [0]
    for version, succeeds in updates:
        try:
            gate.begin(manifest(version))
        except WeightUpdateError:
            continue
        if succeeds:
            gate.commit()
        else:
            gate.fail("x")
        seen.append(gate.version)
    assert seen == sorted(seen)


def test_the_canary_compares_what_the_engine_scored() -> None:
    canary = Canary((1, 2, 3), (-1.0, -2.0), 0.1)
    assert check_canary(4, canary, [-1.05]) == pytest.approx(0.05)
    assert check_canary(4, canary, [-1.0, -2.01]) == pytest.approx(0.01)


@pytest.mark.parametrize("logprobs", [[-1.0, -2.2], [-1.0, math.nan], [math.nan, -2.0], []])
def test_the_canary_refuses_a_difference_a_nan_and_nothing(logprobs: list[float]) -> None:
    with pytest.raises(WeightUpdateError, match="canary"):
        check_canary(4, Canary((1, 2, 3), (-1.0, -2.0), 0.1), logprobs)


def test_a_manifest_survives_pickle_and_the_plain_form() -> None:
    one = manifest()
    assert pickle.loads(pickle.dumps(one)) == one
    assert WeightManifest.from_plain(one.to_plain()) == one
