"""The verifier's time limit and its helper process: threads, scripts, Ray workers, no leaks."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from envs.maths import MathsVerifier
from envs.maths_equal import EqualityProcess, shared_process

ENDLESS = r"\boxed{9^{9^{9^9}}}"
CASES = [
    (r"\boxed{\frac12}", "0.5", 1.0),
    (r"\boxed{(x+1)^2}", "x^2+2x+1", 1.0),
    (r"\boxed{3x}", "3y", 0.0),
    (r"\boxed{2\sqrt2}", r"\sqrt{8}", 1.0),
]


def all_children() -> set[int]:
    found: set[int] = set()
    for task in Path("/proc/self/task").iterdir():
        found |= set(map(int, (task / "children").read_text().split()))
    return found


def open_files() -> int:
    return len(os.listdir("/proc/self/fd"))


def test_a_comparison_that_takes_too_long_is_invalid_and_the_next_one_works() -> None:
    verifier = MathsVerifier(limit_s=1.0)
    verifier.verdict(r"\boxed{x}", "y")  # the helper's start is not counted
    started_s = time.monotonic()
    reward = verifier.verdict(ENDLESS, "4")
    assert not reward.valid
    assert "took longer than 1 s" in reward.reason
    assert time.monotonic() - started_s < 1 * 4 + 2
    assert verifier.verdict(r"\boxed{(x+1)^2}", "x^2+2x+1").value == 1.0


def test_a_helper_that_dies_makes_one_reward_invalid_at_most() -> None:
    verifier = MathsVerifier()
    verifier.verdict(r"\boxed{x}", "y")
    assert shared_process._process is not None
    shared_process._process.send_signal(signal.SIGKILL)
    shared_process._process.wait()
    assert verifier.verdict(r"\boxed{2x}", "x+x").value == 1.0


def test_threads_get_the_same_verdicts() -> None:
    verifier = MathsVerifier()
    with ThreadPoolExecutor(8) as pool:
        rewards = list(pool.map(lambda case: verifier.verdict(case[0], case[1]).value, CASES * 10))
    assert rewards == [case[2] for case in CASES] * 10


PROGRAM = f"""
from envs.maths import MathsVerifier
verifier = MathsVerifier(limit_s=2.0)
print([verifier.verdict(response, reference).value for response, reference, _ in {CASES!r}])
print(verifier.verdict({ENDLESS!r}, "4").value)
"""


def test_a_script_without_a_main_guard_gets_the_same_verdicts_and_leaves_nothing(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        PROGRAM + "from envs.maths_equal import shared_process\nprint(shared_process._process)\n"
        "verifier.verdict(r'\\boxed{x}', 'y')\nprint(shared_process._process.pid)\n"
    )
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, check=True, cwd=tmp_path)
    verdicts, endless, ended, pid = done.stdout.splitlines()
    assert verdicts == str([case[2] for case in CASES])
    assert endless == ended == "None"
    assert not Path(f"/proc/{pid}").exists()


def test_a_helper_ends_itself_in_mid_computation_when_its_parent_was_killed(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        "import threading, time\nfrom envs.maths import MathsVerifier\n"
        "from envs.maths_equal import shared_process\n"
        "v = MathsVerifier(limit_s=2.0)\nv.verdict(r'\\boxed{x}', 'y')\n"
        f"threading.Thread(target=v.verdict, args=({ENDLESS!r}, '4')).start()\n"
        "time.sleep(0.5)\nprint(shared_process._process.pid, flush=True)\ntime.sleep(60)\n"
    )
    parent = subprocess.Popen([sys.executable, script], stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    pid = int(parent.stdout.readline())
    parent.kill()
    parent.wait()
    parent.stdout.close()
    deadline_s = time.monotonic() + 10
    while _alive(pid) and time.monotonic() < deadline_s:
        time.sleep(0.1)
    assert not _alive(pid)


def _alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except FileNotFoundError:
        return False


def test_a_forked_child_starts_a_helper_of_its_own() -> None:
    verifier = MathsVerifier()
    assert verifier.verdict(r"\boxed{2x}", "x+x").value == 1.0
    pid = os.fork()
    if pid == 0:
        right = verifier.verdict(r"\boxed{2x}", "x+x").value == 1.0
        shared_process.close()
        os._exit(0 if right else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    assert verifier.verdict(r"\boxed{3x}", "x+x").value == 0.0


def test_ten_thousand_rewards_leave_no_process_thread_or_open_file() -> None:
    verifier = MathsVerifier()

    def some(n: int) -> None:
        for i in range(n):
            verifier.verdict(f"The answer is \\boxed{{{i}}}.", str(i % 7))
            if i % 100 == 0:
                verifier.verdict(f"\\boxed{{{i}x + x}}", f"{i + 1}x")

    some(100)
    before = (all_children(), threading.active_count(), open_files())
    some(10_000)
    assert (all_children(), threading.active_count(), open_files()) == before


def test_a_closed_helper_starts_again() -> None:
    process = EqualityProcess()
    assert process.compare("2x", "x+x", 5.0) == "equal"
    process.close()
    assert process.compare("2x", "x", 5.0) == "different"
    process.close()


@pytest.mark.engine
def test_a_ray_worker_gets_the_same_verdicts() -> None:
    import ray

    @ray.remote
    def judge() -> list[float | None]:
        from envs.maths import MathsVerifier

        return [MathsVerifier().verdict(response, reference).value for response, reference, _ in CASES]

    ray.init("local", num_cpus=1, include_dashboard=False, object_store_memory=80 << 20, log_to_driver=False)
    try:
        assert ray.get(judge.remote(), timeout=120) == [case[2] for case in CASES]
    finally:
        ray.shutdown()
