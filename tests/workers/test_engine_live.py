"""The real engine against the real policy: agreement, exact versions, aborts, fences, deaths."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import Coroutine, Iterator
from pathlib import Path
from typing import Any, TypeVar

import pytest
import torch

from roll_ray.actors import ActorUnavailable, Identity, Pool
from roll_ray.errors import RollRayError, WeightUpdateError
from roll_ray.generation import Canary, GenerationRequest
from roll_ray.sample import SamplingDistribution
from roll_ray.weight_push import WeightPush
from roll_ray.weights.buckets import bucket_bytes, write_buckets
from roll_ray.weights.folders import run_folder
from workers import selfcheck
from workers.engine_pair import Answer, Pair, close_pair, make_tiny_model, open_pair
from workers.engine_spec import EngineSpec
from workers.hf_model import load_policy
from workers.rollout_engine import RolloutEngine
from workers.vllm_gpu import EngineControl

pytestmark = pytest.mark.engine
T = TypeVar("T")
TOLERANCE = selfcheck.TOLERANCE


class Bench:
    """A pair with the loop that it lives in."""

    def __init__(self, folder: Path, tied: bool) -> None:
        self._runner = asyncio.Runner()
        self.pair: Pair = self.run(open_pair(folder, tied=tied, name="test"))

    def run(self, scene: Coroutine[Any, Any, T]) -> T:
        return self._runner.run(asyncio.wait_for(scene, 100))

    def close(self) -> None:
        self.run(close_pair(self.pair))
        self._runner.close()


@pytest.fixture(scope="module")
def tied(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
    bench = Bench(tmp_path_factory.mktemp("engine"), tied=True)
    yield bench
    bench.close()


@pytest.fixture(scope="module")
def untied(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
    bench = Bench(tmp_path_factory.mktemp("engine"), tied=False)
    yield bench
    bench.close()


def holds(bench: Bench, claim: Any) -> None:
    passed, detail = bench.run(claim(bench.pair))
    assert passed, detail


def test_tied_engine_agrees_before_and_after_an_update_of_every_parameter(tied: Bench) -> None:
    holds(tied, selfcheck.agreement_over_updates)


def test_untied_engine_agrees_before_and_after_an_update_of_every_parameter(untied: Bench) -> None:
    holds(untied, selfcheck.agreement_over_updates)


def test_ratios_are_one_at_temperature_0_6(tied: Bench) -> None:
    holds(tied, selfcheck.ratio_is_one)


def test_five_updates_without_change_do_not_drift(tied: Bench) -> None:
    holds(tied, selfcheck.no_drift)


def test_pauses_keep_prefix_logprobs_and_versions(tied: Bench) -> None:
    holds(tied, selfcheck.pause_keeps_everything)


def test_weights_left_behind_are_caught(tied: Bench) -> None:
    holds(tied, selfcheck.faults_are_caught)


def test_each_token_of_64_running_requests_has_the_version_that_sampled_it(untied: Bench) -> None:
    """Only the output head changes, which no cached key or value depends on: so every token's log-probability
    must be the trainer's under the head of the version that the token claims, on both sides of the update."""
    pair = untied.pair

    async def scene() -> tuple[list[GenerationRequest], list[Answer], int]:
        requests, before = pair.requests(64, 64), pair.engine.version
        await pair.engine.submit(requests)
        await pair.made(64 * 12)
        with torch.no_grad():
            pair.policy.hf.lm_head.weight += 0.05 * torch.randn(64, 128)
        await pair.update()
        return requests, await pair.gather(requests), before

    old_head = pair.policy.hf.lm_head.weight.detach().clone()
    requests, answers, before = untied.run(scene())
    new_head = pair.policy.hf.lm_head.weight.detach().clone()
    by_version = {before: old_head, before + 1: new_head}
    switched = 0
    for version, head in by_version.items():
        with torch.no_grad():
            pair.policy.hf.lm_head.weight.copy_(head)
        for request, answer in zip(requests, answers, strict=True):
            n = len(request.prompt_token_ids)
            trainer = pair.trainer_logprobs([*request.prompt_token_ids, *answer.tokens])[n - 1 :]
            for ours, theirs, v in zip(answer.logprobs, trainer, answer.versions, strict=True):
                assert v != version or abs(ours - theirs) <= TOLERANCE
            switched += set(answer.versions) == set(by_version)
    assert all(len(a.tokens) == 64 and a.finish == "length" for a in answers)
    assert all(a.versions == sorted(a.versions) for a in answers)
    assert switched == 2 * 64


