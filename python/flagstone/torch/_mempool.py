"""The other way in: torch's own allocator stays and takes its segments from flagstone's pools."""

from functools import cache

import torch

from flagstone import _core
from flagstone._process import configure
from flagstone.errors import FlagstoneError
from flagstone.torch._swap import is_installed, need_torch


@cache
def _allocator() -> torch._C._cuda_CUDAAllocator:
    """The allocator of all pools, for the process's life: older versions of torch hold no reference to it."""
    functions = _core.c_functions()
    return torch._C._cuda_customAllocator(functions["alloc"], functions["free"])


class MemPool(torch.cuda.MemPool):
    """A `torch.cuda.MemPool` whose segments come from flagstone's pools. torch's own allocator must be in use.

    Use it with `torch.cuda.use_mem_pool(pool)`. `use_on_oom` and `no_split` are torch's, where it has them; `settings`
    are as for `install`.
    """

    def __init__(self, *, use_on_oom: bool = False, no_split: bool = False, **settings: object) -> None:
        """Make the pool; `FlagstoneError` if this torch has no CUDA or is too old, or flagstone is its allocator."""
        need_torch()
        if is_installed():
            raise FlagstoneError(
                "flagstone is torch's allocator in this process already; use flagstone.torch.PrivatePool, or "
                "torch.cuda.MemPool()"
            )
        configure("cuda", settings)
        options = {"use_on_oom": use_on_oom, "no_split": no_split}
        super().__init__(_allocator(), **{name: value for name, value in options.items() if value})
