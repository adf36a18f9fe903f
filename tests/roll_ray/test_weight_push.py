"""Weights by push: the same quorum and fences as by pull, a pull for who was left behind; sleep on shared GPUs."""

import asyncio
from dataclasses import dataclass

import pytest

from roll_ray import engines, weight_push
from roll_ray.actors import ActorUnavailable, Identity, LocalActor, Pool
from roll_ray.engines import EnginePool
from roll_ray.errors import WeightUpdateError
from roll_ray.weight_push import WeightPush


@dataclass
class Manifest:
    version: int
    bucket_sizes: tuple = ()


class Trainer:
    def __init__(self, log):
        self.log, self.opened, self.hangs = log, [], False

    def publish(self, version, folder_root):
        self.log.append(f"export {version}")
        return Manifest(version)

    def open_sender(self, transfer, engines, ranks_per_engine, timeout_s):
        self.opened.append([engine.name for engine in engines])

    async def push_weights(self):
        self.log.append("push")
        if self.hangs:
            await asyncio.sleep(60)

    def unpublish(self, folder_root):
        pass


class Engine:
    """`faults`: what its methods raise, by name."""

    def __init__(self, log, name):
        self.log, self.name, self.faults = log, name, {}
        self.version, self.begun, self.asleep = -1, None, False

    def _does(self, what):
        self.log.append(f"{self.name} {what}")
        if what in self.faults:
            raise self.faults[what]

    async def start(self):
        self._does("start")

    async def sleep(self):
        self._does("sleep")
        self.asleep = True

    async def begin_push(self, manifest, update_mode="keep", timeout_s=0.0):
        self._does("begin")
        self.asleep, self.begun = False, manifest.version
        return True

    async def finish_push(self):
        self._does("finish")
        self.version = self.begun

    async def update_weights(self, manifest, update_mode="keep"):
        self._does("pull")
        self.asleep, self.version = False, manifest.version


class Process(LocalActor):
    """An actor with a process id of its own, which the test may change."""

    pid = 1

    async def identity(self):
        return Identity(self.pid, "here", "")


class Scene:
    def __init__(self, monkeypatch, sleepers=(), deadline_s=5.0):
        monkeypatch.setattr(engines, "RETRY_INTERVAL_S", 0.01)
        self.log, self.said, self.ready = [], [], None
        self.engines = [Engine(self.log, f"e{i}") for i in range(2)]
        self.actors = [Process(e, e.name) for e in self.engines]
        self.trainer = Trainer(self.log)
        trainers = Pool("actor-train", [LocalActor(self.trainer, "actor-train-0")])
        self.pool = EnginePool(
            engines=Pool("rollout", self.actors),
            trainers=trainers,
            announce=self.announce,
            folder_root="/nowhere",
            update_mode="keep",
            say=self.said.append,
            push=WeightPush("ipc", trainers, 1, "keep", deadline_s),
            sleepers=frozenset(sleepers),
        )

    async def announce(self, version, ready):
        self.ready = (version, ready)

    def play(self, script):
        async def whole():
            try:
                await asyncio.wait_for(script(), 10)
            finally:
                await self.pool.close()

        asyncio.run(whole())

    async def until(self, what):
        while not what():
            await asyncio.sleep(0.005)


def test_buckets_are_written_first_then_every_engine_begins_is_pushed_to_and_finishes(monkeypatch):
    scene = Scene(monkeypatch)

    async def script():
        await scene.pool.publish(1)
        assert scene.log == ["export 1", "e0 begin", "e1 begin", "push", "e0 finish", "e1 finish"]
        assert scene.ready == (1, ["e0", "e1"])
        await scene.pool.publish(2)
        assert scene.trainer.opened == [["e0", "e1"]]  # once for both

    scene.play(script)