def test_requests_without_a_token_start_again_under_the_new_weights(tied: Bench) -> None:
    """More requests than run at once: those that waited during the update agree with the new policy throughout."""
    pair = tied.pair

    async def scene() -> tuple[list[GenerationRequest], list[Answer]]:
        requests = pair.requests(330, 12)
        await pair.engine.submit(requests)
        await pair.made(256)
        pair.change_every_parameter(seed=77)
        await pair.update()
        return requests, await pair.gather(requests)

    requests, answers = tied.run(scene())
    fresh = [
        (r, a) for r, a in zip(requests, answers, strict=True) if set(a.versions) == {pair.engine.version}
    ]
    assert len(fresh) >= 70
    assert len(fresh) < 330
    for request, answer in fresh:
        prompt = list(request.prompt_token_ids)
        trainer = pair.trainer_logprobs(prompt + answer.tokens)[len(prompt) - 1 :]
        assert max(abs(a - b) for a, b in zip(answer.logprobs, trainer, strict=True)) <= TOLERANCE


def test_an_update_in_mode_abort_ends_requests_with_their_tokens_so_far(tied: Bench) -> None:
    pair = tied.pair

    async def scene() -> list[Answer]:
        requests = pair.requests(8, 400)
        await pair.engine.submit(requests)
        await pair.made(80)
        await pair.engine.update_weights(pair.publish(), "abort")
        return await pair.gather(requests)

    answers = tied.run(scene())
    assert all(a.finish == "abort" and 5 < len(a.tokens) < 400 for a in answers)
    assert all(set(a.versions) == {pair.engine.version - 1} for a in answers)


def test_aborted_requests_keep_their_tokens_and_the_others_go_on(tied: Bench) -> None:
    pair = tied.pair

    async def scene() -> list[Answer]:
        requests = pair.requests(6, 120)
        await pair.engine.submit(requests)
        await pair.made(60)
        await pair.engine.abort([r.id for r in requests[:3]] + ["unknown"])
        return await pair.gather(requests)

    answers = tied.run(scene())
    assert [a.finish for a in answers] == ["abort"] * 3 + ["length"] * 3
    assert all(5 < len(a.tokens) < 120 for a in answers[:3])
    assert all(len(a.tokens) == 120 for a in answers[3:])


def test_a_seed_fixes_the_draws_in_any_company(tied: Bench) -> None:
    pair = tied.pair

    async def scene() -> tuple[list[Answer], list[Answer], list[Answer]]:
        together = await pair.generate(pair.requests(12, 20))
        backwards = await pair.generate(pair.requests(12, 20)[::-1])
        alone = [(await pair.generate([r]))[0] for r in pair.requests(12, 20)[:3]]
        return together, backwards[::-1], alone

    together, backwards, alone = tied.run(scene())
    assert [(a.tokens, a.logprobs) for a in together] == [(a.tokens, a.logprobs) for a in backwards]
    assert [(a.tokens, a.logprobs) for a in together[:3]] == [(a.tokens, a.logprobs) for a in alone]


def test_temperature_0_takes_the_likeliest_token_and_stop_tokens_end_a_response(tied: Bench) -> None:
    pair = tied.pair

    async def scene() -> tuple[Answer, Answer]:
        (request,) = pair.requests(1, 12, temperature=0.0)
        (greedy,) = await pair.generate([request])
        stop = GenerationRequest(
            "stop", request.client, request.prompt_token_ids, request.sampling, 12, (greedy.tokens[4],), 0
        )
        return greedy, (await pair.generate([stop]))[0]

    greedy, stopped = tied.run(scene())
    prompt = list(pair.requests(1, 1)[0].prompt_token_ids)
    for k in range(len(greedy.tokens)):
        seen = prompt + greedy.tokens[:k]
        best = max(pair.trainer_logprobs([*seen, token])[-1] for token in range(64))
        assert greedy.logprobs[k] >= best - TOLERANCE
    trainer = pair.trainer_logprobs(prompt + greedy.tokens)[len(prompt) - 1 :]
    assert max(abs(a - b) for a, b in zip(greedy.logprobs, trainer, strict=True)) <= TOLERANCE
    assert stopped.finish == "stop"
    assert stopped.tokens == greedy.tokens[: len(stopped.tokens)]
    assert stopped.tokens[-1] == greedy.tokens[4]


