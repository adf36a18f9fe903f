"""Streams: every token once, in order, with its version; nothing after the end; clients apart."""

from __future__ import annotations

import asyncio
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from roll_ray.errors import RollRayError
from roll_ray.generation import GenerationDelta, GenerationRequest
from roll_ray.sample import SamplingDistribution
from workers.engine_streams import StreamBook


def request(name: str, client: str = "c") -> GenerationRequest:
    return GenerationRequest(name, client, (1, 2), SamplingDistribution(), 8)


def poll(book: StreamBook, client: str = "c", timeout_s: float = 0.0) -> list[GenerationDelta]:
    return asyncio.run(book.collect(client, timeout_s, partial_interval_s=0.0))


@given(st.lists(st.tuples(st.integers(0, 2), st.integers(0, 3), st.booleans()), max_size=40))
def test_deltas_joined_are_what_the_engine_made(steps: list[tuple[int, int, bool]]) -> None:
    book, streams = StreamBook(), {}
    made: dict[str, list[tuple[int, float, int]]] = {f"r{i}": [] for i in range(3)}
    got: dict[str, list[tuple[int, float, int]]] = {f"r{i}": [] for i in range(3)}
    finishes: dict[str, list[str]] = {f"r{i}": [] for i in range(3)}
    for name in made:
        streams[name] = book.open(request(name))

    def drain() -> None:
        for delta in poll(book):
            got[delta.id] += zip(delta.tokens, delta.logprobs, delta.versions, strict=True)
            finishes[delta.id] += [delta.finish] if delta.finish else []

    for count, (which, n, polls) in enumerate(steps):
        name, version = f"r{which}", count // 10
        tokens, logprobs = [count] * n, [-0.5 * count] * n
        book.grow(streams[name].key, tokens, logprobs, version, None)
        made[name] += [(count, -0.5 * count, version)] * n
        if polls:
            drain()
    for name in made:
        book.grow(streams[name].key, [], [], 9, "length")
        book.grow(streams[name].key, [7], [0.0], 9, None)  # too late: void
    drain()
    assert got == made
    assert all(finish == ["length"] for finish in finishes.values())
    assert poll(book) == []
    assert len(book) == 0


def test_each_client_gets_its_own() -> None:
    book = StreamBook()
    a, b = book.open(request("a", "one")), book.open(request("b", "two"))
    book.grow(a.key, [1], [-1.0], 0, "stop")
    book.grow(b.key, [2], [-1.0], 0, "stop")
    assert [d.id for d in poll(book, "two")] == ["b"]
    assert [d.id for d in poll(book, "one")] == ["a"]


def test_a_finished_request_is_answered_at_once_and_a_quiet_client_after_its_time_out() -> None:
    async def scene() -> tuple[float, float]:
        book = StreamBook()
        stream = book.open(request("a"))
        asyncio.get_running_loop().call_later(0.05, book.grow, stream.key, [1], [-1.0], 0, "stop")
        started_s = time.perf_counter()
        assert [d.finish for d in await book.collect("c", 5.0, 3.0)] == ["stop"]
        finished_s = time.perf_counter()
        assert await book.collect("c", 0.2, 3.0) == []
        return finished_s - started_s, time.perf_counter() - finished_s

    answered_s, quiet_s = asyncio.run(scene())
    assert answered_s < 1.0
    assert 0.19 < quiet_s < 1.0


def test_a_running_request_is_heard_of_every_interval_even_while_others_finish() -> None:
    async def scene() -> set[str]:
        book, heard = StreamBook(), set()
        long = book.open(request("long"))
        for i in range(40):
            short = book.open(request(f"short{i}"))
            book.grow(long.key, [i], [-1.0], 0, None)
            book.grow(short.key, [i], [-1.0], 0, "stop")
            heard |= {d.id for d in await book.collect("c", 1.0, 0.02)}
            await asyncio.sleep(0.002)
        return heard

    assert "long" in asyncio.run(scene())


def test_aborted_requests_keep_their_tokens_and_unknown_ones_are_counted() -> None:
    book = StreamBook()
    stream = book.open(request("a"))
    book.grow(stream.key, [5, 6], [-1.0, -2.0], 3, None)
    assert book.abort(["a", "nobody"]) == [stream.key]
    assert book.unknown_aborts == 1
    (delta,) = poll(book)
    assert (delta.finish, delta.tokens, delta.versions) == ("abort", (5, 6), (3, 3))


def test_a_request_that_starts_again_ignores_what_its_first_start_made() -> None:
    book = StreamBook()
    stream = book.open(request("a"))
    old = book.started_again(stream)
    book.grow(old, [1], [-1.0], 0, "abort")
    book.grow(stream.key, [2], [-1.0], 1, "stop")
    assert [(d.tokens, d.versions, d.finish) for d in poll(book)] == [((2,), (1,), "stop")]


def test_two_open_requests_of_one_id_are_refused() -> None:
    book = StreamBook()
    book.open(request("a"))
    with pytest.raises(RollRayError, match="request a is open already"):
        book.open(request("a"))


def test_an_end_that_we_do_not_know_is_an_error_with_words() -> None:
    book = StreamBook()
    book.grow(book.open(request("a")).key, [], [], 0, "repetition")
    (delta,) = poll(book)
    assert delta.finish == "error"
    assert "repetition" in delta.error
