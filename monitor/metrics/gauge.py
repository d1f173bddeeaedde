"""One gauge with its rows."""

from __future__ import annotations

from collections.abc import Sequence

from prometheus_client.core import GaugeMetricFamily, Metric

Row = tuple[tuple[str, ...], float]


def gauge(name: str, text: str, labels: tuple[str, ...], rows: Sequence[Row]) -> Metric:
    """`lightkeeper_NAME` with a value for each set of labels."""
    family = GaugeMetricFamily(f"lightkeeper_{name}", text, labels=labels)
    for values, value in rows:
        family.add_metric(values, value)
    return family
