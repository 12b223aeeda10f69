"""flagstone under PyTorch: every CUDA tensor of an unchanged script comes from the pool.

    import flagstone.torch

    flagstone.torch.install(limit="20GiB")  # before the first CUDA tensor

torch decides once in a process which allocator it uses, before CUDA is initialised. `MemPool` is the other way: torch's
own allocator stays, and takes its segments from the pool inside `torch.cuda.use_mem_pool`.
"""

try:
    import torch
except ModuleNotFoundError as error:
    raise ImportError(f"{error}; install a build of torch for your CUDA: pip install 'flagstone[torch]'") from error

from flagstone import _core
from flagstone.stats import Snapshot, Stats
from flagstone.torch._mempool import MemPool
from flagstone.torch._pinned import PinnedTensor, pin_memory, pinned_pool
from flagstone.torch._prefetch import Prefetcher
from flagstone.torch._private import NotServedError, PrivatePool
from flagstone.torch._swap import install, is_installed

__all__ = [
    "MemPool",
    "NotServedError",
    "PinnedTensor",
    "Prefetcher",
    "PrivatePool",
    "install",
    "is_installed",
    "memory_snapshot",
    "memory_stats",
    "pin_memory",
    "pinned_pool",
    "pool",
    "reset_peak_memory_stats",
]


def memory_stats(device: object = None) -> Stats:
    """Return the numbers of a device's pool; `device` is anything that torch takes, None for the current device.

    Cheap, and for any thread. Errors are those of `pool`.
    """
    return pool(device).stats()


def reset_peak_memory_stats(device: object = None) -> None:
    """Start the peaks of a device's pool anew, for all threads. Errors are those of `pool`."""
    pool(device).reset_peak()


def memory_snapshot(device: object = None) -> Snapshot:
    """Return every segment of a device's pool with its blocks.

    A full walk: not for hot paths. Errors are those of `pool`.
    """
    return pool(device).snapshot()


def pool(device: object = None) -> _core.Pool:
    """Return a device's pool, whose memory torch's tensors have; made if there is none. `device` as for `memory_stats`.

    `ValueError` for a device that is none of CUDA, `DeviceError` for one that is not there.
    """
    if device is None:
        return _core.process_pool(torch.cuda.current_device() if torch.cuda.is_initialized() else 0)
    if isinstance(device, int):
        return _core.process_pool(device)
    named = torch.device(device)
    if named.type != "cuda":
        raise ValueError(f"flagstone has pools of CUDA devices, not of {named}")
    index = named.index
    return _core.process_pool(torch.cuda.current_device() if index is None else index)
