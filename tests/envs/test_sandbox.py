"""The sandbox as a part: what it shows, how it starts and ends, and what there is without it."""

from __future__ import annotations

import os
import pickle
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from envs import sandbox, sandbox_walls
from envs.code import CodeVerifier
from envs.sandbox import Limits, Sandbox, SandboxError
from envs.sandbox_filter import system_call_filter
from roll_ray.errors import RollRayError
from tests.envs.sandbox_needed import bubblewrap, children  # noqa: F401
from tests.envs.test_code_verdicts import SUM, view

needs_bubblewrap = pytest.mark.usefixtures("bubblewrap")


@pytest.fixture
def verifier(bubblewrap: None) -> CodeVerifier:  # noqa: F811
    return CodeVerifier()


@needs_bubblewrap
def test_packages_are_seen_only_where_an_option_names_their_folder(tmp_path: Path) -> None:
    (tmp_path / "a_package.py").write_text("seven = 7\n")
    os.chmod(tmp_path, 0o755)
    tests = [{"expected_stdout": "7"}, "import a_package\nassert a_package.seven == f() == 7"]
    program = (
        "import a_package\nif __name__ == '__main__': print(a_package.seven)\ndef f(): return a_package.seven"
    )
    assert CodeVerifier(packages=(str(tmp_path),))(view(program, tests=tests)).value == 1.0
    assert "ModuleNotFoundError" in CodeVerifier()(view(program, tests=tests)).reason
    assert "ModuleNotFoundError" in CodeVerifier()(view("import numpy", tests=[SUM])).reason


@needs_bubblewrap
def test_threads_and_pickled_copies_get_the_same_verdicts_and_leave_nothing(verifier: CodeVerifier) -> None:
    copy = pickle.loads(pickle.dumps(verifier))
    before = held()
    with ThreadPoolExecutor(3) as pool:
        programs = ["print(7)", "print(8)", "1/0"] * 5
        values = list(pool.map(lambda program: copy(view(program, tests=[SUM])).value, programs))
    assert values == [1.0, 0.0, 0.0] * 5
    wait_until(lambda: held() == before)  # a thread's sandbox goes just after the thread


def held() -> tuple[set[int], int, int]:
    """Processes, threads and open files of this process."""
    return children(), threading.active_count(), len(os.listdir("/proc/self/fd"))


def wait_until(true: Callable[[], bool]) -> None:
    deadline_s = time.monotonic() + 10
    while not true():
        assert time.monotonic() < deadline_s
        time.sleep(0.05)


@needs_bubblewrap
def test_a_sandbox_that_died_between_two_programs_is_made_anew() -> None:
    with Sandbox(Limits()) as box:
        assert box.run("print(7)").stdout == "7\n"
        assert box._process is not None
        box._process.kill()
        box._process.wait()
        assert box.run("print(7)").stdout == "7\n"


@needs_bubblewrap
@pytest.mark.parametrize("moment", ["between two programs", "within a program"])
def test_a_sandbox_ends_when_its_owner_is_killed(moment: str, tmp_path: Path) -> None:
    program = (
        "import time; print('started', flush=True); time.sleep(60)" if moment == "within a program" else ""
    )
    script = tmp_path / "owner.py"
    script.write_text(
        "import time\nfrom envs.sandbox import Limits, Sandbox\nbox = Sandbox(Limits())\n"
        f"box.run('')\nprint(box._process.pid, flush=True)\nbox.run({program!r})\ntime.sleep(60)"
    )
    owner = subprocess.Popen([sys.executable, script], stdout=subprocess.PIPE, text=True)
    assert owner.stdout is not None
    pids = tree(int(owner.stdout.readline()))
    time.sleep(0.5)  # the second program has begun
    owner.kill()
    owner.wait()
    owner.stdout.close()
    wait_until(lambda: not any(map(alive, pids)))


