"""A run's metrics as Ray application metrics: `roll_ray_<name>` gauges with the run's name as a tag."""

from __future__ import annotations

from collections.abc import Mapping

from ray.util.metrics import Gauge

from roll_ray.tracking.metrics import DECLARED


class RayMetricsSink:
    """Mirrors every number of a step into a gauge; the dashboard and Prometheus read them."""

    def __init__(self, run_name: str) -> None:
        self.run_name = run_name
        self._gauges: dict[str, Gauge] = {}

    def record(self, step: int, metrics: Mapping[str, float | int | None]) -> None:
        for name, value in {"step": step, **metrics}.items():
            if value is None:
                continue
            if name not in self._gauges:
                self._gauges[name] = Gauge(
                    f"roll_ray_{name}",
                    description=DECLARED[name].meaning if name in DECLARED else name,
                    tag_keys=("run",),
                )
                self._gauges[name].set_default_tags({"run": self.run_name})
            self._gauges[name].set(float(value))
