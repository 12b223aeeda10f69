"""The swap: torch allocates all CUDA memory of the process from flagstone's pools."""

import torch

from flagstone import _core
from flagstone._process import configure
from flagstone.errors import FlagstoneError

HOOKS = {
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

OLDEST = (2, 9)
"""The oldest torch that is supported: those before it have no memory functions of `torch.accelerator`."""

_installed = False


def install(*, patch: bool = True, **settings: object) -> None:
    """Make torch allocate all CUDA memory of this process from flagstone's pools.

    `settings` are the keyword arguments of `flagstone.Pool`, as `limit="20GiB"`. With `patch`, torch's own statistics
    (`torch.cuda.memory_allocated` and its like) answer from the pools; without, they raise. A second call with the same
    settings, or without any, does nothing. `ConfigError` if the settings are not valid or others are in force;
    `FlagstoneError` if this torch has no CUDA or is too old, CUDA is initialised already, or another allocator was
    installed.
    """
    global _installed
    need_torch()
    if not _installed and torch.cuda.is_initialized():
        raise FlagstoneError(
            "CUDA is initialised already in this process; call flagstone.torch.install() before the first CUDA tensor"
        )
    configure("cuda", settings)
    if _installed:
        return
    functions = _core.c_functions()
    allocator = torch._C._cuda_customAllocator(functions["torch_alloc"], functions["free"])
    for setter, function in HOOKS.items():
        getattr(allocator, setter)(functions[function])
    try:
        torch._C._cuda_changeCurrentAllocator(allocator)
    except RuntimeError as error:
        raise FlagstoneError(f"torch has another allocator already, and takes one in a process: {error}") from error
    _installed = True
    if patch:
        # What it replaces looks at this module.
        from flagstone.torch import _patch

        _patch.apply()


def is_installed() -> bool:
    """Whether torch allocates from flagstone's pools."""
    return _installed


def version() -> tuple[int, int]:
    """Return the first two numbers of torch's version."""
    major, minor = torch.__version__.split(".")[:2]
    return int(major), int(minor)


def need_torch() -> None:
    """Raise `FlagstoneError` where this torch has no CUDA or is too old."""
    if version() < OLDEST:
        raise FlagstoneError(
            f"torch {torch.__version__} is too old for flagstone; install {OLDEST[0]}.{OLDEST[1]} or newer"
        )
    if not hasattr(torch._C, "_cuda_customAllocator"):
        raise FlagstoneError(f"torch {torch.__version__} is a build without CUDA; install one with CUDA")
