"""The timeline opens in Perfetto after every event, whatever ends the process."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from roll_ray.tracking.timeline import Timeline


def events(path: Path) -> list[dict[str, Any]]:
    return [e for e in json.loads(path.read_text()) if e["ph"] != "M"]


def nests(rows: list[dict[str, Any]]) -> bool:
    """Whether every phase ends, in the right order, on its track."""
    tracks: dict[int, list[str]] = {}
    for row in rows:
        track = tracks.setdefault(row["tid"], [])
        if row["ph"] == "B":
            track.append(row["name"])
        elif row["ph"] == "E" and (not track or track.pop() != row["name"]):
            return False
    return not any(tracks.values())


def test_phases_nest_and_carry_microseconds(tmp_path: Path) -> None:
    times = iter([1.0, 2.0, 3.0, 4.5])
    timeline = Timeline(tmp_path / "t.json", clock=lambda: next(times))
    with timeline.phase("train", step=1), timeline.phase("accumulate"):
        pass
    rows = events(tmp_path / "t.json")
    assert [(r["name"], r["ph"], r["ts"]) for r in rows] == [
        ("train", "B", 1_000_000),
        ("accumulate", "B", 2_000_000),
        ("accumulate", "E", 3_000_000),
        ("train", "E", 4_500_000),
    ]
    assert rows[0]["args"] == {"step": 1}


def test_a_phase_is_closed_by_an_exception(tmp_path: Path) -> None:
    timeline = Timeline(tmp_path / "t.json")
    with pytest.raises(RuntimeError), timeline.phase("train"):
        raise RuntimeError
    assert nests(events(tmp_path / "t.json"))


def test_the_file_is_whole_json_after_every_event(tmp_path: Path) -> None:
    timeline = Timeline(tmp_path / "t.json")
    for i in range(5):
        timeline.instant("warning", text=f"{i}")
        timeline.counter("reward", i)
        assert len(events(tmp_path / "t.json")) == 2 * (i + 1)


def test_a_killed_run_leaves_a_trace_that_opens_and_the_next_one_closes_its_phases(tmp_path: Path) -> None:
    path = tmp_path / "t.json"
    program = (
        "import os, signal, sys; from pathlib import Path; from roll_ray.tracking.timeline import Timeline\n"
        "t = Timeline(Path(sys.argv[1]))\n"
        "with t.phase('step'), t.phase('rollout', track='engines'): os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    done = subprocess.run([sys.executable, "-c", program, str(path)], check=False, env=os.environ)
    assert done.returncode == -signal.SIGKILL
    assert [r["ph"] for r in events(path)] == ["B", "B"]
    timeline = Timeline(path)
    with timeline.phase("step"):
        pass
    rows = events(path)
    assert nests(rows)
    assert len(rows) == 6
    assert len({r["tid"] for r in rows}) == 2, "the tracks are those of before"


def test_a_damaged_file_is_kept_aside(tmp_path: Path) -> None:
    (tmp_path / "t.json").write_text('[{"name": "x"')
    Timeline(tmp_path / "t.json").instant("begun")
    assert (tmp_path / "t.damaged.json").exists()
    assert len(events(tmp_path / "t.json")) == 1
