"""The forms of Prometheus metrics that are used here, under the one prefix.

Owns the prefix `calserve_`. Must not know what is measured.
"""

from __future__ import annotations

from collections.abc import Iterable

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric

PREFIX = "calserve_"
Values = Iterable[tuple[list[str], float]]


def gauge(name: str, text: str, values: Values, labels: list[str]) -> Metric:
    family = GaugeMetricFamily(PREFIX + name, text, labels=labels)
    for label_values, value in values:
        family.add_metric(label_values, value)
    return family


def counter(name: str, text: str, values: Values, labels: list[str]) -> Metric:
    family = CounterMetricFamily(PREFIX + name, text, labels=labels)
    for label_values, value in values:
        family.add_metric(label_values, value)
    return family
