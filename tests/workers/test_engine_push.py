"""Pushed weights meet the engine's transaction; the control of a push leaves out who fails, or nobody."""

import asyncio

import pytest

from roll_ray.actors import ActorUnavailable, LocalActor
from roll_ray.errors import RollRayError, WeightUpdateError
from workers.engine_push import PushedWeights
from workers.engine_spec import CommitReport
from workers.vllm_gpu import EngineControl


async def done():
    pass


def test_steps_wait_for_the_pause_and_the_transaction_for_the_last_step():
    async def scene():
        pushed, order = PushedWeights(), []

        async def commit():
            order.append("paused")
            await pushed.arrive(5.0)
            order.append("committed")
            return CommitReport(1, {})

        async def step():
            order.append("step")

        early = asyncio.create_task(pushed.take("start", step))
        await asyncio.sleep(0.01)
        assert order == []
        assert await pushed.begin(commit())
        await early
        await pushed.take("finish", step)
        assert (await pushed.finish()).version == 1
        assert order == ["paused", "step", "step", "committed"]

    asyncio.run(scene())


def test_a_transaction_that_cannot_open_or_needs_no_steps_says_so_at_once():
    async def scene():
        async def refused():
            raise WeightUpdateError("version 1 does not follow")

        async def in_force():
            return CommitReport(1, {})

        with pytest.raises(WeightUpdateError, match="does not follow"):
            await PushedWeights().begin(refused())
        pushed = PushedWeights()
        assert not await pushed.begin(in_force())
        assert (await pushed.finish()).version == 1

    asyncio.run(scene())


def test_an_engine_does_not_wait_for_ever_for_a_trainer_that_left_it_out():
    async def scene():
        pushed = PushedWeights()

        async def commit():
            await pushed.arrive(0.02)

        assert await pushed.begin(commit())
        await pushed.take("start", done)
        with pytest.raises(WeightUpdateError, match="was not finished"):
            await pushed.finish()

    asyncio.run(scene())


class Engine:
    def __init__(self, faults=()):
        self.steps, self.faults = [], dict(faults)

    async def push(self, step, payload=None):
        self.steps.append((step, payload))
        if step in self.faults:
            raise self.faults[step]


def control_of(engines, **options):
    actors = [LocalActor(engine, f"rollout-{i}") for i, engine in enumerate(engines)]
    return EngineControl(
        actors, **({"ranks_per_engine": 1, "all_or_none": False, "timeout_s": 5.0} | options)
    )


def test_workers_of_several_engines_are_numbered_one_after_another():
    engines = [Engine(), Engine(), Engine()]
    control = control_of(engines, ranks_per_engine=4)
    control.init_weight_transfer_engine({"rank_offset": 1, "world_size": 13})
    assert [engine.steps[0][1]["rank_offset"] for engine in engines] == [1, 5, 9]
    control.close()


@pytest.mark.parametrize("fault", [RollRayError("no"), ActorUnavailable("rollout-1", "it died")])
def test_an_engine_that_fails_in_a_step_is_left_out_of_the_rest(fault):
    engines = [Engine(), Engine({"update": fault})]
    control = control_of(engines)
    control.start_weight_update()
    control.update_weights({"names": []})
    control.update_weights({"names": []})
    control.finish_weight_update()
    assert [step for step, _ in engines[0].steps] == ["start", "update", "update", "finish"]
    assert [step for step, _ in engines[1].steps] == ["start", "update"]
    control.close()


def test_a_broadcast_that_lacks_one_is_not_begun():
    control = control_of([Engine(), Engine({"start": RollRayError("no")})], all_or_none=True)
    with pytest.raises(RollRayError, match="no"):
        control.start_weight_update()
    control.close()