def test_what_cannot_run_is_answered_with_an_error_and_harms_nobody(tied: Bench) -> None:
    pair = tied.pair
    wrong = {
        "no tokens": GenerationRequest("e1", "selfcheck", (), SamplingDistribution(), 4),
        "no room": GenerationRequest("e2", "selfcheck", (1,) * 600, SamplingDistribution(), 4),
        "outside": GenerationRequest("e3", "selfcheck", (1, 64), SamplingDistribution(), 4),
        "top_p": GenerationRequest("e4", "selfcheck", (1, 2), SamplingDistribution(top_p=2.0), 4),
        "at least 1": GenerationRequest("e5", "selfcheck", (1, 2), SamplingDistribution(), 0),
    }

    async def scene() -> tuple[list[Answer], list[Answer]]:
        good = pair.requests(2, 4)
        await pair.engine.submit([*wrong.values(), *good])
        answers: dict[str, Answer] = {}
        return await pair.gather(list(wrong.values()), answers), await pair.gather(good, answers)

    bad, good = tied.run(scene())
    for words, answer in zip(wrong, bad, strict=True):
        assert answer.finish == "error"
        assert words in answer.error
    assert all(a.finish == "length" for a in good)
    with pytest.raises(RollRayError, match="outside of the model's vocabulary"):
        tied.run(pair.engine.score([1, 2, 64]))


def test_a_refused_update_fences_until_the_version_before_is_restored(tied: Bench) -> None:
    pair = tied.pair

    async def scene() -> list[Answer]:
        good = pair.publish()
        await pair.engine.update_weights(good)
        requests = pair.requests(4, 400)
        await pair.engine.submit(requests)
        await pair.made(40)
        wrong = Canary((1, 2, 3), (-9.0, -9.0), 1e-4)
        pair.version += 1
        bad = write_buckets(pair.folder, pair.version, pair.named_tensors(), keep=2).with_canary(wrong)
        with pytest.raises(WeightUpdateError, match="nats off the trainer"):
            await pair.engine.update_weights(bad)
        with pytest.raises(WeightUpdateError, match="takes no requests"):
            await pair.engine.submit(pair.requests(1, 1))
        with pytest.raises(WeightUpdateError, match="takes no requests"):
            await pair.engine.resume()
        ended = await pair.gather(requests)
        report = await pair.engine.update_weights(good)
        assert report.version == pair.engine.version == good.version
        assert await pair.difference() <= TOLERANCE
        return ended

    ended = tied.run(scene())
    assert all(a.finish == "abort" and len(a.tokens) >= 5 for a in ended)
    assert all(set(a.versions) == {pair.engine.version} for a in ended)


def test_weights_in_force_are_nothing_to_do_and_older_ones_are_refused(tied: Bench) -> None:
    pair = tied.pair

    async def scene() -> None:
        first = pair.publish()
        await pair.engine.update_weights(first)
        assert (await pair.engine.update_weights(first)).seconds == {}
        await pair.update()
        with pytest.raises(WeightUpdateError, match="does not follow"):
            await pair.engine.update_weights(first)
        assert len(await pair.generate(pair.requests(1, 2))) == 1

    tied.run(scene())


def test_buckets_from_another_node_are_kept_here_and_loaded(tied: Bench) -> None:
    pair = tied.pair

    async def scene() -> float:
        pair.change_every_parameter(seed=5)
        there = pair.publish()
        here = await pair.engine.receive_weights(there, *bucket_bytes(there))
        assert here.folder != there.folder
        await pair.engine.update_weights(here)
        return await pair.difference()

    assert tied.run(scene()) <= TOLERANCE


