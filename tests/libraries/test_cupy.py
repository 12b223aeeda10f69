"""CuPy's arrays come from the pool, on CuPy's current stream."""

import gc
import pickle

import numpy as np
import pytest
import simcuda

import flagstone
import flagstone.history

MIB = 1 << 20


@pytest.fixture
def streams(cupy):
    """Two streams that do not wait for each other, nor for the default stream."""
    return cupy.cuda.Stream(non_blocking=True), cupy.cuda.Stream(non_blocking=True)


def pinned(cupy, value, count=1000):
    """An array of pinned memory: the host does not wait for a copy from it."""
    array = np.frombuffer(cupy.cuda.alloc_pinned_memory(count), np.uint8, count)
    array[:] = value
    return array


def test_arrays_come_from_the_pool_and_go_back(cupy, pool, live):
    taken = simcuda.counts().get("cudaMalloc", 0)
    array = cupy.empty((256, 1000), dtype=np.float32)
    assert live() == 1
    assert pool.stats().requested_bytes >= array.nbytes
    view = array[10:20]
    del array
    assert live() == 1, "a view holds the memory"
    del view
    assert live() == 0
    assert simcuda.counts().get("cudaMalloc", 0) == taken, "CuPy takes no memory of its own"


def test_data_goes_to_the_device_and_back(cupy, live):
    host = np.arange(300_000, dtype=np.int32)
    array = cupy.asarray(host)
    twice = cupy.empty_like(array)
    twice.data.copy_from_device(array.data, array.nbytes)
    assert (cupy.asnumpy(twice) == host).all()
    assert (cupy.zeros(1000, dtype=np.int64).get() == 0).all()
    assert live() == 2


def test_an_empty_array_is_no_block_that_stays(cupy, live):
    array = cupy.empty(0)
    assert array.get().size == 0
    del array
    assert live() == 0


def test_a_block_belongs_to_the_stream_that_is_current(cupy, streams, live):
    first, second = streams
    with first:
        array = cupy.empty(1000, dtype=np.uint8)
    address = array.data.ptr
    simcuda.hold(first.ptr)
    array.data.copy_from_host_async(pinned(cupy, 1).ctypes.data, 1000, first)
    del array
    assert live() == 0
    with second:
        elsewhere = cupy.empty(1000, dtype=np.uint8)
    assert elsewhere.data.ptr != address, "the copy is not done, and the second stream does not wait for it"
    with first:
        again = cupy.empty(1000, dtype=np.uint8)
    assert again.data.ptr == address, "stream order keeps the copy and the new use apart"
    simcuda.resume(first.ptr)
    first.synchronize()


def test_an_array_outlives_its_stream(cupy, live):
    stream = cupy.cuda.Stream(non_blocking=True)
    with stream:
        array = cupy.empty(1000, dtype=np.uint8)
    array.data.memset_async(7, 1000, stream)
    stream.synchronize()
    del stream
    gc.collect()
    assert (array.get() == 7).all()
    del array
    assert live() == 0


def test_a_use_on_another_stream_can_be_recorded(cupy, pool, streams, live):
    first, second = streams
    with first:
        array = cupy.empty(1000, dtype=np.uint8)
    address = array.data.ptr
    simcuda.hold(second.ptr)
    array.data.memset_async(1, 1000, second)
    pool.record_stream(address, second)
    del array
    with first:
        assert cupy.empty(1000, dtype=np.uint8).data.ptr != address
    simcuda.resume(second.ptr)
    second.synchronize()
    assert live() == 0


def test_a_graph_keeps_its_memory(cupy, live):
    stream = cupy.cuda.Stream(non_blocking=True)
    with stream:
        stream.begin_capture()
        array = cupy.empty(MIB, dtype=np.uint8)
        array.data.memset_async(3, MIB, stream)
        graph = stream.end_capture()
        graph.launch(stream)
    stream.synchronize()
    assert (array.get() == 3).all()
    address = array.data.ptr
    del array
    assert live() == 0
    with stream:
        other = cupy.empty(MIB, dtype=np.uint8)
    assert not address <= other.data.ptr < address + MIB, "the graph can be launched again"


def test_out_of_memory_is_a_memory_error_with_numbers(cupy, live):
    with pytest.raises(flagstone.OutOfMemoryError) as caught:
        cupy.empty(simcuda.GIB << 7, dtype=np.uint8)
    assert isinstance(caught.value, MemoryError)
    assert caught.value.requested >= simcuda.GIB << 7
    assert live() == 0
    assert cupy.zeros(10).get().sum() == 0, "and nothing else is harmed"


def test_for_one_block_of_code(cupy, live):
    import flagstone.cupy

    cupy.cuda.set_allocator(None)
    try:
        plain = cupy.empty(1000)
        assert live() == 0
        with cupy.cuda.using_allocator(flagstone.cupy.allocator):
            array = cupy.empty(1000)
        assert live() == 1
        assert array.data.ptr != plain.data.ptr
    finally:
        flagstone.cupy.install()


def test_hooks_of_cupy_see_its_own_pools_only(cupy, pool):
    class Hook(cupy.cuda.MemoryHook):
        name = "counts"
        calls = 0

        def malloc_preprocess(self, **_):
            self.calls += 1

    pool.start_history(stacks=True)
    with Hook() as hook:
        array = cupy.empty(1234, dtype=np.uint8)
    events = pool.history().events
    pool.stop_history()
    assert hook.calls == 0
    found = [event for event in events if event.address == array.data.ptr]
    assert [(event.action, event.requested) for event in found] == [("alloc", 1234)]


def test_pickled_arrays_come_back_in_the_pool(cupy, live):
    array = cupy.asarray(np.arange(100))
    copy = pickle.loads(pickle.dumps(array))
    assert (copy.get() == np.arange(100)).all()
    assert live() == 2