def tree(pid: int) -> list[int]:
    below = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return [pid, *(found for child in below for found in tree(int(child)))]


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


@needs_bubblewrap
def test_closing_a_sandbox_waits_for_the_end_of_all_that_is_in_it() -> None:
    box = Sandbox(Limits())
    box.run("")
    assert box._process is not None
    pids = tree(box._process.pid)
    assert len(pids) >= 2
    box.close()
    assert not any(map(alive, pids))


@needs_bubblewrap
def test_a_supervisor_that_does_not_answer_is_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sandbox, "_GRACE_S", 0.2)
    with Sandbox(Limits()) as box:
        box.run("")
        assert box._process is not None
        pids = tree(box._process.pid)
        os.kill(pids[-1], signal.SIGSTOP)
        assert box.run("", timeout_s=0.2).breach == "time-out"
        wait_until(lambda: not any(map(alive, pids)))
        assert box.run("print(7)").stdout == "7\n"


@needs_bubblewrap
def test_a_sandbox_that_cannot_start_makes_the_reward_invalid(
    verifier: CodeVerifier, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sandbox, "walled_command", lambda *_: ["sh", "-c", "echo no room >&2; exit 1"])
    with Sandbox(Limits()) as box, pytest.raises(SandboxError, match="no room"):
        box.run("print(7)")
    with ThreadPoolExecutor(1) as fresh:
        reward = fresh.submit(verifier, view("print(7)", tests=[SUM])).result()
    assert not reward.valid
    assert reward.reason == "sandbox: no room"


@pytest.fixture
def no_bubblewrap(monkeypatch: pytest.MonkeyPatch) -> None:
    which = shutil.which
    monkeypatch.setattr(sandbox_walls.shutil, "which", lambda name: None if name == "bwrap" else which(name))


@pytest.mark.usefixtures("no_bubblewrap")
def test_without_isolation_code_rewards_refuse_to_start_and_say_how_to_get_it() -> None:
    with pytest.raises(RollRayError, match="apt-get install bubblewrap"):
        CodeVerifier()


@pytest.mark.usefixtures("no_bubblewrap")
def test_sandbox_none_runs_without_walls_and_warns_loudly(caplog: pytest.LogCaptureFixture) -> None:
    verifier = CodeVerifier(sandbox="none")
    assert "RUN ON THIS MACHINE WITH YOUR RIGHTS" in caplog.text
    assert verifier(view("print(7)", tests=[SUM])).value == 1.0
    assert verifier(view("def f(): return 7", tests=["assert f() == 7"])).value == 1.0


@pytest.mark.usefixtures("no_bubblewrap")
def test_sandbox_none_still_ends_a_program_and_its_daemons_at_the_limit(tmp_path: Path) -> None:
    pid_file = tmp_path / "pid"
    program = f"""
import os, time
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        open({str(pid_file)!r}, "w").write(str(os.getpid()))
    time.sleep(60)
time.sleep(60)
"""
    with Sandbox(Limits(), isolation="none") as box:
        assert box.run(program, timeout_s=1.5).breach == "time-out"
    assert not Path(f"/proc/{pid_file.read_text()}").exists()


def test_an_unknown_sandbox_is_an_error() -> None:
    with pytest.raises(RollRayError, match="bubblewrap, none"):
        CodeVerifier(sandbox="docker")


@pytest.mark.parametrize("machine", ["x86_64", "aarch64"])
def test_the_filter_is_a_program_whose_jumps_stay_within_it(
    machine: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("platform.machine", lambda: machine)
    rules = system_call_filter()
    instructions = [rules[i : i + 8] for i in range(0, len(rules), 8)]
    assert 50 < len(instructions) < 256
    for number, (code, _, if_true, if_false, *_value) in enumerate(instructions):
        if code & 7 == 5:  # a jump
            assert max(number + 1 + if_true, number + 1 + if_false) < len(instructions)
    assert instructions[-1][0] == 6  # it returns