def test_pushed_weights_run_the_same_transaction(untied: Bench) -> None:
    """The steps that vLLM's trainer engines make on GPU, made by hand with the transport of this machine."""
    pair = untied.pair

    async def scene() -> None:
        for damaged in (True, False):
            manifest = pair.publish()
            pushed = manifest.with_canary(Canary((1, 2), (-50.0,), 1e-4)) if damaged else manifest
            assert await pair.engine.begin_push(pushed)
            await pair.engine.push("start")
            await pair.engine.push("update", {"manifest": manifest.to_plain()})
            await pair.engine.push("finish")
            if damaged:
                with pytest.raises(WeightUpdateError, match="canary"):
                    await pair.engine.finish_push()
            else:
                assert (await pair.engine.finish_push()).version == pair.engine.version == manifest.version
        assert not await pair.engine.begin_push(manifest)  # in force already
        assert (await pair.engine.finish_push()).seconds == {}
        pair.change_every_parameter(seed=12)
        await pair.update()
        assert await pair.difference() <= TOLERANCE

    untied.run(scene())


class InThread:
    """An object whose calls block, as a trainer rank's do; and the way from its thread to an engine of this loop."""

    def __init__(self, name: str, instance: Any) -> None:
        self.name, self.instance, self.loop = name, instance, asyncio.get_running_loop()

    async def call(self, method: Any, *args: Any) -> Any:
        bound = getattr(self.instance, method.__name__)
        if not asyncio.iscoroutinefunction(bound):
            return await asyncio.to_thread(bound, *args)
        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(bound(*args), self.loop))

    async def identity(self) -> Identity:
        return Identity(os.getpid(), "here", "")


class BucketSender:
    """Stands for trainer ranks on GPUs: pushes through the same control, with this machine's transport. While
    `stops` is set its pushes break off before the last step."""

    def __init__(self) -> None:
        self.opened, self.stops, self.manifest = 0, False, None

    def open_sender(self, transfer: str, engines: Any, ranks_per_engine: int, timeout_s: float) -> None:
        self.opened += 1
        self.control = EngineControl(engines, ranks_per_engine, False, timeout_s)
        self.control.init_weight_transfer_engine({})

    def push_weights(self) -> None:
        self.control.start_weight_update()
        self.control.update_weights({"manifest": self.manifest.to_plain()})
        if not self.stops:
            self.control.finish_weight_update()


def test_a_push_from_begin_to_finish_and_a_pull_after_one_that_broke_off(untied: Bench) -> None:
    pair = untied.pair

    async def scene() -> None:
        sender = BucketSender()
        engine = InThread("rollout-0", pair.engine)
        trainers = Pool("actor-train", [InThread("actor-train-0", sender)])
        push = WeightPush("ipc", trainers, 1, "keep", deadline_s=60.0)
        for seed in (21, 22):
            pair.change_every_parameter(seed)
            sender.manifest = pair.publish()
            ((report, problem),) = await push([engine], sender.manifest)
            assert not problem
            assert report.version == pair.engine.version == pair.version
            assert await pair.difference() <= TOLERANCE
        assert sender.opened == 1
        pair.change_every_parameter(23)
        sender.stops, sender.manifest, push.deadline_s = True, pair.publish(), 1.0
        ((report, problem),) = await push([engine], sender.manifest)
        assert report is None
        assert "within 1 s" in problem
        with pytest.raises(WeightUpdateError, match="takes no requests"):
            await pair.engine.score([1, 2, 3])
        await pair.engine.update_weights(sender.manifest)
        assert await pair.difference() <= TOLERANCE

    untied.run(scene())


def test_an_engine_for_gpu_handles_pulls_buckets_also_after_a_push_that_failed(tmp_path: Path) -> None:
    """On CPU there are no handles, so that the push fails where a GPU's would load."""
    make_tiny_model(tmp_path, tied=False)
    spec = EngineSpec(str(tmp_path), name="ipc", kv_cache_mb=32, weight_backend="ipc")

    async def scene() -> None:
        engine = RolloutEngine(spec)
        await engine.start()
        pair = Pair(engine, load_policy(str(tmp_path)), run_folder("test-ipc"), tied=False)
        try:
            assert await pair.difference() <= TOLERANCE
            pair.change_every_parameter(41)
            await pair.update()
            assert await pair.difference() <= TOLERANCE
            pair.change_every_parameter(42)
            manifest = pair.publish()
            handle = {"gpu": (torch.Tensor, torch.UntypedStorage, torch.uint8, 0, b"handle")}
            update = {"names": ["w"], "dtype_names": ["float32"], "shapes": [[1]], "tensor_sizes": [4]}
            assert await engine.begin_push(manifest)
            await engine.push("init", {"packed": True})
            await engine.push("start")
            with pytest.raises(RollRayError, match="the weight transfer's update"):
                await engine.push("update", update | {"ipc_handles": handle})
            with pytest.raises(RollRayError, match="CUDA"):
                await engine.finish_push()
            await engine.update_weights(manifest)
            assert await pair.difference() <= TOLERANCE
        finally:
            await close_pair(pair)

    asyncio.run(asyncio.wait_for(scene(), 100))


