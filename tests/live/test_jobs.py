"""`ray job submit` on a cluster with token authentication: two jobs at once, one ends by itself, one is stopped."""

import contextlib
import json
import os
import re
import secrets
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

import pytest

from tests.live.programs import Program, saved_step, shared_memory_of, steps_written

pytestmark = [pytest.mark.engine, pytest.mark.timeout(280)]

REPOSITORY = Path(__file__).parents[2]
UPLOAD_MAX_BYTES = 20 << 20


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class Head:
    """`ray start --head --block` in a session of its own, with a token."""

    def __init__(self, folder: Path) -> None:
        self.home = folder / "home"
        self.token = secrets.token_hex(32)
        (folder / "token").write_text(self.token)
        self.dashboard, self.metrics = f"http://127.0.0.1:{free_port()}", free_port()
        self.env = {
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
            "RAY_AUTH_MODE": "token",
            "RAY_AUTH_TOKEN_PATH": str(folder / "token"),
            "ROLL_RAY_HOME": str(self.home),
            "RAY_ADDRESS": self.dashboard,
        }
        self.port = free_port()
        words = ["ray", "start", "--head", "--block", "--num-cpus=2", f"--port={self.port}"]
        words += [f"--dashboard-port={self.dashboard.rpartition(':')[2]}", "--disable-usage-stats"]
        words += [f"--metrics-export-port={self.metrics}", "--object-store-memory=200000000"]
        words += [f"--dashboard-agent-listen-port={free_port()}"]
        self.program = Program(folder, *words, **(self.env | {"RAY_ADDRESS": ""}))
        self.program.until(self.is_up, 60)

    def is_up(self) -> bool:
        assert self.program.process.poll() is None, self.program.output
        try:
            return bool(self.get("/api/version"))
        except OSError:
            return False

    def get(self, path: str) -> dict:
        request = urllib.request.Request(self.dashboard + path)
        request.add_header("Authorization", f"Bearer {self.token}")
        with urllib.request.urlopen(request, timeout=10) as answer:
            return dict(json.load(answer))

    def job(self, name: str) -> dict:
        return self.get(f"/api/jobs/{name}")

    def until(self, name: str, status: str, timeout_s: float = 150.0) -> None:
        began_s = time.monotonic()
        while (job := self.job(name))["status"] != status:
            over = job["status"] in ("SUCCEEDED", "FAILED", "STOPPED")
            assert not over, f"{name} is {job['status']}: {job['message']}\n{self.logs(name)}"
            assert time.monotonic() - began_s < timeout_s, self.logs(name)
            time.sleep(0.3)

    def logs(self, name: str) -> str:
        return str(self.get(f"/api/jobs/{name}/logs")["logs"])

    def ray(self, *words: str) -> None:
        """A command of Ray; again while the node's agent is not up yet, which comes after the dashboard."""
        began_s = time.monotonic()
        while True:
            done = subprocess.run(
                ["ray", *words],
                cwd=REPOSITORY,
                env=os.environ | self.env,
                capture_output=True,
                text=True,
                check=False,
            )
            said = done.stdout + done.stderr
            if "No available agent" not in said or time.monotonic() - began_s > 60:
                assert done.returncode == 0, said
                return
            time.sleep(1)

    def submit(self, model: Path, name: str, *words: str) -> None:
        """Submit the letters recipe of this repository as the job `name`."""
        command = ["python", "tests/live/letters.py", f"model={model}", f"run_name={name}", *words]
        options = ["--no-wait", "--submission-id", name, "--working-dir", ".", "--"]
        self.ray("job", "submit", *options, *command)

    def live_actors(self) -> list[dict]:
        """Of all jobs, those that are not dead."""
        found = self.get("/api/v0/actors?limit=1000&detail=1")["data"]["result"]["result"]
        return [a for a in found if a["state"] != "DEAD" and not a["class_name"].startswith("Job")]

    def numbers(self, metric: str) -> dict[str, float]:
        """An application metric by run, as Prometheus would read it."""
        with urllib.request.urlopen(f"http://127.0.0.1:{self.metrics}/metrics", timeout=10) as answer:
            text = answer.read().decode()
        lines = re.findall(rf"^{metric}{{(.*)}} (\S+)$", text, re.M)
        return {re.search(r'run="([^"]*)"', tags)[1]: float(value) for tags, value in lines}


