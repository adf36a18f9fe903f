"""The event log survives a torn last line, replays from its last snapshot, and can be read by a person."""

from __future__ import annotations

from pathlib import Path

import pytest

from roll_ray.errors import DataError
from schedulers.protocol import CutBatch, SampleId, Scored, Visit
from workers.event_log import EventLog, actions_of, events_of, last_session, since_last_snapshot

SAMPLE = SampleId(Visit("p", 0), 1)
EVENT = Scored(1.0, SAMPLE, 0, 0.5, "half right")


def write(path: Path) -> None:
    log = EventLog(path)
    log.append("session", session="one")
    log.append_events("runner-0", 3, [EVENT], [])
    log.append("snapshot", state={"a": 1})
    log.append_events("runner-0", 4, [EVENT], [CutBatch(0, (SAMPLE,))])
    log.close()


def test_replay_begins_at_the_last_snapshot_of_the_last_session(tmp_path: Path) -> None:
    path = tmp_path / "log" / "events.jsonl"
    write(path)
    snapshot, record = since_last_snapshot(path)
    assert snapshot["state"] == {"a": 1}
    assert (record["from"], record["sequence"]) == ("runner-0", 4)
    assert events_of(record) == [EVENT]
    assert actions_of(record) == [CutBatch(0, (SAMPLE,))]
    log = EventLog(path)
    log.append("session", session="two")
    assert last_session(path) == "two"
    assert [r["kind"] for r in since_last_snapshot(path)] == ["session"]


@pytest.mark.parametrize("torn", ['{"kind":"events","fr', '{"kind":"snapshot","state":{}}'])
def test_a_line_without_its_end_is_as_if_never_written(tmp_path: Path, torn: str) -> None:
    path = tmp_path / "events.jsonl"
    write(path)
    whole = path.read_bytes()
    path.write_bytes(whole + torn.encode())
    assert len(since_last_snapshot(path)) == 2
    EventLog(path).append("session", session="two")
    assert path.read_bytes() == whole + b'{"kind":"session","session":"two"}\n'


def test_a_broken_line_in_the_middle_is_an_error_with_its_place(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    write(path)
    with path.open("a") as file:
        file.write("garbage\n")
    with pytest.raises(DataError, match=r"events\.jsonl: the line at byte \d+ is not JSON"):
        since_last_snapshot(path)


def test_there_is_no_session_in_a_log_that_does_not_exist(tmp_path: Path) -> None:
    assert last_session(tmp_path / "none.jsonl") is None
