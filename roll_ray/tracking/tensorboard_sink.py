"""Metrics as TensorBoard scalars, written with TensorBoard's own file writer (neither torch nor TensorFlow)."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path

from roll_ray.tracking.metrics import Value, metric_of


class TensorBoardSink:
    """Writes `<section>/<metric>` scalars below `folder`, on disk after every step. What an earlier start wrote
    after `resumed_step` (0: a fresh run) is hidden: those steps are done again."""

    def __init__(self, folder: Path, resumed_step: int = 0) -> None:
        # Loading TensorBoard takes a second, which `plan` need not spend.
        from tensorboard.compat.proto.event_pb2 import Event, SessionLog
        from tensorboard.compat.proto.summary_pb2 import Summary
        from tensorboard.summary.writer.event_file_writer import EventFileWriter

        folder.mkdir(parents=True, exist_ok=True)
        self._event, self._summary = Event, Summary
        self._writer = EventFileWriter(str(folder))
        start = SessionLog(status=SessionLog.START)
        self._writer.add_event(Event(wall_time=time.time(), step=resumed_step + 1, session_log=start))

    def record(self, step: int, metrics: Mapping[str, Value]) -> None:
        values = [
            self._summary.Value(
                tag=f"{metric_of(name).section.replace(' ', '_')}/{name}", simple_value=float(value)
            )
            for name, value in metrics.items()
            if value is not None
        ]
        summary = self._summary(value=values)
        self._writer.add_event(self._event(wall_time=time.time(), step=step, summary=summary))
        self._writer.flush()  # the writer's own thread dies with the process

    def close(self) -> None:
        self._writer.close()
