"""A loop over a data loader in a process of `contestant`: torch's way to the device, or flagstone's."""

import gc
import threading
import time
import warnings
from collections.abc import Callable, Iterable, Iterator
from queue import Queue
from typing import Any

import torch
from torch.utils.data import DataLoader, Dataset

from flagstone.cli import simulation
from flagstone.torch import Prefetcher, pin_memory, pinned_pool

_STEP_NS = 1_000_000
"""A batch's time on the simulated device's clock."""
_LAG_NS = 3 * _STEP_NS
"""How late copies are seen to be done."""
_CHECKED_AT_ONCE = 8
_AHEAD = 2
"""Pinned batches that wait for the loop at most."""
_CALLS = ("cudaHostAlloc", "cudaFreeHost", "cudaHostRegister", "cudaHostUnregister", "cuMemHostAlloc", "cuMemFreeHost")


class _Batches(Dataset[dict[str, torch.Tensor]]):  # type: ignore[misc]
    """Batches of 0.25 to 4.25 MiB, as different as those of sentences; each byte is the batch's stamp."""

    def __init__(self, count: int) -> None:
        self._count = count

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        nbytes = (1 << 18) + index * 2_654_435_761 % (1 << 22)
        data = torch.full((nbytes,), _stamp(index), dtype=torch.uint8)
        return {"data": data, "labels": torch.full((128,), index), "index": torch.tensor(index)}


def _stamp(index: int) -> int:
    return index % 251


def _by_torch(loader: Iterable[Any]) -> Iterator[dict[str, torch.Tensor]]:
    for batch in loader:
        yield {name: tensor.to("cuda", non_blocking=True) for name, tensor in batch.items()}


def _by_pin_memory(loader: Iterable[Any]) -> Iterator[dict[str, torch.Tensor]]:
    return _by_torch(pin_memory(batch) for batch in loader)


def _by_pinning_thread(loader: Iterable[Any]) -> Iterator[dict[str, torch.Tensor]]:
    """As torch's loader does it: a thread pins, and the loop copies. Here no batch fails and none is left out."""
    batches, pinned = iter(loader), Queue[Any](maxsize=_AHEAD)

    def pin() -> None:
        for batch in batches:
            pinned.put(pin_memory(batch))
        pinned.put(None)

    threading.Thread(target=pin, daemon=True).start()
    return _by_torch(iter(pinned.get, None))


_WAYS: dict[str, Callable[[Iterable[Any]], Iterable[Any]]] = {
    "torch": _by_torch,
    "pin_memory": _by_pin_memory,
    "pinning thread": _by_pinning_thread,
    "Prefetcher": Prefetcher,
}


def load(way: str, workers: int, count: int, warm: int, checked: bool, simulated: bool) -> dict[str, Any]:
    """Take `count` batches to the device: "torch" by `DataLoader(pin_memory=True)` and copies that do not block, the
    other ways by flagstone's. The time is that of the batches after the first `warm`; `checked`
    looks at each byte. On a simulated device copies are late by its clock, and the calls for pinned memory are counted.
    """
    warnings.filterwarnings("ignore", "This DataLoader will create")
    loader = DataLoader(_Batches(count), batch_size=None, num_workers=workers, pin_memory=way == "torch")
    device = simulation.Device() if simulated else None
    if device:
        device.set_lag(_LAG_NS)
    kept: list[torch.Tensor] = []
    stamps: list[int] = []
    start, cpu, calls, wrong = 0, 0, 0, 0
    for done, batch in enumerate(_WAYS[way](loader)):
        if done == warm:
            start, cpu, calls = time.perf_counter_ns(), time.process_time_ns(), _pinned_calls(device)
        if checked:
            kept.append(batch["data"].clone())
            stamps.append(_stamp(done))
            if len(kept) == _CHECKED_AT_ONCE:
                wrong += sum(bool((data.cpu() != stamp).any()) for data, stamp in zip(kept, stamps, strict=True))
                kept.clear()
                stamps.clear()
        del batch
        if device:
            device.set_time(device.now_ns() + _STEP_NS)
    if device is None:
        torch.cuda.synchronize()
    seconds = (time.perf_counter_ns() - start) / 1e9
    cpu_ms = (time.process_time_ns() - cpu) / 1e6
    gc.collect()
    held, in_use = _torchs_peaks() if way == "torch" else _pools_peaks()
    counted = {"pinned_calls": _pinned_calls(device), "pinned_calls_when_warm": _pinned_calls(device) - calls}
    return {
        "batches_per_second": (count - warm) / seconds,
        "cpu_ms_per_batch": cpu_ms / (count - warm),
        "peak_pinned_bytes": held,
        "peak_pinned_in_use_bytes": in_use,
        **(counted if simulated else {}),
        "wrong_batches": wrong,
    }


def _pinned_calls(device: simulation.Device | None) -> int:
    counts = device.calls() if device else {}
    return sum(counts.get(name, 0) for name in _CALLS)


def _torchs_peaks() -> tuple[int, int]:
    stats = torch.cuda.host_memory_stats()
    # Before torch 2.10 what is held was called reserved, and what is in use allocated.
    names = ("allocated", "active") if "active_bytes.peak" in stats else ("reserved", "allocated")
    held, in_use = (stats[f"{name}_bytes.peak"] for name in names)
    # Some versions (seen to 2.11) count a block that is used again while a copy of it is under way more than once.
    return held, min(in_use, held)


def _pools_peaks() -> tuple[int, int]:
    stats = pinned_pool().stats()
    return stats.peak_reserved_bytes, stats.peak_active_bytes
