"""The router places each request on the least-loaded engine that is not fenced."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from schedulers.router import Router


@given(st.integers(0, 2**32))
@settings(max_examples=500, deadline=None)
def test_it_agrees_with_a_plain_search_of_the_minimum_under_any_history(seed: int) -> None:
    random, router = Random(seed), Router[int]()
    engines: dict[str, dict[int, int]] = {}
    up: dict[str, int] = {}
    refused: set[str] = set()
    required = 0
    for request in range(60):
        match random.randrange(7):
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
            case _:
                n_tokens = random.randint(1, 50)
                free = [n for n in up if n not in refused and up[n] >= required]
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
