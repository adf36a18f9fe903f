"""Weights for engines on other nodes: one copy a node, verified by hash, made again when its holder is lost."""

import asyncio
from pathlib import Path

import numpy as np
import pytest
import torch

from roll_ray.actors import ActorUnavailable, Identity, LocalActor, Pool
from roll_ray.engines import EnginePool
from roll_ray.errors import WeightUpdateError
from roll_ray.weights.buckets import bucket_bytes, read_tensors, receive_buckets, write_buckets


class OnNode(LocalActor):
    """An actor that says it lives on `node`."""

    def __init__(self, instance, name, node):
        super().__init__(instance, name)
        self.node = node

    async def identity(self):
        return Identity(1, self.node, self.name)


class Trainer:
    def __init__(self):
        self.sent = []

    def publish(self, version, folder_root):
        values = torch.full((1000,), float(version))
        tensors = [("a", values), ("b", values[:3] + 1)]
        return write_buckets(folder_root, version, tensors, bucket_bytes=2048)

    def weight_bucket(self, manifest, bucket):
        self.sent.append((manifest.version, bucket))
        return bucket_bytes(manifest)[bucket]

    def unpublish(self, folder_root):
        pass


class Engine:
    """Loads what its manifest names, and only from its own node's folder."""

    def __init__(self, folder):
        self.folder = str(folder)
        self.version, self.received, self.loaded_from = 0, 0, ""
        self.damages = False

    async def receive_weights(self, manifest, *buckets):
        self.received += 1
        arrays = [np.array(b) for b in buckets]
        if self.damages:
            arrays[0][7] ^= 1
        return receive_buckets(manifest, arrays, self.folder)

    async def update_weights(self, manifest, update_mode="keep"):
        self.loaded_from = str(Path(manifest.folder).parent)
        loaded = {name: tensor[0].item() for name, tensor in read_tensors(manifest)}
        assert loaded == {"a": manifest.version, "b": manifest.version + 1}
        self.version = manifest.version


class Cluster:
    """A trainer and engine 0 on one node, engines 1 and 2 on another."""

    def __init__(self, tmp_path):
        self.trainer, self.folder = Trainer(), tmp_path / "trainer"
        self.engines = [Engine(tmp_path / f"engine-{i}") for i in range(3)]
        self.said = []
        self.actors = [
            OnNode(engine, f"rollout-{i}", "far" if i else "near") for i, engine in enumerate(self.engines)
        ]
        self.pool = EnginePool(
            engines=Pool("rollout", self.actors),
            trainers=Pool("actor-train", [OnNode(self.trainer, "actor-train-0", "near")]),
            announce=self.announce,
            folder_root=str(self.folder),
            update_mode="keep",
            say=self.said.append,
        )

    async def announce(self, version, ready):
        self.ready = (version, ready)


def test_a_node_gets_one_copy_a_version_and_loads_from_its_own_folder(tmp_path):
    cluster = Cluster(tmp_path)

    async def two_updates():
        await cluster.pool.publish(1)
        await cluster.pool.publish(2)

    asyncio.run(two_updates())
    near, first, second = cluster.engines
    assert [e.version for e in cluster.engines] == [2, 2, 2]
    assert (near.received, first.received + second.received) == (0, 2)
    assert near.loaded_from == str(cluster.folder)
    assert first.loaded_from == second.loaded_from == (first if first.received else second).folder
    assert cluster.trainer.sent == [(1, 0), (1, 1), (2, 0), (2, 1)]
    assert cluster.pool.copies.copied == {1: 1, 2: 1}


def test_bytes_that_change_on_the_way_are_refused_and_the_engine_is_fenced(tmp_path):
    cluster = Cluster(tmp_path)
    for engine in cluster.engines[1:]:
        engine.damages = True

    async def publish():
        with pytest.raises(WeightUpdateError, match="1 of 3 engines"):
            await cluster.pool.publish(1)
        await cluster.pool.close()

    asyncio.run(publish())
    assert cluster.ready == (1, ["rollout-0"])
    assert "a" in cluster.said[0]
    assert [e.version for e in cluster.engines] == [1, 0, 0]


def test_when_the_holder_of_a_nodes_copy_is_lost_another_engine_receives_it(tmp_path):
    cluster = Cluster(tmp_path)
    copies = cluster.pool.copies

    async def lose():
        await cluster.pool.publish(1)
        held = next(e for e in cluster.actors if e.instance.received)
        other = next(e for e in cluster.actors[1:] if e is not held)
        copies.lost(held.name)
        assert (await copies.manifest_for(other, cluster.pool.manifest)).folder.startswith(
            other.instance.folder
        )
        assert copies.copied == {1: 2}

    asyncio.run(lose())


def test_who_waits_for_a_copy_whose_holder_dies_is_told_and_can_ask_again(tmp_path):
    cluster = Cluster(tmp_path)
    copies = cluster.pool.copies
    receive = cluster.engines[1].receive_weights

    async def never(*args):
        await asyncio.Event().wait()

    async def die():
        await cluster.pool.publish(1)
        copies.lost("rollout-1")
        copies.lost("rollout-2")
        cluster.engines[1].receive_weights = never
        waits = [
            asyncio.create_task(copies.manifest_for(a, cluster.pool.manifest)) for a in cluster.actors[1:]
        ]
        await asyncio.sleep(0.05)
        copies.lost("rollout-1")
        answers = await asyncio.gather(*waits, return_exceptions=True)
        assert all(isinstance(a, ActorUnavailable) for a in answers)
        cluster.engines[1].receive_weights = receive
        assert await copies.manifest_for(cluster.actors[1], cluster.pool.manifest)

    asyncio.run(die())
