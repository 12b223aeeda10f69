"""Batches in pinned memory whose copies are recorded as they are made."""

import copy
import ctypes
import threading
from collections.abc import Iterator
from typing import Any

import torch
from torch.utils.data import get_worker_info

from flagstone._core import PinnedPool
from flagstone.errors import ForkError
from flagstone.torch._tree import map_tensors

_pools: dict[int, PinnedPool] = {}
_lock = threading.Lock()


def pinned_pool(device: object = None) -> PinnedPool:
    """Return the pool of pinned memory that `pin_memory` and `Prefetcher` use for a device, None for the current one.

    It takes what it needs, and a little ahead. A limit in `FLAGSTONE_CONF` is for devices, not for it.
    """
    index = device_index(device)
    # Only to make one takes the lock: threads that pin batches would meet there.
    pool = _pools.get(index)
    if pool is None:
        with _lock:
            if index not in _pools:
                _pools[index] = PinnedPool(index, backend="cuda")
            pool = _pools[index]
    return pool


def device_index(device: object) -> int:
    """Return the ordinal of a CUDA device in any form that torch takes."""
    index = device if device is None or isinstance(device, int) else torch.device(device).index
    return int(torch.cuda.current_device()) if index is None else index


def pin_memory(batch: Any, device: object = None) -> Any:
    """Return `batch` with its tensors in pinned memory of flagstone's pool, to be copied to `device` (None: the
    current one).

    Looks into mappings, lists, tuples, named tuples and dataclasses. Copies by `.to`, `.cuda`, `copy_` or any other
    function of torch are recorded, on whatever stream they run, so the memory may be dropped right after an
    asynchronous copy. Copies to other devices are waited for. In a worker of a `DataLoader`, in a forked child of a
    process that uses CUDA, and without CUDA the batch is returned as it is.

    Raises `OutOfMemoryError` when no memory can be pinned.
    """
    if get_worker_info() is not None or torch.cuda._is_in_bad_fork() or not torch.cuda.is_available():
        return batch
    pool = pinned_pool(device)
    try:
        return map_tensors(batch, lambda tensor: _pin(tensor, pool))
    except ForkError:
        return batch


class PinnedTensor(torch.Tensor):
    """A tensor in pinned memory of a pool. Its copies to and from devices record themselves; results of other
    operations are ordinary tensors, views are of this class."""

    _pool: PinnedPool

    @classmethod
    def __torch_function__(
        cls, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Call `func` as for ordinary tensors, and record what it may have given a stream to do."""
        options = kwargs or {}
        with torch._C.DisableTorchFunctionSubclass():
            result = func(*args, **options)
            # Copies return a tensor, several, or nothing; questions, which are most calls, something else.
            made = _made(result)
            if result is not None and not made:
                return result
            given = [*_tensors(args), *_tensors(options.values())]
            devices = {tensor.device for tensor in (*given, *made) if tensor.is_cuda}
            pinned = {tensor.untyped_storage().data_ptr(): tensor._pool for tensor in given if isinstance(tensor, cls)}
            for device in devices:
                for address, pool in pinned.items():
                    _record(pool, address, device)
            if func is torch.Tensor.as_subclass:
                return result
            return _wrap(result, pinned)

    def __reduce_ex__(self, protocol: Any) -> Any:
        """Pickle as an ordinary tensor."""
        return self._plain().__reduce_ex__(protocol)

    def __deepcopy__(self, memo: Any) -> torch.Tensor:
        """Copy into an ordinary tensor."""
        return copy.deepcopy(self._plain(), memo)

    def _plain(self) -> torch.Tensor:
        with torch._C.DisableTorchFunctionSubclass():
            return self.as_subclass(torch.Tensor)


def _tensors(values: Any) -> Iterator[torch.Tensor]:
    for value in values:
        if isinstance(value, torch.Tensor):
            yield value
        elif isinstance(value, (list, tuple)):
            yield from _tensors(value)


def _made(result: Any) -> list[torch.Tensor]:
    """Return the tensors of a result."""
    if isinstance(result, torch.Tensor):
        return [result]
    several = isinstance(result, (list, tuple)) and len(result) > 0 and isinstance(result[0], torch.Tensor)
    return list(_tensors(result)) if several else []


def _record(pool: PinnedPool, address: int, device: torch.device) -> None:
    """Note that the current stream of a device may copy from or to a block."""
    if device.index == pool.device:
        # The handle alone: the object around it takes as long as a small copy.
        pool.record(address, torch._C._cuda_getCurrentRawStream(device.index))
    else:
        # The pool's events are its own device's.
        torch.cuda.current_stream(device).synchronize()


def _wrap(result: Any, pinned: dict[int, PinnedPool]) -> Any:
    """Make the views of pinned tensors among the results `PinnedTensor` too."""
    if isinstance(result, torch.Tensor):
        if isinstance(result, PinnedTensor) or result.device.type != "cpu" or result.layout != torch.strided:
            return result
        pool = pinned.get(result.untyped_storage().data_ptr())
        return result if pool is None else _as_pinned(result, pool)
    if type(result) in (list, tuple):
        return type(result)(_wrap(value, pinned) for value in result)
    return result


def _as_pinned(tensor: torch.Tensor, pool: PinnedPool) -> PinnedTensor:
    pinned: PinnedTensor = tensor.as_subclass(PinnedTensor)
    pinned._pool = pool
    return pinned


def is_plain(tensor: torch.Tensor) -> bool:
    """Whether a tensor is its bytes in host memory and nothing else: they can be copied as they are."""
    return (
        type(tensor) is torch.Tensor
        and tensor.device.type == "cpu"
        and tensor.layout == torch.strided
        and not (tensor.is_quantized or tensor.is_nested or tensor.is_conj() or tensor.is_neg())
    )


def _pin(tensor: torch.Tensor, pool: PinnedPool) -> torch.Tensor:
    if isinstance(tensor, PinnedTensor) or tensor.device.type != "cpu":
        return tensor
    if not is_plain(tensor) or tensor.requires_grad or tensor.numel() == 0:
        return tensor.pin_memory()
    # The capsule, since torch asks a buffer several questions that have one answer here.
    flat = torch.from_dlpack(pool.alloc(tensor.nbytes).__dlpack__()).view(tensor.dtype)
    strides = tensor.stride() if tensor.is_contiguous() else torch.empty_like(tensor, device="meta").stride()
    pinned = flat.as_strided(tensor.shape, strides)
    if strides == tensor.stride():
        # In this thread: torch would use all cores, which the workers of a loader need.
        ctypes.memmove(pinned.data_ptr(), tensor.data_ptr(), tensor.nbytes)
    else:
        pinned.copy_(tensor)
    return _as_pinned(pinned, pool)
