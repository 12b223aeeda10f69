"""A trace replayed on the allocator that torch has in this process, on the simulated CUDA.

The steps, their times and what counts as active are those of `flagstone replay`.
"""

import gc
from typing import Any

import torch

from flagstone import _core
from flagstone.cli.simulation import Device

_SAMPLES = 500
_OWN_CALLS = ("cuStreamCreate", "cuLaunchKernel")
"""What the replay and torch's streams call by themselves."""

_Bill = dict[str, tuple[int, int]]


def replay(path: str, passes: int, lag_ms: float) -> dict[str, Any]:
    """Replay a trace and report what it cost: as `_core.replay`, with the figures of each pass under `passes`."""
    trace = _core.Trace(path)
    schedule = trace.schedule()
    gc.disable()
    run = _Run(schedule, passes, lag_ms)
    results = [run.run_pass() for _ in range(passes)]
    peak = max(result["peak_reserved_bytes"] for result in results)
    return {
        "trace": trace.name,
        "passes": results,
        "peak_live_bytes": schedule["peak_live_bytes"],
        "peak_active_bytes": schedule["peak_active_bytes"],
        "peak_reserved_bytes": peak,
        "utilisation": schedule["peak_active_bytes"] / peak if peak else 1.0,
        "errors": run.errors,
        "first_error": run.first_error,
        "series": run.series,
    }


class _Run:
    def __init__(self, schedule: dict[str, Any], passes: int, lag_ms: float) -> None:
        self._steps, self._period_ns = schedule["steps"], schedule["period_ns"]
        self._device = Device()
        self._device.set_lag(round(lag_ms * 1e6))
        self._streams = [torch.cuda.default_stream()]
        self._streams += [torch.cuda.Stream() for _ in range(1, schedule["streams"])]
        self._blocks: list[tuple[torch.Tensor, int] | None] = [None] * schedule["blocks"]
        self._every = max(1, passes * len(self._steps) // _SAMPLES)
        self._passes = self._live = self._done = 0
        self.errors = 0
        self.first_error: str | None = None
        self.series: list[tuple[int, int, int]] = []
        """Microseconds, live bytes, bytes held."""

    def run_pass(self) -> dict[str, Any]:
        """Run all steps once and return what they cost."""
        device, before = self._device, self._device.bill()
        start = max(device.now_ns(), self._passes * self._period_ns)
        peak = device.held_bytes()
        for time_ns, call, block, stream, number in self._steps:
            device.set_time(start + time_ns)
            if call == "alloc":
                self._alloc(block, stream, number)
                peak = max(peak, device.held_bytes())
            elif call == "use":
                self._use(block, stream, start + number)
            else:
                self._free(block, stream, number)
            self._done += 1
            if self._done % self._every == 0:
                self.series.append(((start + time_ns) // 1000, self._live, device.held_bytes()))
        self._passes += 1
        return {"peak_reserved_bytes": peak, **_cost(before, device.bill())}

    def _alloc(self, block: int, stream: int, nbytes: int) -> None:
        if torch.cuda.current_stream() != self._streams[stream]:
            torch.cuda.set_stream(self._streams[stream])
        self._live += nbytes
        try:
            self._blocks[block] = (torch.empty(nbytes, dtype=torch.uint8, device="cuda"), stream)
        except RuntimeError as error:
            self.errors += 1
            self.first_error = self.first_error or str(error)

    def _use(self, block: int, stream: int, until_ns: int) -> None:
        held, user = self._blocks[block], self._streams[stream]
        if held is not None:
            tensor = held[0]
            self._device.read(user.cuda_stream, tensor.data_ptr(), tensor.nbytes, until_ns)
            tensor.record_stream(user)

    def _free(self, block: int, stream: int, nbytes: int) -> None:
        self._live -= nbytes
        held = self._blocks[block]
        if held is not None and stream != held[1]:
            held[0].record_stream(self._streams[stream])
        self._blocks[block] = None


def _cost(before: _Bill, after: _Bill) -> dict[str, Any]:
    calls, time_ns = {}, 0
    for name, (count, ns) in after.items():
        count_before, ns_before = before.get(name, (0, 0))
        if name not in _OWN_CALLS and count > count_before:
            calls[name] = count - count_before
            time_ns += ns - ns_before
    return {"driver_calls": calls, "driver_time_us": time_ns / 1000}
