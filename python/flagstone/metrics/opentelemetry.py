"""Instruments for OpenTelemetry, which read a pool when a reader of the meter provider collects.

from flagstone.metrics.opentelemetry import observe

observe()
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING

from flagstone import __version__
from flagstone._watched import WatchedPools
from flagstone.metrics._table import METRICS, NAMESPACE, Metric

try:
    from opentelemetry.metrics import CallbackOptions, Meter, Observation, get_meter
except ImportError as error:
    raise ImportError(f"{error}; pip install 'flagstone[opentelemetry]'") from error

if TYPE_CHECKING:
    from flagstone._core import BasePool


def observe(meter: Meter | None = None, pools: Mapping[str, BasePool] | None = None) -> None:
    """Make the instruments, of `meter` or of the global provider's meter "flagstone"; once for a meter.

    They are of the process's pools, which have the attribute `flagstone.pool="process"`, those of `flagstone.torch`'s
    pinned memory (`"pinned"`), and `pools`, by name, which are kept alive.
    """
    meter = meter or get_meter(NAMESPACE, __version__)
    makers = {
        "sum": meter.create_observable_up_down_counter,
        "gauge": meter.create_observable_gauge,
        "counter": meter.create_observable_counter,
    }
    watched = WatchedPools(pools)
    for metric in METRICS:
        name = f"{NAMESPACE}.{metric.name}"
        makers[metric.kind](name, [_callback(metric, watched)], unit=metric.unit, description=metric.description)


def _callback(metric: Metric, watched: WatchedPools) -> Callable[[CallbackOptions], Iterator[Observation]]:
    def read(_options: CallbackOptions) -> Iterator[Observation]:
        for reading in watched.read():
            for label, value in metric.points(reading.stats):
                attributes: dict[str, str | int] = {f"{NAMESPACE}.{key}": part for key, part in label.items()}
                attributes[f"{NAMESPACE}.pool"] = reading.name
                attributes[f"{NAMESPACE}.device"] = reading.stats.device
                yield Observation(value, attributes)

    return read
