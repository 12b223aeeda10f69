"""A collector for `prometheus_client`, which an application registers.

from prometheus_client import REGISTRY
from flagstone.metrics.prometheus import Collector

REGISTRY.register(Collector())
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from operator import attrgetter
from typing import TYPE_CHECKING

from flagstone._watched import Reading, WatchedPools
from flagstone.metrics._table import METRICS, NAMESPACE, Metric

try:
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
    from prometheus_client.core import Metric as Family
    from prometheus_client.registry import Collector as BaseCollector
except ImportError as error:
    raise ImportError(f"{error}; pip install 'flagstone[prometheus]'") from error

if TYPE_CHECKING:
    from flagstone._core import BasePool
    from flagstone.stats import Stats

_SUFFIXES = {"By": "_bytes", "s": "_seconds"}
_LABELS = ("pool", "device")
_TIMES: tuple[tuple[str, str, Callable[[Stats], tuple[tuple[int, ...], int]]], ...] = (
    ("hit", "Time of one in 1,024 of the allocations that a magazine met.", attrgetter("hit_times", "hit_nanoseconds")),
    (
        "miss",
        "Time of allocations that no list of ready blocks could meet.",
        attrgetter("miss_times", "miss_nanoseconds"),
    ),
)
"""Histograms: how often each time was seen, and the sum of all."""


class Collector(BaseCollector):
    """The metrics of the process's pools and of others. A scrape reads them; between scrapes it costs nothing."""

    def __init__(self, pools: Mapping[str, BasePool] | None = None) -> None:
        """Collect from the process's pools, which have the label `pool="process"`, those of `flagstone.torch`'s pinned
        memory (`"pinned"`), and `pools`, by name. The collector keeps these alive."""
        self._pools = WatchedPools(pools)

    def collect(self) -> Iterator[Family]:
        """Yield every metric with the present numbers."""
        return _families(self._pools.read())

    def describe(self) -> Iterator[Family]:
        """Yield every metric without numbers, so that registering asks no pool."""
        return _families([])


def _families(readings: Iterable[Reading]) -> Iterator[Family]:
    for metric in METRICS:
        family = _family(metric)
        for reading in readings:
            for label, value in metric.points(reading.stats):
                family.add_metric([*_labels(reading), *label.values()], value)
        yield family
    for name, description, of in _TIMES:
        times = HistogramMetricFamily(f"{NAMESPACE}_{name}_seconds", description, labels=_LABELS)
        for reading in readings:
            counts, nanoseconds = of(reading.stats)
            times.add_metric(_labels(reading), _buckets(counts), sum_value=nanoseconds / 1e9)
        yield times


def _family(metric: Metric) -> CounterMetricFamily | GaugeMetricFamily:
    kind = CounterMetricFamily if metric.kind == "counter" else GaugeMetricFamily
    name = f"{NAMESPACE}_{metric.name.replace('.', '_')}{_SUFFIXES.get(metric.unit, '')}"
    return kind(name, metric.description, labels=(*_LABELS, *filter(None, [metric.label])))


def _labels(reading: Reading) -> tuple[str, str]:
    return reading.name, str(reading.stats.device)


def _buckets(times: tuple[int, ...]) -> list[tuple[str, float]]:
    """Return what a histogram of Prometheus has: for each bound in seconds how many times were below it."""
    seen, buckets = 0, []
    *bounded, _ = times
    for place, count in enumerate(bounded):
        seen += count
        buckets.append((repr((2 << place) / 1e9), float(seen)))
    return [*buckets, ("+Inf", float(sum(times)))]
