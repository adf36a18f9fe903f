"""Attacks on code rewards: each is wrong with its own reason, harms no other sample and leaves nothing behind."""

from __future__ import annotations

import os
import re
import socket
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from envs.code import CaseResult, CodeVerifier
from envs.sandbox import Limits
from tests.envs.code_attacks import SCRIPTS, Attack
from tests.envs.code_cheats import CHEATS
from tests.envs.sandbox_needed import bubblewrap, children  # noqa: F401

pytestmark = pytest.mark.usefixtures("bubblewrap")
ALWAYS = {
    "fork bomb",
    "10 GB at once",
    "1 GB of output",
    "reads a key file by its path",
    "calls a server of the host",
    "writes to the root",
    "a daemon that outlives it",
    "exits for good when it is called",
    "equals everything",
}
"""The attacks that a run without engines makes too: all of them take a while."""

LIMITS = Limits(memory_bytes=96 << 20, processes=16, output_bytes=100_000, scratch_bytes=4 << 20, files=200)
SECRET = "a-key-of-the-parent"

WHAT_IS_LEFT = """
import os
print(sorted(p for p in os.listdir('/proc') if p.isdigit() and int(p) != os.getpid()))
print(sorted(os.listdir('/scratch')))
"""
NOTHING_LEFT = "['1']\n['solution.py']\n"


@pytest.fixture(scope="module")
def host(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Any]]:
    """What is there to be stolen: a key file in a home, a variable, a server, an abstract socket."""
    home = tmp_path_factory.mktemp("home")
    key_file = home / ".ssh" / "id_rsa"
    key_file.parent.mkdir()
    key_file.write_text(SECRET)
    abstract = f"roll-ray-test-{os.getpid()}"
    with (
        pytest.MonkeyPatch.context() as environment,
        socket.create_server(("127.0.0.1", 0)) as server,
        socket.socket(socket.AF_UNIX) as listener,
    ):
        environment.setenv("HOME", str(home))
        environment.setenv("API_KEY", SECRET)
        listener.bind("\0" + abstract)
        listener.listen()
        yield {
            "home": home,
            "key_file": key_file,
            "secret": SECRET,
            "port": server.getsockname()[1],
            "abstract": abstract,
        }


Run = Callable[[str, float, Any], CaseResult]


@pytest.fixture(scope="module")
def run(host: dict[str, Any], bubblewrap: None) -> Iterator[Run]:  # noqa: F811
    """Runs one case in a thread that lives as long as the module; then all that it started must be gone."""
    times: dict[str, float] = {}
    verifier = CodeVerifier(limits=LIMITS, timeout_of=lambda _key: times["limit"])
    before = children()
    with ThreadPoolExecutor(1) as thread:

        def in_thread(program: str, timeout_s: float, test: Any) -> CaseResult:
            times["limit"] = timeout_s
            (result,) = thread.submit(verifier.run, program, {"tests": [test]}).result()
            return result

        yield in_thread
    assert children() == before


def assert_nothing_is_left(run: Run) -> None:
    left = run(WHAT_IS_LEFT, 10.0, {"expected_stdout": NOTHING_LEFT})
    assert left.passed, left.reason


def assert_is_wrong(result: CaseResult, attack: Attack) -> None:
    assert result.verdict == "wrong"
    assert re.search(attack.reason, result.reason), result.reason
    assert result.seconds < attack.timeout_s + 1.0


def each(attacks: list[Attack]) -> Any:
    marks = {attack.name: [] if attack.name in ALWAYS else [pytest.mark.engine] for attack in attacks}
    return [pytest.param(attack, id=attack.name, marks=marks[attack.name]) for attack in attacks]


@pytest.mark.parametrize("attack", each(SCRIPTS))
def test_an_attack_is_wrong_and_leaves_nothing(attack: Attack, run: Run, host: dict[str, Any]) -> None:
    result = run(attack.program.format(**host), attack.timeout_s, {"expected_stdout": "7\n"})
    assert_is_wrong(result, attack)
    assert_nothing_is_left(run)
    assert host["key_file"].read_text() == SECRET


@pytest.mark.parametrize("cheat", each(CHEATS))
def test_a_verdict_cannot_be_forged(cheat: Attack, run: Run) -> None:
    assert_is_wrong(run(cheat.program, cheat.timeout_s, "assert answer() == 7"), cheat)
    assert_nothing_is_left(run)


def test_an_honest_program_passes_between_attacks(run: Run) -> None:
    assert run("print(7)", 10.0, {"expected_stdout": "7"}).passed
    assert run("def answer(): return 7", 10.0, "assert answer() == 7").passed
