"""Two nodes (raylets on one machine): a store and a runner on each, weights through the object store, a node lost."""

import asyncio

import pytest
import ray
from ray.cluster_utils import Cluster

from tests.live.runs import letter_task, metrics_of, run_pipeline, settings_for, step_reached

pytestmark = [pytest.mark.engine, pytest.mark.timeout(280)]

STEPS = 9
LOST_AT = 3


@pytest.fixture(scope="module")
def nodes(tmp_path_factory):
    """A head without devices, where the driver is, and two nodes with a device each. Every node has a folder of its
    own for weights, so that nothing passes by way of a shared /dev/shm."""
    folder = tmp_path_factory.mktemp("nodes")

    def node(name: str, ip: str | None = None, **resources: int) -> dict:
        (folder / name).mkdir()
        return {
            "node_ip_address": ip,
            "num_cpus": 1,
            "resources": resources,
            "object_store_memory": 100 << 20,
            "env_vars": {"ROLL_RAY_SHM_DIR": str(folder / name), "OMP_NUM_THREADS": "1"},
        }

    patch = pytest.MonkeyPatch()
    patch.setenv("ROLL_RAY_SHM_DIR", str(folder / "head"))
    quick = {"health_check_initial_delay_ms": 1000, "health_check_period_ms": 500}
    quick |= {"health_check_timeout_ms": 1000, "health_check_failure_threshold": 5}
    cluster = Cluster(
        initialize_head=True,
        head_node_args={**node("head"), "include_dashboard": False, "_system_config": quick},
    )
    try:
        # addresses of their own, else the driver connects to any of the three
        first, second = node("first", "127.0.0.2", device=1), node("second", "127.0.0.3", device=1)
        with_device = {"first": cluster.add_node(**first), "second": cluster.add_node(**second)}
        cluster.wait_for_nodes()
        ray.init(address=cluster.address, namespace="two-raylets", log_to_driver=False)
        yield cluster, with_device, folder
    finally:
        ray.shutdown()
        cluster.shutdown()
        patch.undo()


async def nodes_of(pipeline) -> dict[str, str]:
    return {a.name: (await a.identity()).node for a in pipeline.staff.everybody()}


@pytest.fixture(scope="module")
def seen(nodes, letter_model, tmp_path_factory):
    """A run with trainers on both nodes; what its actors said of themselves, and what lay where in the middle."""
    _, with_device, folder = nodes
    run_dir = tmp_path_factory.mktemp("runs") / "two"
    facts: dict = {}

    async def look(pipeline):
        await step_reached(run_dir, 3)
        facts["nodes"] = await nodes_of(pipeline)
        facts["copied"] = dict(pipeline.engines.copies.copied)
        facts["received"] = [
            node.node_id
            for name, node in with_device.items()
            for path in (folder / name).iterdir()
            if "received" in path.name and list(path.glob("v*/bucket-*.bin"))
        ]

    settings = settings_for(letter_model, run_dir, "max_steps=5")
    result = run_pipeline(settings, letter_task(), look)
    return result, facts, run_dir


def test_engines_trainers_stores_and_runners_are_on_both_nodes(seen):
    result, facts, _ = seen
    assert result.step == 5
    where = facts["nodes"]
    for role in ("rollout", "actor-train", "runner", "store"):
        assert where[f"{role}-0"] != where[f"{role}-1"], role
    for name in ("rollout-manager", "reward-default-0"):
        assert where[name] == ray.get_runtime_context().get_node_id(), name


def test_the_other_nodes_engine_gets_each_version_through_the_object_store(seen):
    _, facts, _ = seen
    assert {0, 1, 2} <= set(facts["copied"])
    assert set(facts["copied"].values()) == {1}, "one copy of each version, for the one other node"
    assert facts["received"] == [facts["nodes"]["actor-train-1"]]


def test_both_engines_agree_with_the_trainer_on_every_step(seen):
    _, _, run_dir = seen
    rows = metrics_of(run_dir)
    assert [row["step"] for row in rows] == [1, 2, 3, 4, 5]
    assert max(row["logprob_difference_max"] for row in rows) < 1e-4


def test_nothing_is_left_on_any_node(seen, nodes):
    _, _, folder = nodes
    assert [path for name in ("head", "first", "second") for path in (folder / name).iterdir()] == []
    groups = ray.util.placement_group_table().values()
    assert {group["state"] for group in groups} == {"REMOVED"}


def test_when_a_node_with_an_engine_and_no_trainer_is_lost_the_run_goes_on(nodes, letter_model, tmp_path):
    cluster, with_device, _ = nodes
    run_dir = tmp_path / "lost"
    settings = settings_for(letter_model, run_dir, f"max_steps={STEPS}", "devices.train=[0]")

    async def lose_a_node(pipeline):
        await step_reached(run_dir, LOST_AT)
        where = await nodes_of(pipeline)
        (lost,) = [n for n in with_device.values() if n.node_id != where["actor-train-0"]]
        assert lost.node_id in (where["rollout-0"], where["rollout-1"])
        await asyncio.to_thread(cluster.remove_node, lost, allow_graceful=False)

    result = run_pipeline(settings, letter_task(), lose_a_node)
    assert result.step == STEPS
    assert [row["step"] for row in metrics_of(run_dir)] == list(range(1, STEPS + 1))
