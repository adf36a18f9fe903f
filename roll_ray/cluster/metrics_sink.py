"""A run's metrics as Ray application metrics: `roll_ray_<name>` gauges with the run's name as a tag.

A member of a family (`reward_mean/maths`) is the family's gauge with the tag `of`.
"""

from __future__ import annotations

from collections.abc import Mapping

from ray.util.metrics import Gauge

from roll_ray.tracking.metrics import metric_of


class RayMetricsSink:
    """Mirrors every number of a step into a gauge; the dashboard and Prometheus read them."""

    def __init__(self, run_name: str) -> None:
        self.run_name = run_name
        self._gauges: dict[str, Gauge] = {}

    def record(self, step: int, metrics: Mapping[str, float | int | None]) -> None:
        for name, value in {"step": step, **metrics}.items():
            if value is None:
                continue
            stem, _, member = name.partition("/")
            if stem not in self._gauges:
                meaning = name if name == "step" else metric_of(name).meaning
                self._gauges[stem] = Gauge(f"roll_ray_{stem}", description=meaning, tag_keys=("run", "of"))
            self._gauges[stem].set(float(value), tags={"run": self.run_name, "of": member})
