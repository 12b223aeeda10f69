"""A simulated device for the tests of code that uses pools: no GPU is needed.

A block is not given out again while a stream that was recorded for it still reads it:

    import flagstone
    from flagstone.testing import SimulatedDevice

    device = SimulatedDevice(capacity=1 << 30)
    pool = flagstone.Pool(device)
    copy = device.create_stream()
    buffer = pool.alloc(1 << 20)
    device.hold(copy)                        # what comes on this stream from now on is not done
    device.launch(copy, reads=[buffer])
    pool.record_stream(buffer, copy)
    address = buffer.ptr
    buffer.free()
    assert pool.alloc(1 << 20).ptr != address    # still being read
    device.release(copy)
    assert device.violations() == []
"""

from flagstone._core import SimulatedDevice

__all__ = ["SimulatedDevice"]
