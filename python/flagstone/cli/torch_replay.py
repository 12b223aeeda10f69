"""A trace replayed on the allocator that torch has in this process.

The steps, their times and what counts as active are those of `flagstone replay`; on a real device their order is.
"""

import gc
from typing import Any

import torch

from flagstone import _core
from flagstone.cli.replay_device import Real, Simulated

_SAMPLES = 500


def replay(path: str, passes: int, lag_ms: float, simulated: bool) -> dict[str, Any]:
    """Replay a trace and report what it cost: as `_core.replay`, with the figures of each pass under `passes`.

    `lag_ms` is for the simulated device. On a real one blocks that are freed and still in use do not count as active:
    for how long they are is not known.
    """
    trace = _core.Trace(path)
    schedule = trace.schedule()
    gc.disable()
    run = _Run(schedule, passes, Simulated(lag_ms) if simulated else Real())
    results = [run.run_pass() for _ in range(passes)]
    peak = max(result["peak_reserved_bytes"] for result in results)
    active = schedule["peak_active_bytes" if simulated else "peak_live_bytes"]
    return {
        "trace": trace.name,
        "passes": results,
        "peak_live_bytes": schedule["peak_live_bytes"],
        "peak_active_bytes": active,
        "peak_reserved_bytes": peak,
        "utilisation": active / peak if peak else 1.0,
        "errors": run.errors,
        "first_error": run.first_error,
        "series": run.series,
    }


class _Run:
    def __init__(self, schedule: dict[str, Any], passes: int, device: Simulated | Real) -> None:
        self._steps, self._period_ns = schedule["steps"], schedule["period_ns"]
        self._device = device
        self._streams = [torch.cuda.default_stream()]
        self._streams += [torch.cuda.Stream() for _ in range(1, schedule["streams"])]
        self._blocks: list[tuple[torch.Tensor, int] | None] = [None] * schedule["blocks"]
        self._every = max(1, passes * len(self._steps) // _SAMPLES)
        self._live = self._done = 0
        self.errors = 0
        self.first_error: str | None = None
        self.series: list[tuple[int, int, int]] = []
        """Microseconds, live bytes, bytes held."""

    def run_pass(self) -> dict[str, Any]:
        """Run all steps once and return what they cost."""
        device = self._device
        device.begin_pass(self._period_ns)
        for time_ns, call, block, stream, number in self._steps:
            device.reach(time_ns)
            if call == "alloc":
                self._alloc(block, stream, number)
                device.allocated()
            elif call == "use":
                self._use(block, stream, number)
            else:
                self._free(block, stream, number)
            self._done += 1
            if self._done % self._every == 0:
                self.series.append((device.now_us(time_ns), self._live, device.held_bytes()))
        return device.end_pass()

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
            tensor, own = held
            self._device.use(tensor, self._streams[own], user, until_ns)
            tensor.record_stream(user)

    def _free(self, block: int, stream: int, nbytes: int) -> None:
        self._live -= nbytes
        held = self._blocks[block]
        if held is not None and stream != held[1]:
            held[0].record_stream(self._streams[stream])
        self._blocks[block] = None
