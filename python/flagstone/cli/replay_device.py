"""The device under a trace that is replayed with torch: simulated, with the trace's clock, or real."""

import time
from typing import Any

import torch

from flagstone.cli.simulation import Device

_OWN_CALLS = ("cuStreamCreate", "cuLaunchKernel")
"""What the replay and torch's streams call by themselves."""

_TOUCHED = 1 << 20
"""Bytes of a block that a use on a real device writes at most."""

_Bill = dict[str, tuple[int, int]]


class Simulated:
    """Work takes the time that the trace says, events complete by so much later, and every driver call is counted."""

    def __init__(self, lag_ms: float) -> None:
        """Take hold of device 0."""
        self._device = Device()
        self._device.set_lag(round(lag_ms * 1e6))
        self._start = self._passes = self._peak = 0
        self._before: _Bill = {}

    def begin_pass(self, period_ns: int) -> None:
        """Begin a pass over a trace that takes so long."""
        self._start = max(self._device.now_ns(), self._passes * period_ns)
        self._passes += 1
        self._before, self._peak = self._device.bill(), self.held_bytes()

    def end_pass(self) -> dict[str, Any]:
        """Return what the pass cost."""
        return {"peak_reserved_bytes": self._peak, **_cost(self._before, self._device.bill())}

    def reach(self, time_ns: int) -> None:
        """Come to a time of the trace."""
        self._device.set_time(self._start + time_ns)

    def allocated(self) -> None:
        """Note that something was allocated."""
        self._peak = max(self._peak, self.held_bytes())

    def use(self, tensor: torch.Tensor, _own: torch.cuda.Stream, user: torch.cuda.Stream, until_ns: int) -> None:
        """Read memory on another stream than its own until a time of the trace."""
        self._device.read(user.cuda_stream, tensor.data_ptr(), tensor.nbytes, self._start + until_ns)

    def held_bytes(self) -> int:
        """Return the bytes of the device's memory that are in use by anybody."""
        return self._device.held_bytes()

    def now_us(self, time_ns: int) -> int:
        """Return the time of a sample, in microseconds of all passes."""
        return (self._start + time_ns) // 1000


class Real:
    """Requests come as fast as the host makes them, uses on other streams are kernels, and torch says what is held."""

    def __init__(self) -> None:
        """Take hold of the current device."""
        self._start_ns = time.perf_counter_ns()
        self._pass_ns = self._steps = 0

    def begin_pass(self, _period_ns: int) -> None:
        """Begin a pass over the trace."""
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        self._pass_ns, self._steps = time.perf_counter_ns(), 0

    def end_pass(self) -> dict[str, Any]:
        """Return what the pass cost."""
        took = time.perf_counter_ns() - self._pass_ns
        torch.cuda.synchronize()
        return {"peak_reserved_bytes": torch.cuda.max_memory_reserved(), "ns_per_op": round(took / max(self._steps, 1))}

    def reach(self, _time_ns: int) -> None:
        """Come to a time of the trace, which has no meaning here."""
        self._steps += 1

    def allocated(self) -> None:
        """Note that something was allocated: torch knows its peak."""

    def use(self, tensor: torch.Tensor, own: torch.cuda.Stream, user: torch.cuda.Stream, _until_ns: int) -> None:
        """Write memory on another stream than its own, after what its own has done."""
        user.wait_stream(own)
        with torch.cuda.stream(user):
            tensor[:_TOUCHED].fill_(0)

    def held_bytes(self) -> int:
        """Return the bytes that torch's allocator holds."""
        return int(torch.cuda.memory_reserved())

    def now_us(self, _time_ns: int) -> int:
        """Return the time of a sample, in microseconds since the first pass began."""
        return (time.perf_counter_ns() - self._start_ns) // 1000


def _cost(before: _Bill, after: _Bill) -> dict[str, Any]:
    calls, time_ns = {}, 0
    for name, (count, ns) in after.items():
        count_before, ns_before = before.get(name, (0, 0))
        if name not in _OWN_CALLS and count > count_before:
            calls[name] = count - count_before
            time_ns += ns - ns_before
    return {"driver_calls": calls, "driver_time_us": time_ns / 1000}
