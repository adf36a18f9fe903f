"""Engines that die and come back: skipped while away, started and brought up to date when back."""

import asyncio
from dataclasses import dataclass

import pytest

from roll_ray import engines
from roll_ray.actors import ActorUnavailable, LocalActor, Pool
from roll_ray.engines import EnginePool
from roll_ray.errors import WeightUpdateError


@dataclass
class Manifest:
    version: int
    bucket_sizes: tuple = ()


class Trainer:
    def publish(self, version, folder_root):
        return Manifest(version)

    def unpublish(self, folder_root):
        pass


class Engine:
    """`fault`, if set, is what an update raises; a process that was not started takes no update."""

    def __init__(self):
        self.started, self.version, self.updates, self.fault = True, -1, 0, None

    async def start(self):
        self.started = True

    async def update_weights(self, manifest, update_mode="keep"):
        self.updates += 1
        if self.fault is not None:
            raise self.fault
        if not self.started:
            raise ActorUnavailable("rollout", "it is not running")
        self.version = manifest.version


class Scene:
    """A pool of two engines, and the news of restarts in a queue."""

    def __init__(self, monkeypatch):
        self.engines, self.said, self.ready = [Engine(), Engine()], [], None
        self.actors = [LocalActor(e, f"rollout-{i}") for i, e in enumerate(self.engines)]
        self.news = asyncio.Queue()

        async def restarts(actors):
            while True:
                yield await self.news.get()

        monkeypatch.setattr(engines, "restarts", restarts)
        monkeypatch.setattr(engines, "RETRY_INTERVAL_S", 0.01)
        self.pool = EnginePool(
            engines=Pool("rollout", self.actors),
            trainers=Pool("actor-train", [LocalActor(Trainer(), "actor-train-0")]),
            announce=self.announce,
            folder_root="/nowhere",
            update_mode="keep",
            say=self.said.append,
        )

    async def announce(self, version, ready):
        self.ready = (version, ready)

    async def play(self, script):
        supervision = asyncio.create_task(self.pool.supervise())
        try:
            await asyncio.wait_for(script(), 10)
        finally:
            supervision.cancel()
            await self.pool.close()

    async def told(self, engine, pid):
        await self.news.put((self.actors[engine], pid))
        await asyncio.sleep(0.02)

    async def until(self, what):
        while not what():
            await asyncio.sleep(0.005)


def test_an_engine_that_is_away_is_not_asked_and_said_once(monkeypatch):
    scene = Scene(monkeypatch)

    async def script():
        await scene.pool.publish(1)
        await scene.told(1, None)
        for version in (2, 3):
            await scene.pool.publish(version)
            assert scene.ready == (version, ["rollout-0"])
        assert scene.engines[1].updates == 1
        assert sum("rollout-1" in s for s in scene.said) == 1
        scene.engines[1] = scene.actors[1].instance = Engine()
        scene.engines[1].started = False
        await scene.told(1, 4711)
        await scene.until(lambda: scene.ready == (3, ["rollout-0", "rollout-1"]))
        assert scene.engines[1].version == 3

    asyncio.run(scene.play(script))


def test_an_engine_that_dies_while_it_catches_up_is_started_anew(monkeypatch):
    scene = Scene(monkeypatch)

    async def script():
        scene.engines[1].fault = WeightUpdateError("the canary is off")
        await scene.pool.publish(1)
        await scene.until(lambda: scene.engines[1].updates > 2)
        scene.engines[1].fault, scene.engines[1].started = None, False  # a new process under the old name
        await scene.told(1, 4711)
        await scene.until(lambda: scene.ready == (1, ["rollout-0", "rollout-1"]))

    asyncio.run(scene.play(script))


def test_less_than_half_of_the_engines_is_no_quorum_and_names_who_is_away(monkeypatch):
    scene = Scene(monkeypatch)

    async def script():
        await scene.told(1, None)
        scene.engines[0].fault = WeightUpdateError("the canary is off")
        with pytest.raises(WeightUpdateError, match="0 of 2 engines") as error:
            await scene.pool.publish(1)
        assert "rollout-0: the canary is off" in error.value.why
        assert "rollout-1 died and is not back" in error.value.why

    asyncio.run(scene.play(script))
