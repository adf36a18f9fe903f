"""The router places each request on the least-loaded engine that is not fenced."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from schedulers.router import Router


def free_of(up: dict[str, int], fenced: set[str], required: int) -> list[str]:
    return [n for n in up if n not in fenced and up[n] >= required]


@given(st.integers(0, 2**32))
@settings(max_examples=300, deadline=None)
def test_it_agrees_with_a_plain_search_of_the_minimum_under_any_history(seed: int) -> None:
    random, router = Random(seed), Router[int]()
    engines: dict[str, dict[int, int]] = {}
    up: dict[str, int] = {}
    refused: set[str] = set()
    released: set[str] = set()
    required = 0
    for request in range(60):
        match random.randrange(9):
            case 0:
                name = f"e{random.randrange(5)}"
                up[name] = random.randint(0, 3)
                refused.discard(name)
                engines.setdefault(name, {})
                router.engine_up(name, up[name])
            case 1:
                name = f"e{random.randrange(5)}"
                assert sorted(router.engine_down(name)) == sorted(engines.get(name, {}))
                up.pop(name, None)
                engines[name] = {}
            case 2 if up:
                name = random.choice(sorted(up))
                refused.add(name)
                router.refuse(name, "hash")
            case 3:
                required = random.randint(required, 2)
                router.require(required)
            case 4 if any(engines.values()):
                name = random.choice([n for n in engines if engines[n]])
                done = random.choice(sorted(engines[name]))
                del engines[name][done]
                assert router.done(done) == name
                assert router.done(done) is None
            case 5 if engines:
                names = random.sample(sorted(engines), random.randint(1, len(engines)))
                rest = [n for n in free_of(up, refused | released, required) if n not in names]
                held = {r: n for name in names for r, n in engines[name].items()}
                if held and not rest:
                    with pytest.raises(ValueError, match="no engine is open"):
                        router.release(names)
                    continue
                moved = router.release(names)
                released |= set(names)
                assert moved.keys() == held.keys()
                for name in names:
                    engines[name] = {}
                for moving, name in moved.items():
                    assert sum(engines[name].values()) == min(sum(engines[n].values()) for n in rest)
                    engines[name][moving] = held[moving]
            case 6 if released:
                name = random.choice(sorted(released))
                released.discard(name)
                router.take_back([name])
            case _:
                n_tokens = random.randint(1, 50)
                free = free_of(up, refused | released, required)
                assert router.open_engines() == sorted(free)
                best = min(free, key=lambda n: (sum(engines[n].values()), len(engines[n]), n), default=None)
                assert router.place(request, n_tokens) == best
                if best is not None:
                    engines[best][request] = n_tokens
    assert router.load() == {n: (len(r), sum(r.values())) for n, r in engines.items()}


def test_a_turn_stays_where_its_prefix_is_cached_and_counts_there() -> None:
    router = Router[int]()
    for name in ("a", "b"):
        router.engine_up(name, 0)
    assert router.place(0, 100) == "a"
    assert router.place(1, 5, near="a") == "a"
    assert router.load() == {"a": (2, 105), "b": (0, 0)}
    assert router.place(2, 5, near="gone") == "b"


def test_a_fenced_engine_is_not_taken_for_its_prefix() -> None:
    router = Router[int]()
    for name in ("a", "b"):
        router.engine_up(name, 0)
    router.refuse("b", "hash")
    assert router.place(1, 5, near="b") == "a"
    router.refuse("a", "hash")
    assert router.place(2, 5, near="b") is None


def test_an_engine_that_is_behind_gets_nothing_and_says_why() -> None:
    router = Router[str]()
    router.engine_up("a", 1)
    router.engine_up("b", 2)
    router.require(2)
    assert [router.place(f"r{i}", 10) for i in range(3)] == ["b", "b", "b"]
    assert "version 1, 2 is required" in router.fence("a")
    router.engine_up("a", 2)
    assert router.place("r9", 10) == "a"


def test_a_request_that_is_placed_cannot_be_placed_again() -> None:
    router = Router[str]()
    router.engine_up("a", 0)
    router.place("r", 1)
    with pytest.raises(ValueError, match="placed on a already"):
        router.place("r", 1)
    assert router.engine_down("a") == ["r"]
    assert router.place("r", 1) is None


def test_what_a_released_engine_held_goes_on_elsewhere_the_longest_first() -> None:
    router = Router[str]()
    for name in ("a", "b", "c"):
        router.engine_up(name, 0)
    for request, n_tokens in (("r0", 9), ("r1", 5), ("r2", 4), ("r3", 1)):
        router.place(request, n_tokens)
    assert router.load() == {"a": (1, 9), "b": (1, 5), "c": (2, 5)}
    assert router.release(["c"]) == {"r2": "b", "r3": "a"}
    assert router.fence("c") == "released to training"
    assert router.place("r4", 1) == "b"
    router.take_back(["c"])
    assert router.place("r5", 1) == "c"
