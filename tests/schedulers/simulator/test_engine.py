"""The closed form of an engine equals a simulation of every step."""

from __future__ import annotations

import math
from dataclasses import dataclass
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from schedulers.simulator.engine import Request, SimulatedEngine
from schedulers.simulator.step_time import StepCosts

History = dict[str, list[tuple[float, int, int]]]  # what happened: (time, key, tokens generated)


@dataclass
class Case:
    costs: StepCosts
    capacity: int
    max_running: int
    arrivals: list[tuple[float, int, int, int]]  # time, key, prompt tokens, length
    removals: list[tuple[float, int]]


def a_case(random: Random) -> Case:
    costs = StepCosts(
        random.uniform(0.5, 2), random.uniform(0, 0.3), random.uniform(0, 0.05), random.uniform(0, 0.1)
    )
    n = random.randint(1, 12)
    arrivals = [
        (random.choice([0.0, random.uniform(0, 40)]), key, random.randint(1, 8), random.randint(1, 25))
        for key in range(n)
    ]
    removals = [(random.uniform(0, 80), key) for key in range(n) if random.random() < 0.3]
    capacity = max(p + length for _, _, p, length in arrivals) + random.randint(0, 40)
    return Case(costs, capacity, random.randint(1, 8), arrivals, removals)


def in_closed_form(case: Case) -> tuple[History, SimulatedEngine]:
    engine = SimulatedEngine("e", case.costs, case.capacity, case.max_running)
    messages = sorted(
        [(t, 0, key, Request(key, p, length)) for t, key, p, length in case.arrivals]
        + [(t, 1, key, None) for t, key in case.removals],
        key=lambda m: m[:3],
    )
    seen: History = {"started": [], "ended": [], "removed": []}
    while messages or engine.wake_s < math.inf:
        if messages and messages[0][0] <= engine.wake_s:
            t_s, _, key, request = messages.pop(0)
            if request is None:
                engine.remove(t_s, key)
            else:
                engine.submit(t_s, request)
            continue
        boundary = engine.wake()
        for name in seen:
            for request in getattr(boundary, name):
                seen[name].append((boundary.t_s, request.key, request.generated))
    return seen, engine


def step_by_step(case: Case) -> tuple[History, int]:
    """Every step by itself: read messages, make room, admit and prefill, decode a token of each."""
    messages = sorted(
        [(t, 0, key, (p, length)) for t, key, p, length in case.arrivals]
        + [(t, 1, key, None) for t, key in case.removals],
        key=lambda m: m[:3],
    )
    seen: History = {"started": [], "ended": [], "removed": []}
    requests: dict[int, list[int]] = {}  # prompt, length, generated
    running: list[int] = []
    waiting: list[int] = []
    started: set[int] = set()
    now, preemptions, c = 0.0, 0, case.costs
    while True:
        if not running and not waiting:
            if not messages:
                return seen, preemptions
            now = max(now, messages[0][0])
        while messages and messages[0][0] <= now:
            _, kind, key, request = messages.pop(0)
            if kind == 0:
                requests[key] = [*request, 0]
                waiting.append(key)
            elif key in running or key in waiting:
                (running if key in running else waiting).remove(key)
                seen["removed"].append((now, key, requests[key][2]))
        while sum(requests[k][0] + requests[k][2] for k in running) + len(running) > case.capacity:
            waiting.insert(0, running.pop())
            preemptions += 1
        prefill = 0
        while waiting and len(running) < case.max_running:
            prompt, _, generated = requests[waiting[0]]
            held = sum(requests[k][0] + requests[k][2] for k in running)
            if held + prompt + generated + len(running) + 1 > case.capacity:
                break
            key = waiting.pop(0)
            running.append(key)
            prefill += prompt + generated
            if key not in started:
                started.add(key)
                seen["started"].append((now, key, 0))
        if prefill * c.prefill_token_s > 0:
            now += prefill * c.prefill_token_s
            if messages and messages[0][0] <= now:
                continue  # what came during the prefill is read before the first step
        if not running:
            continue
        held = sum(requests[k][0] + requests[k][2] for k in running)
        now += c.base_s + c.request_s * len(running) + c.context_token_s * held
        for key in list(running):
            requests[key][2] += 1
            if requests[key][2] == requests[key][1]:
                running.remove(key)
                seen["ended"].append((now, key, requests[key][2]))


@given(st.integers(0, 2**32))
@settings(max_examples=300, deadline=None)
def test_the_closed_form_equals_a_simulation_of_every_step(seed: int) -> None:
    case = a_case(Random(seed))
    seen, engine = in_closed_form(case)
    expected, preemptions = step_by_step(case)
    assert engine.preemptions == preemptions
    for name in expected:
        assert [(k, n) for _, k, n in sorted(seen[name])] == [(k, n) for _, k, n in sorted(expected[name])]
        for mine, theirs in zip(sorted(seen[name]), sorted(expected[name]), strict=True):
            assert mine[0] == pytest.approx(theirs[0], rel=1e-9, abs=1e-9)


@given(st.integers(0, 2**32))
@settings(max_examples=100, deadline=None)
def test_every_request_goes_once_and_its_tokens_are_those_generated(seed: int) -> None:
    case = a_case(Random(seed))
    seen, engine = in_closed_form(case)
    gone = [key for name in ("ended", "removed") for _, key, _ in seen[name]]
    removable = {key for t, key in case.removals}
    assert len(set(gone)) == len(gone)
    assert {key for _, key, _, _ in case.arrivals} - removable <= set(gone)
    tokens = sum(n for name in ("ended", "removed") for _, _, n in seen[name])
    assert tokens == engine.generated_tokens
    assert engine.n_running == engine.n_waiting == engine.kv_use == 0
    assert engine.peak_context_tokens <= case.capacity


@given(
    st.floats(0.001, 10), st.floats(0, 1), st.floats(0, 0.1), st.integers(1, 500), st.integers(0, 10_000),
    st.floats(0, 1e5),
)  # fmt: skip
@settings(max_examples=200, deadline=None)
def test_the_boundary_is_the_first_at_or_after_a_time(
    base: float, per_request: float, per_token: float, n: int, context: int, seconds: float
) -> None:
    costs = StepCosts(base, per_request, per_token, 0.0)
    steps = costs.steps_to_reach(seconds, n, context)
    assert costs.decode_s(steps, n, context) >= seconds
    assert steps == 0 or costs.decode_s(steps - 1, n, context) < seconds


def test_a_request_that_can_never_fit_is_refused() -> None:
    engine = SimulatedEngine("e", StepCosts(1, 0, 0, 0), kv_capacity_tokens=100)
    with pytest.raises(ValueError, match="does not fit in a KV cache of 100"):
        engine.submit(0.0, Request("r", 50, 51))
