"""Numba's device arrays come from the pool, and go back without waiting for the device."""

import numpy as np
import pytest
import simcuda

import flagstone


@pytest.fixture
def streams(numba_cuda):
    """Two streams of Numba's, which do not wait for each other."""
    return numba_cuda.stream(), numba_cuda.stream()


def address(array) -> int:
    return array.device_ctypes_pointer.value


def pinned(cuda, value, count=1000):
    array = cuda.pinned_array(count, dtype=np.uint8)
    array[:] = value
    return array


def test_arrays_come_from_the_pool_and_go_back(numba_cuda, pool, live):
    array = numba_cuda.device_array((256, 1000), dtype=np.float32)
    assert live() == 1
    assert pool.stats().requested_bytes >= array.nbytes
    view = array[10:20]
    del array
    assert live() == 1, "a view holds the memory"
    del view
    assert live() == 0
    assert "cuMemAlloc_v2" not in simcuda.counts(), "Numba takes no memory of its own"


def test_data_goes_to_the_device_and_back(numba_cuda, live):
    host = np.arange(300_000, dtype=np.int32)
    array = numba_cuda.to_device(host)
    twice = numba_cuda.device_array_like(array)
    twice.copy_to_device(array)
    assert (twice.copy_to_host() == host).all()
    assert (array[100:200].copy_to_host() == host[100:200]).all()
    assert live() == 2


def test_a_freed_block_waits_for_streams_that_numba_never_names(numba_cuda, streams, live):
    first, second = streams
    array = numba_cuda.device_array(1000, dtype=np.uint8)
    used = address(array)
    simcuda.hold(int(first.handle))
    array.copy_to_device(pinned(numba_cuda, 1), stream=first)
    del array
    assert live() == 0
    other = numba_cuda.device_array(1000, dtype=np.uint8)
    assert address(other) != used, "the first stream's copy is not done"
    other.copy_to_device(pinned(numba_cuda, 2), stream=second)
    simcuda.resume(int(first.handle))
    second.synchronize()
    assert (other.copy_to_host() == 2).all()


def test_a_block_is_given_out_again_once_everything_is_done(numba_cuda, pool):
    for _ in range(3):
        numba_cuda.device_array(100_000)
    before = pool.stats()
    for _ in range(100):
        array = numba_cuda.to_device(np.zeros(100_000))
        del array
    after = pool.stats()
    assert after.reserved_bytes == before.reserved_bytes
    assert after.synchronize_count == before.synchronize_count


def test_memory_info_counts_what_the_pool_holds_unused(numba_cuda, pool):
    context = numba_cuda.current_context()
    before = context.get_memory_info()
    array = numba_cuda.device_array(8 << 20, dtype=np.uint8)
    within = context.get_memory_info()
    assert before.total == within.total == simcuda.GIB * 16
    assert before.free - within.free == array.nbytes
    del array
    assert context.get_memory_info().free == before.free, "free and pending memory is the pool's to give"


def test_out_of_memory_is_a_memory_error_with_numbers(numba_cuda, live):
    with pytest.raises(flagstone.OutOfMemoryError) as caught:
        numba_cuda.device_array(simcuda.GIB << 7, dtype=np.uint8)
    assert isinstance(caught.value, MemoryError)
    assert caught.value.requested == simcuda.GIB << 7
    assert live() == 0


def test_by_an_environment_variable(child):
    ran = child(
        "from numba import cuda\n"
        "from flagstone import _core\n"
        "array = cuda.device_array(1000)\n"
        "assert type(cuda.current_context().memory_manager).__module__ == 'flagstone.numba'\n"
        "assert _core.process_pool().limit == 64 << 20\n"
        "assert _core.process_pool().stats().live_blocks == 1\n",
        env={**simcuda.environment(), "NUMBA_CUDA_MEMORY_MANAGER": "flagstone.numba", "FLAGSTONE_CONF": "limit:64MiB"},
    )
    assert ran.returncode == 0, ran.stderr


def test_a_reset_context_gives_its_memory_back(child):
    ran = child(
        "import flagstone.numba\n"
        "flagstone.numba.install()\n"
        "from numba import cuda\n"
        "from flagstone import _core\n"
        "array = cuda.device_array(1000)\n"
        "pool = _core.process_pool()\n"
        "assert pool.stats().live_blocks == 1\n"
        "cuda.current_context().reset()\n"
        "assert pool.stats().live_blocks == 0\n"
        "del array\n"
        "again = cuda.device_array(1000)\n"
        "assert pool.stats().live_blocks == 1\n",
        env=simcuda.environment(),
    )
    assert ran.returncode == 0, ran.stderr
