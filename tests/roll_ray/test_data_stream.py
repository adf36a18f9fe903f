"""Prompts in an order that seed and position pin down, over epochs and resumes; domains mixed by weight."""

from __future__ import annotations

import json
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from roll_ray.data_stream import DomainMix, PromptStream, prompt_stream, whole_weights
from roll_ray.errors import DataError
from roll_ray.sample import Prompt
from schedulers.protocol import Visit


def prompts(n: int) -> list[Prompt]:
    return [Prompt(id=f"p{i}", text=f"text {i}") for i in range(n)]


@settings(deadline=None)
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


@settings(deadline=None)
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


def mixed_prompts(**sizes: int) -> list[Prompt]:
    return [Prompt(id=f"{d}{i}", text=f"{d} {i}", domain=d) for d, n in sizes.items() for i in range(n)]


def domains_of(drawn: list[tuple[Visit, Prompt]]) -> Counter[str]:
    return Counter(prompt.domain for _, prompt in drawn)


@settings(deadline=None)
@given(
    weights=st.dictionaries(st.sampled_from("abcd"), st.integers(1, 9), min_size=1),
    n=st.integers(0, 150),
    seed=st.integers(0, 9),
)
def test_a_mix_is_exact_in_every_period_and_starves_no_domain(
    weights: dict[str, int], n: int, seed: int
) -> None:
    mix = DomainMix(mixed_prompts(**dict.fromkeys(weights, 3)), seed, weights)
    whole = whole_weights(weights)
    period = sum(whole.values())
    drawn = mix.draw(n + period)
    for begin in range(0, len(drawn) - period + 1, period):
        assert domains_of(drawn[begin : begin + period]) == whole
    for i in range(len(drawn) + 1):  # at no moment is a domain a whole prompt behind for each other domain
        counts = domains_of(drawn[:i])
        assert all(abs(counts[d] - i * w / period) < len(weights) for d, w in whole.items())


@settings(deadline=None)
@given(
    weights=st.fixed_dictionaries({"maths": st.floats(0.01, 1), "code": st.sampled_from([0.25, 0.5, 2.0])}),
    before=st.integers(0, 60),
    sizes=st.lists(st.integers(1, 9), max_size=4),
)
def test_a_restored_mix_goes_on_as_the_one_never_stopped(
    weights: dict[str, float], before: int, sizes: list[int]
) -> None:
    data = mixed_prompts(maths=5, code=3)
    whole = DomainMix(data, 7, weights)
    whole.draw(before)
    resumed = DomainMix(list(reversed(data)), 7, weights)
    resumed.restore(json.loads(json.dumps(whole.state())))
    for size in sizes:
        assert resumed.draw(size) == whole.draw(size)


def test_a_domain_has_the_order_and_the_epochs_that_it_has_alone() -> None:
    drawn = DomainMix(mixed_prompts(maths=4, code=20), 3, {"maths": 0.7, "code": 0.3}).draw(100)
    assert domains_of(drawn) == {"maths": 70, "code": 30}
    maths = [item for item in drawn if item[1].domain == "maths"]
    assert maths == PromptStream(mixed_prompts(maths=4), 3).draw(70)


def test_a_weight_of_0_leaves_a_domain_out() -> None:
    drawn = prompt_stream(mixed_prompts(a=2, b=2), 0, {"a": 0, "b": 1}).draw(5)
    assert domains_of(drawn) == {"b": 5}


@pytest.mark.parametrize(
    ("weights", "message"),
    [
        ({"maths": 1, "cod": 1}, r"'cod', and the data has no such domain(.|\n)*domains are code, maths"),
        ({"maths": 1}, "no weight for 'code'"),
        ({"maths": 0, "code": 0}, "all 0"),
    ],
)
def test_weights_that_do_not_fit_the_data_are_refused(weights: dict[str, float], message: str) -> None:
    with pytest.raises(DataError, match=message):
        prompt_stream(mixed_prompts(maths=2, code=2), 0, weights)


def test_other_weights_are_refused_at_resume() -> None:
    data = mixed_prompts(maths=2, code=2)
    mixed = DomainMix(data, 0, {"maths": 0.7, "code": 0.3})
    with pytest.raises(DataError, match=r"1:1 \(code, maths\) now(.|\n)*began with 3:7 \(code, maths\)"):
        DomainMix(data, 0, {"maths": 1, "code": 1}).restore(mixed.state())
    with pytest.raises(DataError, match="began with none"):
        mixed.restore(PromptStream(data, 0).state())
    with pytest.raises(DataError, match="give the run its domain_weights back"):
        PromptStream(data, 0).restore(mixed.state())
