"""Memory of other libraries: their arrays as bytes, by DLPack or by the CUDA array interface."""

from __future__ import annotations

import re
from functools import cache
from math import prod
from typing import TYPE_CHECKING, Any

from flagstone import _core

if TYPE_CHECKING:
    from collections.abc import Sequence

    from flagstone._core import BasePool, BufferView

_HOST = {1, 3}
"""Kinds of DLPack devices that have no streams: the host's memory, and what of it is pinned."""

_TYPESTR = re.compile(r"[<>|=]?([biufcmMSUV])(\d+)(?:\[.*\])?")
"""Type strings of whole bytes. There are also bits, and objects of Python."""


def from_dlpack(array: Any, *, stream: Any = None) -> BufferView:
    """Return the memory of an array that has `__dlpack__`, on a device or on the host, without a copy.

    `stream` is where the memory will be used: None for the legacy default stream, a handle, or a stream of another
    library. The array's library makes it wait for what it did to the memory so far; with -1 nobody waits. `BufferError`
    for an array that does not lie in one piece in C order, and where its library does not give it.
    """
    if not hasattr(array, "__dlpack__"):
        raise TypeError(f"an array with __dlpack__ is needed, not {type(array).__name__}")
    kind, _ = array.__dlpack_device__()
    if kind in _HOST:
        return _core.view_capsule(_capsule(array, None), None)
    consumer = _consumer(stream)
    # 0 could be either of two streams in DLPack: the legacy one is 1 there.
    told = -1 if consumer is None else consumer or 1
    return _core.view_capsule(_capsule(array, told), consumer)


def as_buffer(array: Any, *, stream: Any = None, pool: BasePool | None = None) -> BufferView:
    """Return the memory of an array that has `__dlpack__` or `__cuda_array_interface__`, without a copy.

    `stream` is where the memory will be used, as for `from_dlpack`. An array that has the array interface alone
    (Numba's) names its own stream, which is waited for here, and not its device: that is `pool`'s, or what the array's
    attribute `device` says. `BufferError` for an array on another device than `pool`'s.
    """
    if hasattr(array, "__dlpack__"):
        view = from_dlpack(array, stream=stream)
        if pool is not None:
            _check_device(view.device, pool)
        return view
    if not hasattr(array, "__cuda_array_interface__"):
        name = type(array).__name__
        raise TypeError(f"an array with __dlpack__ or __cuda_array_interface__ is needed, not {name}")
    return _from_interface(array, _consumer(stream), pool)


def _consumer(stream: Any) -> int | None:
    """Return the handle; None for -1, with which nothing is waited for."""
    if isinstance(stream, int) and stream == -1:
        return None
    return _core.stream_handle(stream)


def _capsule(array: Any, stream: int | None) -> Any:
    try:
        return array.__dlpack__(stream=stream, max_version=(1, 0))
    except TypeError:
        # Libraries from before DLPack 1.0 do not know of versions.
        return array.__dlpack__(stream=stream)


def _from_interface(array: Any, consumer: int | None, pool: BasePool | None) -> BufferView:
    interface: dict[str, Any] = array.__cuda_array_interface__
    version = interface["version"]
    if version > 3:
        raise BufferError(
            f"the array has version {version} of the CUDA array interface, and versions up to 3 are known"
        )
    if interface.get("mask") is not None:
        raise BufferError("the array has a mask, which a buffer has not")
    address, readonly = interface["data"]
    shape = interface["shape"]
    itemsize = _itemsize(interface["typestr"])
    _check_contiguous(shape, interface.get("strides"), itemsize)
    device = _device(array, pool)
    producer = interface.get("stream")
    if producer == 0:
        raise ValueError(
            "the array names stream 0, which is ambiguous: 1 is the legacy default stream, 2 each thread's"
        )
    if producer is not None and consumer is not None:
        _core.order_streams(pool or _core.find_process_pool(device) or _pool(device), producer, consumer)
    return _core.view_memory(array, address or 0, itemsize * prod(shape), device, bool(readonly), consumer)


def _itemsize(typestr: str) -> int:
    """Return the bytes of an element."""
    found = _TYPESTR.fullmatch(typestr)
    if not found:
        raise BufferError(f"the array has elements of type {typestr!r}, which are not whole bytes")
    kind, size = found.groups()
    return int(size) * (4 if kind == "U" else 1)


def _check_contiguous(shape: Sequence[int], strides: Sequence[int] | None, itemsize: int) -> None:
    if strides is None or 0 in shape:
        return
    expected = itemsize
    for length, stride in zip(reversed(shape), reversed(strides), strict=True):
        if length != 1 and stride != expected:
            what = f"an array of shape {list(shape)} with strides of {list(strides)} bytes"
            raise BufferError(f"{what} does not lie in one piece in C order; copy it to one that does")
        expected *= length


def _device(array: Any, pool: BasePool | None) -> int:
    """Return the ordinal that an array says, as a number or in CuPy's or torch's object; or the pool's."""
    device = getattr(array, "device", None)
    for value in (device, getattr(device, "id", None), getattr(device, "index", None)):
        if isinstance(value, int):
            if pool is not None:
                _check_device(value, pool)
            return value
    if pool is None:
        raise TypeError(f"{type(array).__name__} does not say which device it is on; pass pool=, a pool of that device")
    return pool.device


def _check_device(device: int | None, pool: BasePool) -> None:
    if device != pool.device:
        place = "the host" if device is None else f"device {device}"
        raise BufferError(f"the array is on {place}, and the pool on device {pool.device}; copy it there first")


@cache
def _pool(device: int) -> BasePool:
    """Return a pool by which streams of a device are ordered where there is none; it holds no memory."""
    return _core.Pool(device, backend="cuda", reserve=0)
