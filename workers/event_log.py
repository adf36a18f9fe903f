"""The event log of a run: JSON lines, append-only, what happened and what the scheduler then decided.

    {"kind":"session","session":"3f2a","t_s":1.7e9}
    {"kind":"snapshot","state":{...}}                  the manager's state at a step boundary
    {"kind":"events","from":"runner-0","sequence":7,"events":[["Scored",...],...],"actions":[["CutBatch",...]]}
    {"kind":"fence","actions":[...]}                   after a restart: open attempts were launched again

A line is written whole and flushed before its actions are carried out. Replay starts at the last snapshot.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from roll_ray.errors import DataError
from schedulers.events_log import from_record, to_record
from schedulers.protocol import Action, Event

_PREFIX = b'{"kind":"%s"'


class EventLog:
    """Appends to the log at `path`. A line that a crash tore off is cut away when the log is opened."""

    def __init__(self, path: Path) -> None:
        self.path = path
        path.parent.mkdir(parents=True, exist_ok=True)
        _cut_torn_line(path)
        self._file = path.open("ab")

    def append(self, kind: str, **fields: Any) -> None:
        line = json.dumps({"kind": kind, **fields}, separators=(",", ":"))
        self._file.write(line.encode() + b"\n")
        self._file.flush()

    def append_events(
        self, sender: str, sequence: int, events: Sequence[Event], actions: Sequence[Action]
    ) -> None:
        self.append(
            "events",
            **{"from": sender},
            sequence=sequence,
            events=[to_record(event) for event in events],
            actions=[to_record(action) for action in actions],
        )

    def close(self) -> None:
        self._file.close()


def last_session(path: Path) -> str | None:
    """The session that the log ends with."""
    found = None
    for _, line in _lines(path):
        if line.startswith(_PREFIX % b"session"):
            found = str(json.loads(line)["session"])
    return found


def since_last_snapshot(path: Path) -> list[dict[str, Any]]:
    """The records of the last session, from its last snapshot on (or from its beginning)."""
    begin = 0
    for offset, line in _lines(path):
        if line.startswith((_PREFIX % b"session", _PREFIX % b"snapshot")):
            begin = offset
    return list(_records(path, begin))


def events_of(record: dict[str, Any]) -> list[Event]:
    return [from_record(item) for item in record["events"]]


def actions_of(record: dict[str, Any]) -> list[Action]:
    return [from_record(item) for item in record["actions"]]


def _records(path: Path, begin: int) -> Iterator[dict[str, Any]]:
    for offset, line in _lines(path):
        if offset < begin:
            continue
        try:
            yield json.loads(line)
        except ValueError as error:
            raise DataError(
                f"event log {path}: the line at byte {offset} is not JSON",
                why=str(error),
                next_step="the log was changed by something else; start the run under another name",
            ) from error


def _lines(path: Path) -> Iterator[tuple[int, bytes]]:
    """Whole lines with their byte offsets; a last line without its end is a torn one."""
    if not path.exists():
        return
    with path.open("rb") as file:
        offset = 0
        for line in file:
            if line.endswith(b"\n"):
                yield offset, line
            offset += len(line)


def _cut_torn_line(path: Path) -> None:
    whole = 0
    for offset, line in _lines(path):
        whole = offset + len(line)
    if path.exists() and path.stat().st_size > whole:
        with path.open("r+b") as file:
            file.truncate(whole)
