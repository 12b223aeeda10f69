"""The one table of metrics, named and measured as OpenTelemetry's conventions have it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from operator import attrgetter
from typing import Literal, NamedTuple, TypeAlias

from flagstone.stats import Stats, StepTotal

NAMESPACE = "flagstone"

Kind: TypeAlias = Literal["sum", "gauge", "counter"]
"""What goes up and down and may be added over pools; what may not be added; and what only goes up."""


class Metric(NamedTuple):
    """One number of a pool, or one for each value of a label."""

    name: str
    """Without the namespace."""
    unit: str
    """In UCUM: By for bytes, s for seconds, and what is counted in braces."""
    kind: Kind
    description: str
    value: Callable[[Stats], float | Mapping[str, float] | None]
    """The number, or one for each value of `label`; None where the pool has none."""
    label: str = ""

    def points(self, stats: Stats) -> list[tuple[dict[str, str], float]]:
        """Return each number with its label."""
        value = self.value(stats)
        if isinstance(value, Mapping):
            return [({self.label: part}, number) for part, number in value.items()]
        return [] if value is None else [({}, value)]


def _bytes(name: str, kind: Kind, description: str) -> Metric:
    return Metric(f"memory.{name}", "By", kind, description, attrgetter(f"{name}_bytes"))


def _count(name: str, unit: str, description: str, field: str, kind: Kind = "counter") -> Metric:
    return Metric(name, f"{{{unit}}}", kind, description, attrgetter(field))


def _by_step(name: str, unit: str, description: str, value: Callable[[StepTotal], float]) -> Metric:
    def values(stats: Stats) -> dict[str, float]:
        return {step.name: value(step) for step in stats.steps}

    return Metric(name, unit, "counter", description, values, "step")


def _invalid_calls(stats: Stats) -> dict[str, float]:
    return {
        "foreign_pointer": stats.invalid_free_count,
        "double_free": stats.double_free_count,
        "wrong_size": stats.wrong_size_free_count,
        "invalid_record": stats.invalid_record_count,
    }


# A counter never falls, also where it is read beside threads that allocate: a fall looks like a restart, and all of it
# is added once more. So a difference of two is none, as the hits are: it is made where both are.
METRICS = (
    _bytes("requested", "sum", "Live, as asked for."),
    _bytes("allocated", "sum", "Live, rounded to size classes."),
    _bytes("active", "sum", "Allocated, and freed but waiting for other streams."),
    _bytes("reserved", "sum", "Held from the driver."),
    _bytes("cached", "sum", "Held and ready for use."),
    Metric("memory.limit", "By", "sum", "The most that the pool may hold, if that is limited.", attrgetter("limit")),
    _bytes("largest_free", "gauge", "The largest free range of any stream."),
    _bytes("peak_allocated", "gauge", "The most that was allocated since the peaks were reset."),
    _bytes("peak_active", "gauge", "The most that was active since the peaks were reset."),
    _bytes("peak_reserved", "gauge", "The most that was reserved since the peaks were reset."),
    _bytes("host", "sum", "Host memory for the records of blocks and slabs."),
    _count("blocks.live", "block", "Blocks that are allocated.", "live_blocks", "sum"),
    _count("blocks.pending", "block", "Blocks that are freed and wait for other streams.", "pending_blocks", "sum"),
    _count("segments", "segment", "Contiguous ranges held from the driver.", "segments", "sum"),
    _count("allocations", "allocation", "Allocations that succeeded.", "alloc_count"),
    _count("frees", "free", "Frees that succeeded.", "free_count"),
    Metric(
        "allocated",
        "By",
        "counter",
        "Bytes of all allocations, rounded to size classes.",
        lambda stats: stats.allocated_bytes + stats.freed_bytes,
    ),
    _count("misses", "miss", "Allocations that no magazine could meet.", "miss_count"),
    _count("growths", "growth", "Times that the pool grew.", "growth_count"),
    Metric("driver.taken", "By", "counter", "Bytes taken from the driver.", attrgetter("taken_bytes")),
    Metric("driver.returned", "By", "counter", "Bytes given back to the driver.", attrgetter("given_bytes")),
    _count("driver.errors", "error", "Driver calls that failed while memory was given back.", "driver_error_count"),
    _count("synchronizations", "wait", "Times that the host waited for the whole device.", "synchronize_count"),
    _count("events", "event", "Events recorded for uses on other streams.", "event_count"),
    _count("stream_waits", "wait", "Waits of a stream for another one's memory, on the device.", "stream_wait_count"),
    _count("pressure.requests", "request", "Allocations that needed more than growth.", "pressure_count"),
    _by_step("pressure.steps", "{step}", "Steps taken before an allocation fails.", lambda step: step.count),
    _by_step("pressure.sufficed", "{step}", "Steps after which there was memory.", lambda step: step.sufficed),
    _by_step("pressure.time", "s", "Time of these steps.", lambda step: step.nanoseconds / 1e9),
    _count("out_of_memory", "failure", "Allocations that failed for want of memory.", "out_of_memory_count"),
    Metric(
        "invalid_calls",
        "{call}",
        "counter",
        "Frees and uses of pointers that are not the pool's live blocks.",
        _invalid_calls,
        "kind",
    ),
)