@pytest.fixture(scope="module")
def head(tmp_path_factory):
    started = Head(tmp_path_factory.mktemp("cluster"))
    try:
        yield started
    finally:
        os.killpg(started.program.process.pid, signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            started.program.process.wait(5)  # by itself it takes up to two minutes
        started.program.clear_up()
        note = Path("/tmp/ray/ray_current_cluster")  # which the head, killed, could not take away
        if note.exists() and note.read_text().endswith(f":{started.port}"):
            note.unlink()


@pytest.fixture(scope="module")
def two_jobs(head, letter_model):
    """Two jobs at once, each on one of the cluster's two devices: job-a to its end, job-b until it is stopped."""
    small = ("devices.rollout=[0]", "devices.train=[0]", "reward=slow")
    head.submit(letter_model, "job-a", "max_steps=12", *small)
    head.submit(letter_model, "job-b", "max_steps=5000", *small)
    runs = [head.home / "runs" / name for name in ("job-a", "job-b")]
    head.program.until(lambda: all(len(steps_written(run)) >= 2 for run in runs), 120)
    actors, metrics = head.live_actors(), {}
    uploaded = Path(os.readlink(f"/proc/{head.job('job-a')['driver_info']['pid']}/cwd"))
    bytes_uploaded = sum(p.stat().st_size for p in uploaded.rglob("*") if p.is_file())
    head.until("job-a", "SUCCEEDED")

    def both_seen() -> bool:
        metrics.update(head.numbers("ray_roll_ray_reward_mean"))
        return {"job-a", "job-b"} <= set(metrics)

    head.program.until(both_seen, 60)
    return bytes_uploaded, runs, actors


def test_the_upload_of_the_working_directory_is_small(two_jobs):
    bytes_uploaded, _, _ = two_jobs
    assert 0 < bytes_uploaded < UPLOAD_MAX_BYTES


def test_the_results_outlive_the_job_where_it_said_they_would_be(head, two_jobs):
    _, (run, _), _ = two_jobs
    assert f"results: {run}" in head.logs("job-a")
    assert steps_written(run) == list(range(1, 13))
    assert saved_step(run) == 12
    assert (run / "report.html").is_file()


def test_actors_have_readable_names_that_do_not_clash(two_jobs):
    _, _, actors = two_jobs
    names = {"rollout-0", "actor-train-0", "reward-default-0", "runner-0", "store-0", "rollout-manager"}
    for name in names:
        assert len({a["job_id"] for a in actors if a["name"] == name}) == 2, name


def test_metrics_of_both_runs_are_application_metrics(head, two_jobs):
    assert set(head.numbers("ray_roll_ray_step")) == {"job-a", "job-b"}


def test_a_stopped_job_ends_cleanly_with_its_last_step_saved(head, two_jobs):
    _, (_, run), _ = two_jobs
    assert head.job("job-b")["status"] == "RUNNING"
    head.ray("job", "stop", "job-b")
    head.until("job-b", "STOPPED", 30)
    assert saved_step(run) == steps_written(run)[-1] >= 2

    def all_is_gone() -> bool:
        return not (head.live_actors() or head.program.titles("VLLM::") or shared_memory_of("job-b"))

    head.program.until(all_is_gone, 20)
    groups = head.get("/api/v0/placement_groups?limit=100&detail=1")["data"]["result"]["result"]
    assert {group["state"] for group in groups} == {"REMOVED"}
