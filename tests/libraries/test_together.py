"""Memory that goes from flagstone to one library and from there to another, without a copy."""

import gc

import numpy as np
import pytest
import simcuda

import flagstone


def test_cupy_takes_a_buffer_by_the_array_interface(cupy, pool, live):
    buffer = pool.alloc(4096)
    array = cupy.asarray(buffer)
    assert (array.data.ptr, array.dtype, array.shape) == (buffer.ptr, np.uint8, (4096,))
    array.data.memset(5, 4096)
    del buffer
    assert live() == 1, "the array holds the buffer"
    assert (array.get() == 5).all()
    del array
    assert live() == 0


def test_cupy_takes_a_buffer_by_dlpack(cupy, pool, live):
    buffer = pool.alloc(4096)
    array = cupy.from_dlpack(buffer)
    assert array.data.ptr == buffer.ptr
    with pytest.raises(BufferError, match="1 times"):
        buffer.free()
    del array
    gc.collect()
    buffer.free()
    assert live() == 0


@pytest.mark.parametrize("way", ["asarray", "from_dlpack"])
def test_the_consumers_stream_waits_for_the_buffers(cupy, pool, way):
    own, other = (cupy.cuda.Stream(non_blocking=True) for _ in range(2))
    buffer = pool.alloc(1000, own)
    simcuda.hold(own.ptr)
    cupy.cuda.runtime.memsetAsync(buffer.ptr, 9, 1000, own.ptr)
    simcuda.resume(own.ptr)
    with other:
        array = getattr(cupy, way)(buffer)
        assert (array.get() == 9).all()


def test_numba_takes_a_buffer(numba_cuda, pool, live):
    buffer = pool.alloc(4096)
    array = numba_cuda.as_cuda_array(buffer)
    assert array.device_ctypes_pointer.value == buffer.ptr
    array.copy_to_device(np.full(4096, 6, np.uint8))
    del buffer
    assert live() == 1
    assert (array.copy_to_host() == 6).all()
    del array
    gc.collect()
    assert live() == 0


def test_cuda_core_views_a_buffer(device, pool):
    from cuda.core.utils import StridedMemoryView

    buffer = pool.alloc(4096)
    for view in (
        StridedMemoryView.from_cuda_array_interface(buffer, stream_ptr=-1),
        StridedMemoryView.from_dlpack(buffer, stream_ptr=-1),
    ):
        assert (view.ptr, view.shape, view.device_id, view.is_device_accessible) == (buffer.ptr, (4096,), 0, True)
    del view
    gc.collect()
    buffer.free()


def test_from_cupy_to_numba_and_back(cupy, numba_cuda, live):
    array = cupy.asarray(np.arange(1000, dtype=np.float32))
    same = numba_cuda.as_cuda_array(array)
    assert same.device_ctypes_pointer.value == array.data.ptr
    back = cupy.asarray(same)
    del array, same
    assert live() == 1, "the last array holds the first one's memory"
    assert (back.get() == np.arange(1000)).all()
    del back
    gc.collect()
    assert live() == 0


def test_from_cuda_core_to_cupy(cupy, device):
    own = device.memory_resource.pool
    before = own.stats().live_blocks
    buffer = device.allocate(4096, stream=device.default_stream)
    array = cupy.from_dlpack(buffer).view(np.uint8)
    assert array.data.ptr == int(buffer.handle)
    array.data.memset(4, 4096)
    del buffer
    gc.collect()
    assert own.stats().live_blocks == before + 1
    assert (array.get() == 4).all()
    del array
    gc.collect()
    assert own.stats().live_blocks == before


def test_pinned_memory_is_copied_to_the_device_without_a_wait(cupy, pool):
    host_pool = flagstone.PinnedPool(0, backend="cuda")
    host = host_pool.alloc(1000)
    np.asarray(host)[:] = 8
    stream = cupy.cuda.Stream(non_blocking=True)
    with stream:
        array = cupy.empty(1000, dtype=np.uint8)
    simcuda.hold(stream.ptr)
    array.data.copy_from_host_async(host.ptr, 1000, stream)
    host.record(stream)
    address = host.ptr
    host.free()
    again = host_pool.alloc(1000)
    assert again.ptr != address, "the copy is not done"
    simcuda.resume(stream.ptr)
    stream.synchronize()
    assert (array.get() == 8).all()


def test_they_share_the_pool_of_the_process(cupy, numba_cuda, live):
    arrays = [cupy.empty(1000), numba_cuda.device_array(1000)]
    assert live() == len(arrays)


def test_an_array_of_cupy_s_comes_back_as_a_view(cupy, live):
    array = cupy.asarray(np.arange(1000, dtype=np.float32))
    view = flagstone.as_buffer(array)
    assert (view.ptr, view.nbytes, view.device, view.readonly) == (array.data.ptr, 4000, 0, False)
    with pytest.raises(BufferError, match="one piece"):
        flagstone.as_buffer(array[::2])
    del array
    gc.collect()
    assert live() == 1, "the view holds the array's memory"
    again = cupy.asarray(view).view(np.float32)
    assert (again.get() == np.arange(1000)).all()
    del again, view
    gc.collect()
    assert live() == 0


def test_an_array_of_numba_s_is_of_the_pool_s_device(numba_cuda, pool, live):
    array = numba_cuda.to_device(np.full(100, 3, np.int64))
    view = flagstone.as_buffer(array, pool=pool)
    assert (view.ptr, view.nbytes, view.device) == (array.device_ctypes_pointer.value, 800, 0)
    del array
    gc.collect()
    assert live() == 1
    del view
    gc.collect()
    assert live() == 0


def test_a_buffer_of_cuda_core_s_comes_back_as_a_view(device):
    buffer = device.allocate(4096, stream=device.default_stream)
    view = flagstone.as_buffer(buffer)
    assert (view.ptr, view.nbytes, view.device) == (int(buffer.handle), 4096, 0)


@pytest.mark.parametrize("only", ["__dlpack__", "__cuda_array_interface__"])
def test_the_stream_of_a_view_waits_for_the_array_s(cupy, only):
    class Array:
        device = 0

        def __init__(self, array):
            self._array = array

        def __getattr__(self, name):
            if name in (only, "__dlpack_device__"):
                return getattr(self._array, name)
            raise AttributeError(name)

    own, other = (cupy.cuda.Stream(non_blocking=True) for _ in range(2))
    with own:
        array = cupy.empty(1000, dtype=np.uint8)
        simcuda.hold(own.ptr)
        array.data.memset_async(9, 1000)
        simcuda.resume(own.ptr)
        view = flagstone.as_buffer(Array(array), stream=other)
    assert view.stream == other.ptr
    host = np.zeros(1000, np.uint8)
    cupy.cuda.runtime.memcpyAsync(host.ctypes.data, view.ptr, 1000, cupy.cuda.runtime.memcpyDeviceToHost, other.ptr)
    other.synchronize()
    assert (host == 9).all()
