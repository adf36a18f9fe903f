"""Two nodes (raylets on one machine): a store and a runner on each, weights through the object store, a node lost."""

import asyncio

import pytest
import ray
from ray.cluster_utils import Cluster

from tests.live.runs import letter_task, metrics_of, run_pipeline, settings_for, step_reached

pytestmark = [pytest.mark.engine, pytest.mark.timeout(280)]

STEPS = 14
ENDS_WITHOUT_THE_OTHER_NODE = 6


@pytest.fixture(scope="module")
def two_nodes(tmp_path_factory):
    """Each node has a device and its own folder for weights, so nothing passes by way of a shared /dev/shm."""
    folder = tmp_path_factory.mktemp("nodes")

    def node(name: str) -> dict:
        (folder / name).mkdir()
        return {
            "num_cpus": 1,
            "resources": {"device": 1},
            "object_store_memory": 100 << 20,
            "env_vars": {"ROLL_RAY_SHM_DIR": str(folder / name), "OMP_NUM_THREADS": "1"},
        }

    patch = pytest.MonkeyPatch()
    patch.setenv("ROLL_RAY_SHM_DIR", str(folder / "first"))
    quick = {"health_check_initial_delay_ms": 1000, "health_check_period_ms": 500}
    quick |= {"health_check_timeout_ms": 1000, "health_check_failure_threshold": 5}
    cluster = Cluster(
        initialize_head=True,
        head_node_args={**node("first"), "include_dashboard": False, "_system_config": quick},
    )
    try:
        second = cluster.add_node(**node("second"))
        cluster.wait_for_nodes()
        ray.init(address=cluster.address, namespace="two-raylets", log_to_driver=False)
        yield cluster, second, folder
    finally:
        ray.shutdown()
        cluster.shutdown()
        patch.undo()


@pytest.fixture(scope="module")
def seen(two_nodes, letter_model, tmp_path_factory):
    """A run with trainers on both nodes; what its actors said of themselves, and what lay where in the middle."""
    _, _, folder = two_nodes
    run_dir = tmp_path_factory.mktemp("runs") / "two"
    facts: dict = {}

    async def look(pipeline):
        await step_reached(run_dir, 3)
        staff = pipeline.staff
        facts["nodes"] = {a.name: (await a.identity()).node for a in staff.everybody()}
        facts["copied"] = dict(pipeline.engines.copies.copied)
        facts["shm"] = {
            name: sorted(p.name.rsplit("-", 1)[0] for p in (folder / name).iterdir())
            for name in ("first", "second")
        }

    settings = settings_for(letter_model, run_dir, "max_steps=5")
    result = run_pipeline(settings, letter_task(), look)
    return result, facts, run_dir


def test_engines_trainers_stores_and_runners_are_on_both_nodes(seen):
    result, facts, _ = seen
    assert result.step == 5
    nodes = facts["nodes"]
    for role in ("rollout", "actor-train", "runner", "store"):
        assert nodes[f"{role}-0"] != nodes[f"{role}-1"], role


def test_the_other_nodes_engine_gets_each_version_through_the_object_store(seen):
    _, facts, _ = seen
    assert facts["copied"]
    assert set(facts["copied"].values()) == {1}, "one copy for the one other node"
    assert sorted(facts["copied"])[0] == 0
    published, received = [], []
    for node in ("first", "second"):
        published += [(node, name) for name in facts["shm"][node] if name == "roll-ray-two"]
        received += [(node, name) for name in facts["shm"][node] if "received" in name]
    assert len(received) == 1
    assert received[0][0] not in [node for node, _ in published] or len(published) > 1


def test_both_engines_agree_with_the_trainer_on_every_step(seen):
    _, _, run_dir = seen
    rows = metrics_of(run_dir)
    assert [row["step"] for row in rows] == [1, 2, 3, 4, 5]
    assert max(row["logprob_difference_max"] for row in rows) < 1e-4


def test_nothing_is_left_on_either_node(seen, two_nodes):
    _, _, folder = two_nodes
    assert [*(folder / "first").iterdir(), *(folder / "second").iterdir()] == []
    table = ray.util.placement_group_table().values()
    assert {group["state"] for group in table} == {"REMOVED"}
    assert [a for a in ray.util.state.list_actors() if a["state"] != "DEAD"] == []


def test_when_a_node_with_only_an_engine_is_lost_the_run_goes_on(two_nodes, letter_model, tmp_path, capsys):
    cluster, second, _ = two_nodes
    run_dir = tmp_path / "lost"
    settings = settings_for(letter_model, run_dir, f"max_steps={STEPS}", "devices.train=[0]")

    async def lose_the_second_node(pipeline):
        await step_reached(run_dir, 3)
        lost = second.node_id
        nodes = {a.name: (await a.identity()).node for a in pipeline.staff.everybody()}
        assert lost == nodes["rollout-0"] or lost == nodes["rollout-1"]
        assert lost != nodes["actor-train-0"]
        await asyncio.to_thread(cluster.remove_node, second, allow_graceful=False)

    result = run_pipeline(settings, letter_task(), lose_the_second_node)
    assert result.step == STEPS
    assert [row["step"] for row in metrics_of(run_dir)] == list(range(1, STEPS + 1))
