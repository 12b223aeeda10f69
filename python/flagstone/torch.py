"""flagstone under PyTorch: every CUDA tensor of an unchanged script comes from the pool.

    import flagstone.torch

    flagstone.torch.install(limit="20GiB")  # before the first CUDA tensor

torch decides once in a process which allocator it uses, before CUDA is initialised. `MemPool` is the other way: torch's
own allocator stays, and takes its segments from the pool inside `torch.cuda.use_mem_pool`.
"""

import torch

from flagstone import _core
from flagstone._process import configure
from flagstone.errors import FlagstoneError
from flagstone.stats import Snapshot, Stats

__all__ = ["MemPool", "install", "is_installed", "memory_snapshot", "memory_stats", "reset_peak_memory_stats"]

_HOOKS = {
    "set_init_fn": "init",
    "set_reset_fn": "reset",
    "set_memory_fraction_fn": "memory_fraction",
    "set_base_alloc_fn": "base_alloc",
    "set_record_stream_fn": "record_stream",
    "set_begin_allocate_to_pool": "begin_allocate_to_pool",
    "set_end_allocate_to_pool_fn": "end_allocate_to_pool",
    "set_release_pool": "release_pool",
}
"""torch's setters, and the C functions that they get."""

_installed = False


def install(**settings: object) -> None:
    """Make torch allocate all CUDA memory of this process from flagstone's pools.

    `settings` are the keyword arguments of `flagstone.Pool`, as `limit="20GiB"`. A second call with the same settings
    does nothing. `ConfigError` if the settings are not valid or others are in force; `FlagstoneError` if this torch has
    no CUDA, CUDA is initialised already, or another allocator was installed.
    """
    global _installed
    _need_cuda_build()
    if not _installed and torch.cuda.is_initialized():
        raise FlagstoneError(
            "CUDA is initialised already in this process; call flagstone.torch.install() before the first CUDA tensor"
        )
    configure("cuda", settings)
    if _installed:
        return
    functions = _core.c_functions()
    allocator = torch._C._cuda_customAllocator(functions["torch_alloc"], functions["free"])
    for setter, function in _HOOKS.items():
        getattr(allocator, setter)(functions[function])
    try:
        torch._C._cuda_changeCurrentAllocator(allocator)
    except RuntimeError as error:
        raise FlagstoneError(f"torch has another allocator already, and takes one in a process: {error}") from error
    _installed = True


def is_installed() -> bool:
    """Whether torch allocates from flagstone's pools."""
    return _installed


def memory_stats(device: object = None) -> Stats:
    """Return the numbers of a device's pool; `device` is anything that torch takes, None for the current device."""
    return _pool(device).stats()


def reset_peak_memory_stats(device: object = None) -> None:
    """Start the peaks of a device's pool anew."""
    _pool(device).reset_peak()


def memory_snapshot(device: object = None) -> Snapshot:
    """Return every segment of a device's pool with its blocks."""
    return _pool(device).snapshot()


class MemPool(torch.cuda.MemPool):
    """A `torch.cuda.MemPool` whose segments come from flagstone's pools. torch's own allocator must be in use.

    Use it with `torch.cuda.use_mem_pool(pool)`. `use_on_oom` and `no_split` are torch's, where it has them; `settings`
    are as for `install`.
    """

    def __init__(self, *, use_on_oom: bool = False, no_split: bool = False, **settings: object) -> None:
        """Make the pool; `FlagstoneError` if this torch has no CUDA or flagstone is its allocator."""
        _need_cuda_build()
        if _installed:
            raise FlagstoneError("flagstone is torch's allocator in this process already: a MemPool has nothing to add")
        configure("cuda", settings)
        functions = _core.c_functions()
        # Kept: older versions of torch hold no reference of their own to a pool's allocator.
        self._allocator = torch._C._cuda_customAllocator(functions["alloc"], functions["free"])
        options = {"use_on_oom": use_on_oom, "no_split": no_split}
        super().__init__(self._allocator, **{name: value for name, value in options.items() if value})


def _need_cuda_build() -> None:
    if not hasattr(torch._C, "_cuda_customAllocator"):
        raise FlagstoneError(f"torch {torch.__version__} is a build without CUDA; install one with CUDA")


def _pool(device: object) -> _core.Pool:
    if device is None:
        return _core.process_pool(torch.cuda.current_device() if torch.cuda.is_initialized() else 0)
    if isinstance(device, int):
        return _core.process_pool(device)
    index = torch.device(device).index
    return _core.process_pool(torch.cuda.current_device() if index is None else index)