def test_requests_in_flight_survive_a_sleep_and_nothing_is_served_until_an_update(tied: Bench) -> None:
    """On CPU vLLM keeps its memory; what is tested is that the cache is forgotten and everything goes on."""
    pair = tied.pair

    async def scene() -> None:
        requests = pair.requests(8, 200)
        await pair.engine.submit(requests)
        await pair.made(80)
        await pair.engine.sleep()
        await pair.engine.sleep()
        for call in (
            pair.engine.resume(),
            pair.engine.submit(pair.requests(1, 4)),
            pair.engine.score([1, 2]),
        ):
            with pytest.raises(WeightUpdateError, match="sleeps while the trainer trains"):
                await call
        made = (await pair.engine.stats()).generated_tokens
        await asyncio.sleep(0.2)
        assert (await pair.engine.stats()).generated_tokens == made
        pair.change_every_parameter(31)
        await pair.update()
        answers = await pair.gather(requests)
        assert [len(a.tokens) for a in answers] == [200] * 8
        for request, answer in zip(requests, answers, strict=True):
            assert set(answer.versions) == {pair.version - 1, pair.version}
            after = answer.versions.index(pair.version)
            prompt = list(request.prompt_token_ids)
            trainer = pair.trainer_logprobs(prompt + answer.tokens)[len(prompt) - 1 :]
            pairs = zip(answer.logprobs[after:], trainer[after:], strict=True)
            assert (
                max(abs(a - b) for a, b in pairs) <= TOLERANCE
            )  # as if the new weights had written the prefix
        assert await pair.difference() <= TOLERANCE

    tied.run(scene())


def test_a_killed_engine_process_is_told_within_seconds_and_can_be_started_again(tied: Bench) -> None:
    pair = tied.pair

    async def scene() -> float:
        info = await pair.engine.start()
        await pair.engine.submit(pair.requests(8, 400))
        waiting = [
            asyncio.create_task(pair.engine.collect("nobody", 60.0)),
            asyncio.create_task(pair.engine.score([1, 2, 3])),
        ]
        await pair.made(8)
        os.kill(info.pid, signal.SIGKILL)
        killed_s = time.perf_counter()
        outcomes = await asyncio.gather(*waiting, return_exceptions=True)
        told_s = time.perf_counter() - killed_s
        assert isinstance(outcomes[0], ActorUnavailable)
        for call in (pair.engine.submit([]), pair.update(), pair.engine.pause(), pair.engine.stats()):
            with pytest.raises(ActorUnavailable):
                await call
        again = await pair.engine.start()
        assert again.pid != info.pid
        assert again.version == 0
        await pair.update()
        assert await pair.difference() <= TOLERANCE
        return told_s

    assert tied.run(scene()) < 5.0


def test_the_engine_process_ends_with_its_owner(untied: Bench) -> None:
    code = (
        "import asyncio, os, signal\n"
        "from workers.engine_spec import EngineSpec\n"
        "from workers.rollout_engine import RolloutEngine\n"
        "async def main():\n"
        f"    info = await RolloutEngine(EngineSpec({untied.pair.engine.spec.model!r}, kv_cache_mb=32)).start()\n"
        "    print('PID', info.pid, flush=True)\n"
        "    os.kill(os.getpid(), signal.SIGKILL)\n"
        "if __name__ == '__main__':\n"
        "    asyncio.run(main())\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=90, check=False
    )
    pids = [int(line.split()[1]) for line in done.stdout.splitlines() if line.startswith("PID")]
    assert pids, done.stderr[-2000:]
    deadline_s = time.perf_counter() + 10
    while Path(f"/proc/{pids[0]}").exists() and time.perf_counter() < deadline_s:
        time.sleep(0.1)
    assert not Path(f"/proc/{pids[0]}").exists()


def test_a_model_that_cannot_start_is_a_clear_error(tmp_path: Path) -> None:
    with pytest.raises(RollRayError, match=r"there is no config\.json"):
        asyncio.run(RolloutEngine(EngineSpec(str(tmp_path))).start())
