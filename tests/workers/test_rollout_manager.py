"""Whatever dies, each batch is exact and every token keeps what it was sampled under."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from envs.task import ScoredView
from roll_ray.errors import RollRayError, WeightUpdateError, WorkerDiedError
from roll_ray.receipts import Cut, Stopped
from roll_ray.sample import SamplingDistribution
from schedulers.events_log import from_record, to_record
from schedulers.protocol import SampleId, Scored, Visit
from schedulers.synchronous import Synchronous
from tests.workers.rollout_bench import Bench, make_prompt
from workers import engine_client, reward_client, runner_links, store_client
from workers.episode_runner import EpisodeRunner
from workers.rollout_manager import RolloutManager


@pytest.fixture(autouse=True)
def _quick_retries(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (engine_client, reward_client, runner_links, store_client):
        monkeypatch.setattr(module, "RETRY_INTERVAL_S", 0.01)


@pytest.fixture(autouse=True)
def _quick_polls(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runner_links, "REPORT_TIMEOUT_S", 0.5)


def run(bench: Bench, story: Callable[[Bench], Awaitable[Any]]) -> Any:
    async def whole() -> Any:
        try:
            return await asyncio.wait_for(story(bench), 20)
        finally:
            await bench.close()

    return asyncio.run(whole())


def log_records(bench: Bench) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (bench.folder / "events.jsonl").read_text().splitlines()]


async def until_said(bench: Bench, words: str) -> str:
    """Until the manager says that it waits for this."""
    while words not in (said := await bench.manager.call(RolloutManager.waiting_for)):
        await asyncio.sleep(0.01)
    return said


async def some_tokens(bench: Bench) -> None:
    """Until every engine has written a part of something."""
    while not all(any(r.written for r in e.instance._running.values()) for e in bench.engines):
        await asyncio.sleep(0.0005)


def test_steps_without_faults_give_exact_batches_and_leave_the_stores_empty(tmp_path: Path) -> None:
    async def story(bench: Bench) -> None:
        for step in range(3):
            await bench.step(step)
        await asyncio.sleep(0.01)
        assert [s.instance.metrics()["samples"] for s in bench.stores] == [0, 0]
        assert all(not r.instance._books.handles() for r in bench.runners)
        metrics = await bench.manager.call(RolloutManager.metrics)
        assert metrics["batches_trained"] == 3
        assert metrics["ignored_results"] == 0

    run(Bench(tmp_path), story)


def test_an_engine_that_dies_in_mid_generation_loses_no_token(tmp_path: Path) -> None:
    async def story(bench: Bench) -> None:
        await bench.offer(0, bench.p, starts_step=True)
        await some_tokens(bench)
        bench.engines[0].kill()
        samples = await bench.finish(0)
        assert all(s.attempt == 0 for s in samples), "the prefix went on elsewhere, nothing was started again"
        continued = [r for r in bench.engines[1].instance.submitted if len(r.prompt_token_ids) > 3]
        assert continued

    run(Bench(tmp_path, tick_s=0.01), story)


def test_when_all_engines_die_the_requests_wait_for_the_restart(tmp_path: Path) -> None:
    async def story(bench: Bench) -> None:
        await bench.offer(0, bench.p, starts_step=True)
        await some_tokens(bench)
        for engine in bench.engines:
            engine.kill()
        await until_said(bench, "no engine (rollout-0: down, rollout-1: down)")
        bench.engines[1].restart().version = 5
        samples = await bench.finish(0)
        assert all(s.attempt == 0 for s in samples)
        assert {int(v) for s in samples for v in s.versions_T} == {-1, 0, 5}

    run(Bench(tmp_path, tick_s=0.01), story)


def test_a_weight_update_that_aborts_goes_on_from_the_prefix_under_the_new_version(tmp_path: Path) -> None:
    async def story(bench: Bench) -> None:
        await bench.offer(0, bench.p, starts_step=True)
        await some_tokens(bench)
        for engine in bench.engines:
            await engine.instance.update_weights(1, "abort")
        samples = await bench.finish(0)
        assert {int(v) for s in samples for v in s.versions_T} == {-1, 0, 1}

    run(Bench(tmp_path, tick_s=0.01), story)


def test_an_engine_that_missed_an_update_gets_no_request_until_it_caught_up(tmp_path: Path) -> None:
    async def story(bench: Bench) -> None:
        await bench.step(0)
        bench.engines[1].instance.version = 1
        for runner in bench.runners:
            await runner.call(EpisodeRunner.weights_version, 1, ["rollout-1"])
        before = len(bench.engines[0].instance.submitted)
        await bench.step(1)
        assert len(bench.engines[0].instance.submitted) == before
        bench.engines[0].instance.version = 1
        for runner in bench.runners:
            await runner.call(EpisodeRunner.weights_version, 1, ["rollout-0", "rollout-1"])
        await bench.step(2)
        assert len(bench.engines[0].instance.submitted) > before

    run(Bench(tmp_path), story)


def test_an_engine_that_is_fenced_by_a_failed_update_passes_its_requests_on(tmp_path: Path) -> None:
    async def story(bench: Bench) -> None:
        bench.engines[0].instance.refuses = WeightUpdateError("rollout-0 is fenced")
        samples = await bench.step(0)
        assert all(s.attempt == 0 for s in samples)
        assert not bench.engines[0].instance.submitted
        bench.engines[0].instance.refuses = None
        for runner in bench.runners:
            await runner.call(EpisodeRunner.weights_version, 0, ["rollout-0", "rollout-1"])
        await bench.step(1)
        assert bench.engines[0].instance.submitted

    run(Bench(tmp_path), story)


def test_a_store_that_loses_samples_has_them_launched_again(tmp_path: Path) -> None:
    async def story(bench: Bench) -> None:
        await bench.offer(0, bench.p, starts_step=True)
        cut = await bench.cut(0)
        bench.stores[0].kill()
        bench.stores[0].restart()
        lost = [r.sample for r in cut.receipts if r.store == "store-0"]
        assert lost
        await bench.manager.call(RolloutManager.lost, lost, "store-0 died")
        samples = await bench.finish(0)
        assert {s.id for s in samples if s.attempt == 1} == set(lost)

    run(Bench(tmp_path), story)


def test_a_runner_that_dies_has_its_samples_launched_again_and_comes_back(tmp_path: Path) -> None:
    async def story(bench: Bench) -> None:
        await bench.offer(0, bench.p, starts_step=True)
        await some_tokens(bench)
        bench.runners[0].kill()
        samples = await bench.finish(0)
        assert {s.attempt for s in samples} == {0, 1}
        bench.runners[0].restart()
        await bench.step(1)
        await bench.step(2)
        assert bench.stores[0].instance.metrics()["bytes_max"] > 0, "runner-0 works again"

    run(Bench(tmp_path, tick_s=0.01), story)


def test_a_runner_whose_process_is_another_one_between_two_polls_is_noticed(tmp_path: Path) -> None:
    async def story(bench: Bench) -> None:
        await bench.offer(0, bench.p, starts_step=True)
        await some_tokens(bench)
        await bench.runners[1].instance.close()
        bench.runners[1].restart()
        await bench.finish(0)
        metrics = await bench.manager.call(RolloutManager.metrics)
        assert metrics["runners_lost"] == 1

    run(Bench(tmp_path, tick_s=0.01), story)


def test_runners_that_are_dead_for_good_stop_the_run_with_their_names(tmp_path: Path) -> None:
    async def story(bench: Bench) -> None:
        await bench.offer(0, bench.p, starts_step=True)
        for runner in bench.runners:
            runner.kill(WorkerDiedError(f"{runner.name} died", why="out of memory"))
        while True:
            outcome = await bench.manager.call(RolloutManager.next_outcome, 0.1)
            if isinstance(outcome, Stopped):
                break
        assert "runner-0 died" in outcome.reason
        assert "out of memory" in outcome.reason

    run(Bench(tmp_path, tick_s=0.01), story)


@pytest.mark.parametrize("when", ["generating", "half scored", "cut"])
def test_a_manager_that_dies_goes_on_from_its_log(tmp_path: Path, when: str) -> None:
    async def story(bench: Bench) -> None:
        await bench.step(0)
        await bench.offer(1, bench.p, starts_step=True)
        if when == "generating":
            await some_tokens(bench)
        elif when == "half scored":
            while not bench.stores[0].instance.inventory():
                await asyncio.sleep(0.001)
        else:
            await bench.cut(1)
        bench.manager.kill()
        await bench.manager.instance.close()
        bench.manager.restart()
        samples = await bench.finish(1)
        if when == "cut":
            assert all(s.attempt == 0 for s in samples), "what the stores hold is not made again"
        await bench.step(2)
        metrics = await bench.manager.call(RolloutManager.metrics)
        assert metrics["batches_trained"] == 3
        assert metrics["restarts"] == 1

    run(Bench(tmp_path, tick_s=0.005), story)


def test_a_manager_and_a_store_that_die_together_lose_no_batch(tmp_path: Path) -> None:
    async def story(bench: Bench) -> None:
        await bench.offer(0, bench.p, starts_step=True)
        await bench.cut(0)
        bench.manager.kill()
        await bench.manager.instance.close()
        bench.stores[1].kill()
        bench.stores[1].restart()
        bench.manager.restart()
        samples = await bench.finish(0)
        assert {s.attempt for s in samples} == {0, 1}

    run(Bench(tmp_path), story)


def test_the_log_replays_to_the_same_actions(tmp_path: Path) -> None:
    async def story(bench: Bench) -> None:
        await bench.offer(0, bench.p, starts_step=True)
        await some_tokens(bench)
        bench.runners[0].kill()
        bench.runners[0].restart()
        await bench.finish(0)
        await bench.step(1)

    bench = Bench(tmp_path, tick_s=0.005)
    run(bench, story)
    scheduler, replayed = Synchronous(bench.p, bench.r), 0
    for record in log_records(bench):
        if record["kind"] == "events":
            actions = scheduler.handle([from_record(e) for e in record["events"]])
            assert actions == [from_record(a) for a in record["actions"]]
            replayed += len(record["events"])
        elif record["kind"] == "snapshot":
            assert record["state"]["scheduler"] == json.loads(json.dumps(scheduler.state()))
    assert replayed > 2 * 2 * bench.p * bench.r


def test_another_session_begins_anew_below_the_old_log(tmp_path: Path) -> None:
    async def story(bench: Bench) -> None:
        await bench.offer(0, bench.p, starts_step=True)

    run(Bench(tmp_path, tick_s=0.05), story)

    async def anew(bench: Bench) -> None:
        await bench.step(0)

    run(Bench(tmp_path, session="t"), anew)


def test_a_reward_that_raises_three_times_ends_the_visit_and_another_takes_its_place(tmp_path: Path) -> None:
    def reward(view: ScoredView) -> float:
        if view.prompt.id == "p001":
            raise ValueError("no verdict on p001")
        return 0.5

    async def story(bench: Bench) -> None:
        samples = await bench.step(0)
        assert {s.visit.prompt_id for s in samples} == {"p000", "p002", "p003"}
        assert {s.reward.value for s in samples} == {0.5}

    bench = Bench(tmp_path, reward=reward)
    run(bench, story)
    wanted = [a for r in log_records(bench) for a in r.get("actions", []) if a[0] == "RequestPrompts"]
    assert len(wanted) == 1
    assert "no verdict on p001" in wanted[0][3]


def test_a_reward_that_always_raises_stops_the_run_with_the_reason(tmp_path: Path) -> None:
    def reward(view: ScoredView) -> float:
        raise ZeroDivisionError("broken verifier")

    async def story(bench: Bench) -> None:
        with pytest.raises(AssertionError, match=r"broken verifier"):
            await bench.step(0)

    run(Bench(tmp_path, reward=reward), story)


def test_a_reward_worker_that_dies_costs_nothing_but_time(tmp_path: Path) -> None:
    async def story(bench: Bench) -> None:
        await bench.step(0)
        bench.rewards[0].kill()
        samples = await bench.step(1)
        assert all(s.attempt == 0 for s in samples)
        bench.rewards[1].kill()
        await bench.offer(2, bench.p, starts_step=True)
        await until_said(bench, "no reward worker (reward-0, reward-1 down)")
        bench.rewards[0].restart()
        samples = await bench.finish(2)
        assert all(s.attempt == 0 for s in samples)

    run(Bench(tmp_path), story)


def test_an_offer_that_is_repeated_and_late_duplicates_change_nothing(tmp_path: Path) -> None:
    async def story(bench: Bench) -> None:
        await bench.offer(0, bench.p, starts_step=True)
        visits = [Visit(f"p{i:03d}", 0) for i in range(bench.p)]
        book = {f"p{i:03d}": make_prompt(i) for i in range(bench.p)}
        await bench.manager.call(RolloutManager.offer, 0, visits, ["default"] * bench.p, [book], True)
        cut = await bench.cut(0)
        manager = bench.manager.instance
        manager._taken("runner-0", 99, [Scored(0.0, SampleId(visits[0], 0), 0, 1.0)], [])
        manager._taken("runner-0", 99, [Scored(0.0, SampleId(visits[0], 0), 7, 1.0)], [])
        assert await bench.manager.call(RolloutManager.next_outcome, 0.1) == cut
        await bench.finish(0)
        metrics = await bench.manager.call(RolloutManager.metrics)
        assert metrics["ignored_results"] == 2
        assert metrics["visits_offered"] == bench.p

    run(Bench(tmp_path), story)


def test_a_wait_names_whom_it_waits_for(tmp_path: Path) -> None:
    async def story(bench: Bench) -> None:
        ask = bench.manager.call
        assert (
            await ask(RolloutManager.waiting_for) == "waiting for the driver to offer the prompts of a step"
        )
        for engine in bench.engines:
            engine.instance.hold = True
        await bench.offer(4, bench.p, starts_step=True)
        said = await until_said(bench, "generating at rollout-0: ")
        assert "step 4: 0 of 12 responses scored" in said
        assert "runner-0 has " in said
        for engine in bench.engines:
            engine.instance.hold = False
        await bench.cut(4)
        assert "waiting for the driver to train its 12 samples" in await ask(RolloutManager.waiting_for)

    run(Bench(tmp_path), story)


def test_an_episode_out_of_time_fails_with_prompt_seed_and_turn_and_stops_a_run_that_cannot_go_on(
    tmp_path: Path,
) -> None:
    async def story(bench: Bench) -> None:
        for engine in bench.engines:
            engine.instance.hold = True
        with pytest.raises(
            AssertionError, match=r"prompt p\d+, seed \d+, turn 0: not over after episode_timeout"
        ):
            await bench.step(0)

    run(Bench(tmp_path, spec={"episode_timeout_s": 0.02}), story)


def test_a_prompt_longer_than_the_context_fails_with_the_setting_in_its_reason(tmp_path: Path) -> None:
    async def story(bench: Bench) -> None:
        with pytest.raises(AssertionError, match=r"no room in the context of engine\.max_model_len=3"):
            await bench.step(0)

    run(Bench(tmp_path, spec={"max_model_len": 3}), story)


def test_evaluation_is_beside_the_scheduler_and_says_under_which_version(tmp_path: Path) -> None:
    async def story(bench: Bench) -> None:
        await bench.offer(0, bench.p, starts_step=True)
        for engine in bench.engines:
            engine.instance.version = 3
        prompts = [make_prompt(100 + i) for i in range(5)]
        greedy = SamplingDistribution(temperature=0.0)
        answers = await bench.runners[0].call(EpisodeRunner.evaluate, prompts, greedy, 16)
        assert [a.prompt_id for a in answers] == [p.id for p in prompts]
        assert all(a.reward.value == 1.0 and a.version == 3 and a.n_tokens >= 8 for a in answers)
        assert all(a.response_text for a in answers)
        await bench.finish(0)
        await asyncio.sleep(0.01)
        assert [s.instance.metrics()["samples"] for s in bench.stores] == [0, 0]

    run(Bench(tmp_path), story)


def test_state_and_restore_in_the_middle_of_a_step_lose_nothing(tmp_path: Path) -> None:
    async def story(bench: Bench) -> None:
        await bench.offer(0, bench.p, starts_step=True)
        await some_tokens(bench)
        state = json.loads(json.dumps(await bench.manager.call(RolloutManager.state)))
        await bench.manager.call(RolloutManager.restore, state)
        samples = await bench.finish(0)
        assert {s.attempt for s in samples} == {1}

    run(Bench(tmp_path, tick_s=0.01), story)


def test_a_cut_is_given_again_until_it_is_trained(tmp_path: Path) -> None:
    async def story(bench: Bench) -> None:
        await bench.offer(0, bench.p, starts_step=True)
        first, second = await bench.cut(0), await bench.cut(0)
        assert isinstance(first, Cut)
        assert first == second
        await bench.manager.call(RolloutManager.trained, 1)
        assert await bench.manager.call(RolloutManager.next_outcome, 0.01) is None

    run(Bench(tmp_path), story)


def test_events_survive_the_log(tmp_path: Path) -> None:
    event = Scored(1.5, SampleId(Visit("p", 2), 3), 1, None, "why")
    assert from_record(json.loads(json.dumps(to_record(event)))) == event


def test_a_log_that_cannot_be_written_ends_the_run_with_the_cause(tmp_path: Path) -> None:
    async def story(bench: Bench) -> None:
        await bench.offer(0, bench.p, starts_step=True)

        def full(*_: Any, **__: Any) -> None:
            raise OSError(28, "No space left on device")

        bench.manager.instance._log.append = full
        with pytest.raises(RollRayError, match="No space left on device"):
            await bench.cut(0)

    run(Bench(tmp_path), story)


def test_samples_aborted_on_their_way_into_a_store_are_not_left_there(tmp_path: Path) -> None:
    async def story(bench: Bench) -> None:
        store = bench.stores[0]
        put = store.instance.put_many
        entered, release = asyncio.Event(), asyncio.Event()

        async def slow(samples: Any) -> Any:
            entered.set()
            await release.wait()
            return put(samples)

        store.instance.put_many = slow
        await bench.offer(0, bench.p, starts_step=True)
        await entered.wait()
        await bench.runners[0].call(EpisodeRunner.fence)
        release.set()
        while bench.runners[0].instance._store._flush and not bench.runners[0].instance._store._flush.done():
            await asyncio.sleep(0.001)
        assert store.instance.metrics()["samples"] == 0

    run(Bench(tmp_path), story)
