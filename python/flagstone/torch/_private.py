"""Memory of its own for a part of a program, with flagstone as torch's allocator."""

import weakref
from typing import Any

import torch

from flagstone import _core
from flagstone.errors import FlagstoneError
from flagstone.torch import _history, _swap


class NotServedError(FlagstoneError, RuntimeError):
    """A function of torch that goes through its own allocator. Where torch raises `RuntimeError`, this is one too."""


def not_served(what: str) -> NotServedError:
    """Return the error for what only torch's own allocator can do."""
    return NotServedError(
        f"{what}: not with flagstone as torch's allocator, it needs torch's own; docs/torch.md has what works"
    )


class PrivatePool:
    """What `torch.cuda.use_mem_pool(pool)` allocates from in its thread; graphs can be captured into it, too.

    Its memory is given to nothing else, and stays with it while the object lives. After `install()` it is what
    `torch.cuda.MemPool()` makes; without it, use `flagstone.torch.MemPool`.
    """

    def __init__(self) -> None:
        """Make the pool; `FlagstoneError` where flagstone is not torch's allocator."""
        if not _swap.is_installed():
            raise FlagstoneError("flagstone is not torch's allocator in this process: use flagstone.torch.MemPool")
        self._id: tuple[int, int] = torch.cuda.graph_pool_handle()
        _core.hold_private_pool(self._id)
        # Not at exit: tensors in it may live longer than the interpreter.
        weakref.finalize(self, _core.release_private_pool, self._id).atexit = False

    @property
    def id(self) -> tuple[int, int]:
        """The pool's name, as torch's functions take it."""
        return self._id

    def snapshot(self, include_traces: bool = True) -> list[dict[str, Any]]:
        """Return the pool's segments on all devices, as `torch.cuda.memory_snapshot` has them."""
        return _history.segments(self._id)


class MemPool(PrivatePool):
    """What takes the place of `torch.cuda.MemPool`: the same without the options that are for torch's own allocator."""

    def __init__(self, allocator: object = None, use_on_oom: bool = False, no_split: bool = False) -> None:
        """Make the pool; `NotServedError` for options."""
        options = {"allocator": allocator, "use_on_oom": use_on_oom, "no_split": no_split}
        for name, value in options.items():
            if value:
                raise not_served(f"torch.cuda.MemPool({name}=...)")
        super().__init__()
