"""Buffers in the hands of other libraries: the array interfaces, DLPack, and streams of other libraries."""

import ctypes
import gc
import threading

import dlpack
import pytest

import flagstone

MIB = 1 << 20


@pytest.mark.parametrize("nbytes", [1, 1000, 3 * MIB])
def test_the_cuda_array_interface(pool, nbytes):
    buffer = pool.alloc(nbytes)
    assert buffer.__cuda_array_interface__ == {
        "shape": (nbytes,),
        "typestr": "|u1",
        "data": (buffer.ptr, False),
        "strides": None,
        "version": 3,
        "stream": 1,
    }
    assert pool.alloc(5, stream=2).__cuda_array_interface__["stream"] == 2


def test_an_empty_array_has_no_address(pool, pinned):
    assert pool.alloc(0).__cuda_array_interface__["data"] == (0, False)
    assert pinned.alloc(0).__array_interface__["data"] == (0, False)
    structure = dlpack.take(pool.alloc(0).__dlpack__())
    assert (structure.tensor.data, structure.tensor.shape[0]) == (None, 0)
    dlpack.delete(structure)


def test_each_kind_of_memory_has_its_own_array_interface(pool, pinned):
    assert not hasattr(pool.alloc(8), "__array_interface__")
    assert not hasattr(pinned.alloc(8), "__cuda_array_interface__")


def test_pinned_memory_is_an_array_of_the_host(pinned):
    buffer = pinned.alloc(4096)
    interface = buffer.__array_interface__
    assert interface == {
        "shape": (4096,),
        "typestr": "|u1",
        "data": (buffer.ptr, False),
        "strides": None,
        "version": 3,
    }
    ctypes.memset(buffer.ptr, 7, 4096)
    assert ctypes.string_at(buffer.ptr, 4096) == b"\7" * 4096


def test_numpy_sees_pinned_memory_without_a_copy(pinned):
    numpy = pytest.importorskip("numpy")
    buffer = pinned.alloc(4096)
    array, exported = numpy.asarray(buffer), numpy.from_dlpack(buffer)
    assert array.ctypes.data == exported.ctypes.data == buffer.ptr
    array[:] = 9
    assert (exported == 9).all()
    address = buffer.ptr
    del buffer, array
    gc.collect()
    assert pinned.stats().live_blocks == 1, "the array made through DLPack still holds the memory"
    assert exported.ctypes.data == address
    del exported
    assert pinned.stats().live_blocks == 0


@pytest.mark.parametrize(
    ("asked", "layout"),
    [(None, dlpack.Managed), ((0, 8), dlpack.Managed), ((1, 0), dlpack.Versioned), ((2, 3), dlpack.Versioned)],
)
@pytest.mark.parametrize("kind", [dlpack.CUDA, dlpack.CPU])
def test_dlpack_structures(pool, pinned, asked, layout, kind):
    buffer = (pool if kind == dlpack.CUDA else pinned).alloc(1000)
    assert buffer.__dlpack_device__() == (kind, 0)
    structure = dlpack.take(buffer.__dlpack__(max_version=asked))
    assert type(structure) is layout
    tensor = structure.tensor
    assert (tensor.data, tensor.byte_offset) == (buffer.ptr, 0)
    assert (tensor.device.kind, tensor.device.ordinal) == (kind, 0)
    assert (tensor.ndim, tensor.shape[0], tensor.strides[0]) == (1, 1000, 1)
    assert (tensor.dtype.code, tensor.dtype.bits, tensor.dtype.lanes) == (1, 8, 1)
    if layout is dlpack.Versioned:
        assert (structure.major, structure.minor, structure.flags) == (1, 0, 0)
    dlpack.delete(structure)


def test_dlpack_holds_the_memory_until_the_deleter(pool):
    buffer = pool.alloc(1000)
    structure = dlpack.take(buffer.__dlpack__())
    with pytest.raises(BufferError, match="1 times"):
        buffer.free()
    del buffer
    gc.collect()
    assert pool.stats().live_blocks == 1
    # A consumer deletes in any thread.
    thread = threading.Thread(target=dlpack.delete, args=[structure])
    thread.start()
    thread.join()
    assert pool.stats().live_blocks == 0


def test_a_capsule_that_nobody_takes_lets_go(pool):
    buffer = pool.alloc(1000)
    capsules = [buffer.__dlpack__(), buffer.__dlpack__(max_version=(1, 1))]
    with pytest.raises(BufferError, match="2 times"):
        buffer.free()
    capsules.clear()
    buffer.free()
    assert pool.stats().live_blocks == 0


def test_dlpack_refuses_what_it_cannot_do(pool):
    buffer = pool.alloc(1000)
    for wrong in ({"copy": True}, {"dl_device": (1, 0)}, {"dl_device": (2, 5)}):
        with pytest.raises(BufferError):
            buffer.__dlpack__(**wrong)
    for stream in (0, -2, -(2**63)):
        with pytest.raises(ValueError, match=str(stream)):
            buffer.__dlpack__(stream=stream)
    with pytest.raises(flagstone.StreamError):
        buffer.__dlpack__(stream=0xDEAD0)
    buffer.free()


def test_dlpack_takes_what_consumers_pass(pool):
    buffer = pool.alloc(1000)
    for stream in (None, -1, 1, 2):
        buffer.__dlpack__(stream=stream, dl_device=(2, 0), copy=False)
    buffer.free()


class Cuda:
    def __cuda_stream__(self):
        return (0, 2)


class Torch:
    cuda_stream = 2


class Cupy:
    ptr = 2


@pytest.mark.parametrize("stream", [2, Cuda(), Torch(), Cupy()])
def test_streams_of_other_libraries(pool, stream):
    buffer = pool.alloc(100, stream)
    assert buffer.stream == 2
    pool.record_stream(buffer, stream)
    pool.record_stream(buffer.ptr, stream)
    buffer.free(stream=stream)
    assert pool.stats().live_blocks == 0
