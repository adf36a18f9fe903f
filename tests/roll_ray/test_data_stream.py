"""PromptStream: an order that seed and position pin down, over epochs and resumes."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from roll_ray.data_stream import PromptStream
from roll_ray.errors import DataError
from roll_ray.sample import Prompt


def prompts(n: int) -> list[Prompt]:
    return [Prompt(id=f"p{i}", text=f"text {i}") for i in range(n)]


@given(n=st.integers(1, 20), seed=st.integers(0, 2**40), draws=st.lists(st.integers(0, 30), max_size=8))
def test_every_epoch_uses_every_prompt_once_and_numbers_its_visits(
    n: int, seed: int, draws: list[int]
) -> None:
    stream = PromptStream(prompts(n), seed)
    drawn = [item for size in draws for item in stream.draw(size)]
    for epoch, begin in enumerate(range(0, len(drawn), n)):
        part = drawn[begin : begin + n]
        assert {visit.number for visit, _ in part} == {epoch}
        assert max(Counter(prompt.id for _, prompt in part).values()) == 1
    assert all(visit.prompt_id == prompt.id for visit, prompt in drawn)


@given(
    n=st.integers(1, 20),
    seed=st.integers(0, 100),
    before=st.integers(0, 50),
    sizes=st.lists(st.integers(1, 9), max_size=5),
)
def test_a_restored_stream_goes_on_as_the_one_never_stopped(
    n: int, seed: int, before: int, sizes: list[int]
) -> None:
    whole, stopped = PromptStream(prompts(n), seed), PromptStream(prompts(n), seed)
    whole.draw(before)
    stopped.draw(before)
    state = stopped.state()
    assert all(type(value) is int for value in state.values())
    resumed = PromptStream(list(reversed(prompts(n))), seed)
    resumed.restore(state)
    for size in sizes:
        assert resumed.draw(size) == whole.draw(size)


def test_batch_size_does_not_change_the_order() -> None:
    one, many = PromptStream(prompts(10), 3), PromptStream(prompts(10), 3)
    assert [one.draw(1)[0] for _ in range(25)] == many.draw(25)


def test_epochs_and_seeds_have_orders_of_their_own() -> None:
    stream = PromptStream(prompts(50), 0)
    first, second = stream.draw(50), stream.draw(50)
    assert [p.id for _, p in first] != [p.id for _, p in second]
    assert [p.id for _, p in first] != [p.id for _, p in PromptStream(prompts(50), 1).draw(50)]


def test_a_data_set_as_large_as_one_batch_is_allowed() -> None:
    stream = PromptStream(prompts(8), 0)
    for epoch in range(3):
        batch = stream.draw(8)
        assert {prompt.id for _, prompt in batch} == {f"p{i}" for i in range(8)}
        assert {visit.number for visit, _ in batch} == {epoch}


def test_a_batch_larger_than_the_data_goes_on_into_the_next_epoch() -> None:
    drawn = PromptStream(prompts(3), 0).draw(8)
    assert [visit.number for visit, _ in drawn] == [0, 0, 0, 1, 1, 1, 2, 2]
    assert len({visit for visit, _ in drawn}) == 8


def test_other_data_or_another_seed_is_refused_at_resume() -> None:
    state = PromptStream(prompts(5), 0).state()
    with pytest.raises(DataError, match="6 prompts now, 5 then"):
        PromptStream(prompts(6), 0).restore(state)
    with pytest.raises(DataError, match="with other ids"):
        PromptStream([*prompts(4), Prompt(id="new", text="x")], 0).restore(state)
    with pytest.raises(DataError, match="set seed=0"):
        PromptStream(prompts(5), 7).restore(state)


def test_no_prompts_and_repeated_ids_are_errors() -> None:
    with pytest.raises(DataError, match="no prompt to train on"):
        PromptStream([], 0)
    with pytest.raises(DataError, match="more than once, the first is 'p0'"):
        PromptStream([*prompts(2), *prompts(1)], 0)
