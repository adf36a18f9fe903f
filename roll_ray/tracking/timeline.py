"""Phases of a run as a trace that Perfetto (ui.perfetto.dev) and chrome://tracing open.

The file is whole JSON after every event: each write takes the closing bracket back and sets it anew, in
one call. So a crash leaves a trace that opens, and the phases in which it happened are closed when the
run is resumed.
"""

from __future__ import annotations

import contextlib
import json
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

_END = b"\n]\n"


class Timeline:
    """Writes `path`. One track is one row of the trace; phases of a track must nest.

    `clock` gives seconds since the epoch. Several processes may each write a timeline of their own.
    """

    def __init__(self, path: Path, process: str = "driver", clock: Callable[[], float] = time.time) -> None:
        self.path, self._clock = path, clock
        self._tracks: dict[str, int] = {}
        path.parent.mkdir(parents=True, exist_ok=True)
        earlier = _events(path)
        name = {"name": "process_name", "ph": "M", "pid": 1, "args": {"name": process}}
        _write_whole(path, (earlier + _closing(earlier)) or [name])
        for event in earlier:
            if event["name"] == "thread_name":
                self._tracks[event["args"]["name"]] = event["tid"]
        self._file = path.open("r+b", buffering=0)

    @contextlib.contextmanager
    def phase(self, name: str, track: str = "controller", **args: Any) -> Iterator[None]:
        """A block of time; closed whatever happens inside."""
        self._event(name, "B", track, args)
        try:
            yield
        finally:
            self._event(name, "E", track, {})

    def instant(self, name: str, track: str = "controller", **args: Any) -> None:
        """A moment: a warning, a worker that died."""
        self._event(name, "i", track, args, s="p")

    def counter(self, name: str, value: float) -> None:
        """A curve over time."""
        self._event(name, "C", "controller", {"value": value})

    def close(self) -> None:
        self._file.close()

    def _event(self, name: str, kind: str, track: str, args: dict[str, Any], **more: Any) -> None:
        event = {
            "name": name,
            "ph": kind,
            "ts": round(self._clock() * 1e6),
            "pid": 1,
            "tid": self._tid(track),
        }
        self._write(event | more | ({"args": args} if args else {}))

    def _tid(self, track: str) -> int:
        if track not in self._tracks:
            tid = self._tracks[track] = len(self._tracks) + 1
            self._write({"name": "thread_name", "ph": "M", "pid": 1, "tid": tid, "args": {"name": track}})
        return self._tracks[track]

    def _write(self, event: dict[str, Any]) -> None:
        self._file.seek(-len(_END), os.SEEK_END)
        self._file.write(b",\n" + json.dumps(event).encode() + _END)


def _events(path: Path) -> list[dict[str, Any]]:
    """The events of an earlier part of the run. A file that a full disk or a power cut damaged is kept aside."""
    if not path.is_file():
        return []
    try:
        return list(json.loads(path.read_bytes()))
    except ValueError:
        path.replace(path.with_suffix(".damaged.json"))
        return []


def _write_whole(path: Path, events: list[dict[str, Any]]) -> None:
    temporary = path.with_suffix(".writing")
    temporary.write_bytes(b"[\n" + b",\n".join(json.dumps(event).encode() for event in events) + _END)
    temporary.replace(path)


def _closing(events: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Ends for the phases that are open after `events`, at the time of the last of these."""
    open_phases: dict[int, list[str]] = {}
    for event in events:
        if event["ph"] == "B":
            open_phases.setdefault(event["tid"], []).append(event["name"])
        elif event["ph"] == "E":
            open_phases[event["tid"]].pop()
    last_us = max((e["ts"] for e in events if "ts" in e), default=0)
    return [
        {"name": name, "ph": "E", "ts": last_us, "pid": 1, "tid": tid}
        for tid, names in open_phases.items()
        for name in reversed(names)
    ]