@pytest.mark.parametrize("step", ["begin", "finish"])
def test_an_engine_that_a_push_fails_on_is_fenced_and_pulls(monkeypatch, step):
    scene = Scene(monkeypatch)

    async def script():
        await scene.pool.publish(1)
        scene.engines[1].faults[step] = WeightUpdateError("the canary is off")
        scene.engines[1].faults["pull"] = WeightUpdateError("not yet")
        await scene.pool.publish(2)
        assert scene.ready == (2, ["e0"])
        assert "e1 did not take weight version 2 and is fenced: the canary is off" in scene.said[0]
        await scene.pool.publish(3)  # still behind: it is not pushed to, and tries again by itself
        assert scene.trainer.opened[-1] == ["e0"]
        scene.engines[1].faults.clear()
        await scene.until(lambda: scene.ready == (3, ["e0", "e1"]))
        assert scene.engines[1].version == 3
        await scene.pool.publish(4)
        assert scene.trainer.opened[-1] == ["e0", "e1"]
        assert scene.log.count("push") == 4

    scene.play(script)


def test_another_process_under_an_old_name_is_agreed_with_anew(monkeypatch):
    scene = Scene(monkeypatch)

    async def script():
        await scene.pool.publish(1)
        scene.actors[0].pid = 2
        await scene.pool.publish(2)
        assert len(scene.trainer.opened) == 2

    scene.play(script)


def test_less_than_half_of_the_engines_is_no_quorum_for_a_push_either(monkeypatch):
    scene = Scene(monkeypatch)

    async def script():
        for engine in scene.engines:
            engine.faults["begin"] = ActorUnavailable("rollout", "it is not running")
        with pytest.raises(WeightUpdateError, match="0 of 2 engines"):
            await scene.pool.publish(1)
        assert "push" not in scene.log

    scene.play(script)


def test_a_push_that_stands_still_ends_the_run_with_the_names_of_those_that_take_part(monkeypatch):
    scene = Scene(monkeypatch, deadline_s=0.05)
    scene.trainer.hangs = True

    async def script():
        with pytest.raises(WeightUpdateError, match="push of weight version 1") as error:
            await scene.pool.publish(1)
        assert "e0, e1" in error.value.why

    scene.play(script)


def test_engines_on_shared_gpus_sleep_from_before_training_to_the_update(monkeypatch):
    scene = Scene(monkeypatch, sleepers=["e0", "e1"])

    async def script():
        await scene.pool.publish(1)
        await scene.pool.make_way()
        assert all(engine.asleep for engine in scene.engines)
        await scene.pool.publish(2)
        assert not any(engine.asleep for engine in scene.engines)

    scene.play(script)


def test_an_engine_that_comes_back_while_the_trainer_trains_sleeps_at_once_and_catches_up_later(monkeypatch):
    scene = Scene(monkeypatch, sleepers=["e0", "e1"])
    news = asyncio.Queue()

    async def restarts(actors):
        while True:
            yield await news.get()

    monkeypatch.setattr(engines, "restarts", restarts)

    async def script():
        supervision = asyncio.create_task(scene.pool.supervise())
        await scene.pool.publish(1)
        await scene.pool.make_way()
        scene.log.clear()
        await news.put((scene.actors[1], 4711))
        await asyncio.sleep(0.05)
        assert scene.log == ["e1 start", "e1 sleep"]
        await scene.pool.publish(2)
        assert scene.ready == (2, ["e0", "e1"])
        assert "e1 pull" in scene.log
        supervision.cancel()

    scene.play(script)


def test_without_shared_gpus_nobody_sleeps(monkeypatch):
    scene = Scene(monkeypatch)

    async def script():
        await scene.pool.publish(1)
        await scene.pool.make_way()
        assert not any(engine.asleep for engine in scene.engines)

    scene.play(script)


def test_an_attempt_is_its_result_or_a_reason():
    async def slow():
        await asyncio.sleep(1)

    async def refused():
        raise WeightUpdateError("refused")

    async def broken():
        raise KeyError("a fault of the program")

    async def script():
        assert await weight_push.attempted(asyncio.sleep(0, 7), 1.0) == (7, "")
        assert (await weight_push.attempted(slow(), 0.01))[1] == "no commit within 0 s"
        assert "refused" in (await weight_push.attempted(refused(), 1.0))[1]
        with pytest.raises(KeyError):
            await weight_push.attempted(broken(), 1.0)

    asyncio.run(script())
