"""Sums of metrics from ranks and micro-batches merge to those of the whole batch."""

import numpy as np
import pytest

from roll_ray.algorithms.metric_sums import MetricSum, merge_sums

NAN = float("nan")


def test_metric_sums_merge_to_what_the_whole_gives():
    parts = [
        {"m": MetricSum("mean", 6, 3), "s": MetricSum("sum", 2, 1), "x": MetricSum("max", -4, 2)},
        {"m": MetricSum("mean", 2, 1), "s": MetricSum("sum", 5, 1), "x": MetricSum("max", 0, 0)},
        {},
    ]
    merged = merge_sums(parts)
    assert {k: m.value for k, m in merged.items()} == {"m": 2.0, "s": 7.0, "x": -4.0}
    assert MetricSum("mean", 0, 0).value is None
    assert MetricSum("max", 0, 0).value is None
    worst = [MetricSum("max", 1, 1), MetricSum("max", NAN, 1)]
    assert np.isnan(worst[0].merged(worst[1]).total)
    assert np.isnan(worst[1].merged(worst[0]).total)
    with pytest.raises(ValueError, match="cannot be merged"):
        MetricSum("sum", 1, 1).merged(MetricSum("mean", 1, 1))
