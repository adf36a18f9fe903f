"""A simulated run counts every token once and depends on its seed alone."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from schedulers.protocol import Scheduler
from schedulers.simulator.engine import SimulatedEngine
from schedulers.simulator.fleet import Fleet
from schedulers.simulator.rewards import RewardCosts, RewardPools
from schedulers.simulator.simulation import Simulation, SimulationStopped
from schedulers.simulator.step_time import StepCosts
from schedulers.simulator.training import StreamedTraining, TrainingCosts
from schedulers.simulator.workload import LengthMix, Workload
from schedulers.synchronous import Synchronous
from schedulers.visit_filter import VisitFilter

COSTS = StepCosts(0.01, 1e-5, 1e-8, 1e-5)
MIX = LengthMix(longest_tokens=400, median_tokens=40, long_share=0.05)
REWARDS = {
    "maths": RewardCosts("rule", 2, 0.01),
    "code": RewardCosts("sandbox", 3, 0.5, sigma=0.5, limit_s=5.0, stuck_share=0.1),
}


def a_fleet(engines: int = 3, capacity: int = 1200, degree: int = 1) -> Fleet:
    def build(tp: int) -> list[SimulatedEngine]:
        return [SimulatedEngine(f"e{i}", COSTS, capacity * tp, 64, tp) for i in range(engines // tp)]

    return Fleet(build, degree)


def a_simulation(
    scheduler: Scheduler, seed: int, prompts: int, rewards_after_rollout: bool = False
) -> Simulation:
    return Simulation(
        scheduler,
        Workload(MIX, {"maths": 1, "code": 1}, seed, n_prompts=50, prompt_tokens=10),
        a_fleet(),
        RewardPools(REWARDS, seed),
        TrainingCosts(1e-4, 0.5, 0.1),
        prompts_per_step=prompts,
        samples_per_prompt=scheduler.samples_per_prompt,
        rewards_after_rollout=rewards_after_rollout,
        seed=seed,
    )


@given(st.integers(0, 2**32), st.booleans())
@settings(max_examples=15, deadline=None)
def test_every_generated_token_is_trained_or_wasted(seed: int, filtered: bool) -> None:
    keep = VisitFilter(max_batches=50) if filtered else None
    simulation = a_simulation(Synchronous(6, 4, keep=keep), seed, 6)
    for record in simulation.run(3):
        assert record.generated == record.trained + record.wasted
        assert record.trained == pytest.approx(record.kept_mean * 24)
        assert filtered or record.wasted == 0


def test_equal_seeds_give_equal_records_and_others_do_not() -> None:
    first, again, other = (a_simulation(Synchronous(5, 4), seed, 5).run(3) for seed in (1, 1, 2))
    assert first == again
    assert first != other


def test_rewards_that_overlap_the_rollout_are_waited_for_less() -> None:
    overlapped = a_simulation(Synchronous(6, 4), 3, 6).run(2)
    after = a_simulation(Synchronous(6, 4), 3, 6, rewards_after_rollout=True).run(2)
    assert [r.rollout_s for r in overlapped] == pytest.approx([r.rollout_s for r in after])
    assert all(a.reward_s > o.reward_s for a, o in zip(after, overlapped, strict=True))


def test_a_stop_of_the_scheduler_ends_the_simulation_with_its_reason() -> None:
    workload = Workload(MIX, {"maths": 1}, 0)
    scheduler = Synchronous(4, 2, keep=VisitFilter(max_batches=0))
    simulation = a_simulation(scheduler, 0, 4)
    simulation.workload = workload
    with pytest.raises(SimulationStopped, match="dynamic sampling filtered"):
        simulation.run(20)


def test_lengths_belong_to_prompt_visit_and_attempt_and_more_responses_change_none() -> None:
    workload, same = (Workload(MIX, {"maths": 1}, 7) for _ in range(2))
    visits = [visit for visit, _ in workload.take(200)]
    assert [workload.lengths(v, 0, 8) for v in visits] == [same.lengths(v, 0, 10)[:8] for v in visits]
    assert workload.lengths(visits[0], 0, 8) != workload.lengths(visits[0], 1, 8)


def test_long_prompts_stay_long_over_visits() -> None:
    mix = replace(MIX, long_share=0.1, long_spread=0.3)
    workload = Workload(mix, {"maths": 1}, 7, n_prompts=400)
    firsts = [max(workload.lengths(v, 0, 8)) for v, _ in workload.take(400)]
    seconds = [max(workload.lengths(v, 0, 8)) for v, _ in workload.take(400)]
    long_first = [s for f, s in zip(firsts, seconds, strict=True) if f > 200]
    short_first = [s for f, s in zip(firsts, seconds, strict=True) if f <= 200]
    assert sum(s > 200 for s in long_first) / len(long_first) > 5 * sum(s > 200 for s in short_first) / len(
        short_first
    )


def test_streamed_tokens_are_those_whose_time_has_passed() -> None:
    streamed = StreamedTraining(TrainingCosts(0.1, 0, 0), devices=2, starts_s=10.0)
    streamed.part(4.0, 100)  # trained from 10 to 15
    streamed.part(20.0, 40)  # from 20 to 22
    assert [streamed.tokens_done(t) for t in (10.0, 12.5, 17.0, 21.0, 30.0)] == pytest.approx(
        [0, 50, 100, 120, 140]
    )


def test_a_released_engine_hands_its_requests_on_with_their_tokens() -> None:
    from schedulers.protocol import SampleId, Visit
    from schedulers.simulator.engine import Request

    fleet = a_fleet(engines=2, capacity=10_000)
    fleet.limit_tokens = 100
    keys = [(SampleId(Visit(f"p{i}", 0), 0), 0) for i in range(4)]
    for key in keys:
        fleet.submit(0.0, Request(key, 10, 100))
    ended, released = [], False
    while fleet.next_s < float("inf"):
        if fleet.next_s > 0.5 and not released:
            assert fleet.release(0.5, ["e1"]) == 1
            released = True
        boundary = fleet.wake()
        assert not boundary.removed
        ended += [(r.key, r.generated) for r in boundary.ended]
    assert sorted(ended) == [(key, 100) for key in keys]
    totals = fleet.totals()
    assert totals.generated_tokens == 400
    assert 2 * 10 < totals.recomputed_tokens < 2 * 110
