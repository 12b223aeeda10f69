"""cuda.core's buffers come from a pool, in the order of the streams that they are allocated and closed on."""

import gc

import numpy as np
import pytest
import simcuda
from cuda.bindings import driver

import flagstone
from flagstone.cuda_core import MemoryResource

MIB = 1 << 20


@pytest.fixture
def resource(device):
    return device.memory_resource


@pytest.fixture
def own(resource):
    """The resource's own pool."""
    return resource.pool


@pytest.fixture
def streams(device):
    return device.create_stream(), device.create_stream()


def number(stream) -> int:
    return int(stream.handle)


@pytest.mark.parametrize("pool", [flagstone.PinnedPool(backend="sim"), 0])
def test_a_resource_is_over_device_memory(pool):
    with pytest.raises(TypeError, match=r"over a flagstone\.Pool"):
        MemoryResource(pool)


def test_buffers_come_from_the_pool_and_go_back(device, own, streams):
    before = own.stats().live_blocks
    buffer = device.allocate(MIB, stream=streams[0])
    assert (buffer.size, buffer.device_id, buffer.memory_resource is device.memory_resource) == (MIB, 0, True)
    assert (buffer.is_device_accessible, buffer.is_host_accessible, buffer.is_managed) == (True, False, False)
    assert own.stats().live_blocks == before + 1
    buffer.close()
    assert own.stats().live_blocks == before
    with device.allocate(MIB, stream=streams[0]):
        assert own.stats().live_blocks == before + 1
    assert own.stats().live_blocks == before
    buffer = device.allocate(MIB, stream=streams[0])
    del buffer
    gc.collect()
    assert own.stats().live_blocks == before


def test_data_goes_from_buffer_to_buffer(device, streams):
    stream = streams[0]
    source, target = (device.allocate(4096, stream=stream) for _ in range(2))
    source.fill(b"\7", stream=stream)
    target.copy_from(source, stream=stream)
    stream.sync()
    host = flagstone.PinnedPool(0, backend="cuda").alloc(4096)
    (status,) = driver.cuMemcpyDtoHAsync(host.ptr, int(target.handle), 4096, stream.handle)
    assert status == driver.CUresult.CUDA_SUCCESS
    stream.sync()
    assert (np.asarray(host) == 7).all()


def test_closed_on_its_own_stream_it_is_given_out_there_at_once(device, streams):
    first, second = streams
    buffer = device.allocate(1000, stream=first)
    address = int(buffer.handle)
    simcuda.hold(number(first))
    buffer.fill(b"\1", stream=first)
    buffer.close()
    elsewhere = device.allocate(1000, stream=second)
    assert int(elsewhere.handle) != address
    assert int(device.allocate(1000, stream=first).handle) == address
    simcuda.resume(number(first))


def test_closed_on_another_stream_it_waits_for_that_one(device, streams):
    first, second = streams
    buffer = device.allocate(1000, stream=first)
    address = int(buffer.handle)
    simcuda.hold(number(second))
    buffer.fill(b"\1", stream=second)
    buffer.close(second)
    assert int(device.allocate(1000, stream=first).handle) != address
    simcuda.resume(number(second))
    second.sync()


def test_the_stream_of_the_free_can_be_set_beforehand(device, own, streams):
    first, second = streams
    buffer = device.allocate(1000, stream=first)
    address = int(buffer.handle)
    simcuda.hold(number(second))
    buffer.fill(b"\1", stream=second)
    buffer.set_deallocation_stream(second)
    del buffer
    gc.collect()
    assert own.stats().pending_blocks == 1
    assert int(device.allocate(1000, stream=first).handle) != address
    simcuda.resume(number(second))
    second.sync()


def test_a_buffer_outlives_its_stream(device, own):
    before = own.stats().live_blocks
    stream = device.create_stream()
    buffer = device.allocate(1000, stream=stream)
    stream.close()
    buffer.close()
    assert own.stats().live_blocks == before


def test_errors_are_the_pools_own(device, own, streams):
    before = own.stats()
    with pytest.raises(flagstone.OutOfMemoryError) as caught:
        device.allocate(simcuda.GIB << 7, stream=streams[0])
    assert caught.value.requested == simcuda.GIB << 7
    assert own.stats().live_blocks == before.live_blocks


def test_allocate_needs_a_stream(device):
    with pytest.raises(TypeError, match="stream"):
        device.allocate(1000)


def test_a_block_without_a_buffer_goes_back(resource, own, streams, monkeypatch):
    from cuda.core import Buffer

    import flagstone.cuda_core

    class Refusing(Buffer):
        @classmethod
        def from_handle(cls, *_, **__):
            raise RuntimeError("no buffer")

    before = own.stats().live_blocks
    monkeypatch.setattr(flagstone.cuda_core.cuda.core, "Buffer", Refusing)
    with pytest.raises(RuntimeError, match="no buffer"):
        resource.allocate(1000, stream=streams[0])
    assert own.stats().live_blocks == before
