"""Which Ray a run connects to, and what connecting leaves alone. Nothing is started."""

import signal
import socket

import pytest
import ray

from roll_ray.cluster.session import session
from roll_ray.errors import RollRayError
from roll_ray.settings import RunSettings


@pytest.fixture
def asked(monkeypatch):
    """What ray.init was asked for; it does what the real one does to SIGTERM, and then fails."""
    options = {}

    def init(**given):
        options.update(given)
        signal.signal(signal.SIGTERM, lambda number, frame: None)
        raise ConnectionError("there is no such cluster")

    monkeypatch.setattr(ray, "init", init)
    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    monkeypatch.delenv("RAY_JOB_CONFIG_JSON_ENV_VAR", raising=False)
    return options


def connect(settings):
    with pytest.raises(RollRayError, match="cannot connect") as error, session(settings, "roll-ray/a"):
        pass
    return error.value


def test_a_run_without_an_address_starts_its_own_ray_whatever_runs_on_the_machine(asked):
    connect(RunSettings(model="m"))
    assert asked["address"] == "local"
    assert "device" in asked["resources"]


def test_a_named_cluster_is_asked_for_nothing_but_a_connection(asked, monkeypatch):
    with socket.socket() as cluster:
        cluster.bind(("127.0.0.1", 0))
        cluster.listen()
        address = f"127.0.0.1:{cluster.getsockname()[1]}"
        monkeypatch.setenv("RAY_ADDRESS", address)
        error = connect(RunSettings(model="m"))
    assert f"the Ray cluster at {address}" in error.what
    assert "there is no such cluster" in error.why
    assert asked["address"] == address
    assert "resources" not in asked


def test_an_address_where_nobody_listens_is_told_at_once(asked, monkeypatch):
    monkeypatch.setenv("RAY_ADDRESS", "127.0.0.1:1")
    error = connect(RunSettings(model="m"))
    assert "the Ray cluster at 127.0.0.1:1" in error.what
    assert "refused" in error.why
    assert not asked, "Ray was not bothered"


def test_a_wrong_token_is_told(asked, monkeypatch):
    def refuse(**given):
        raise ray.exceptions.AuthenticationError("Invalid authentication token")

    monkeypatch.setattr(ray, "init", refuse)
    error = connect(RunSettings(model="m"))
    assert "Invalid authentication token" in error.why
    assert "RAY_AUTH_MODE" in error.next_step


def test_a_job_connects_to_its_cluster(asked, monkeypatch):
    monkeypatch.setenv("RAY_JOB_CONFIG_JSON_ENV_VAR", "{}")
    connect(RunSettings(model="m"))
    assert asked["address"] == "auto"


def test_two_runs_of_one_name_have_namespaces_of_their_own(asked):
    connect(RunSettings(model="m"))
    first = asked["namespace"]
    connect(RunSettings(model="m"))
    assert first.startswith("roll-ray/a/")
    assert first != asked["namespace"]


def test_the_programs_own_sigterm_handler_stays(asked):
    def mine(number, frame):
        pass

    before = signal.signal(signal.SIGTERM, mine)
    try:
        connect(RunSettings(model="m"))
        assert signal.getsignal(signal.SIGTERM) is mine
    finally:
        signal.signal(signal.SIGTERM, before)
