"""Buffers: what they say, and when their memory goes back."""

import gc
import weakref

import pytest

import flagstone


@pytest.fixture(params=[flagstone.Pool, flagstone.PinnedPool])
def any_pool(request):
    return request.param(backend="sim")


def live(pool):
    return pool.stats().live_blocks


def test_what_a_buffer_says_about_itself(any_pool):
    buffer = any_pool.alloc(1000)
    assert (buffer.nbytes, buffer.device, buffer.stream, buffer.freed) == (1000, 0, 0, False)
    assert buffer.ptr % 512 == 0
    name = type(buffer).__name__
    assert repr(buffer) == f"<flagstone.{name} {buffer.ptr:#x}, 1000 bytes on device 0, stream 0x0>"
    buffer.free()
    assert buffer.freed
    assert repr(buffer) == f"<flagstone.{name} freed, 1000 bytes on device 0>"


def test_a_dropped_buffer_frees_itself(any_pool):
    buffer = any_pool.alloc(1000)
    assert live(any_pool) == 1
    del buffer
    assert live(any_pool) == 0


def test_a_buffer_in_a_cycle_frees_itself(any_pool):
    class Owner:
        pass

    owner = Owner()
    owner.itself, owner.buffer = owner, any_pool.alloc(1000)
    del owner
    gc.collect()
    assert live(any_pool) == 0


def test_with_frees_at_the_end(any_pool):
    with any_pool.alloc(1000) as buffer:
        assert live(any_pool) == 1
    assert buffer.freed
    assert live(any_pool) == 0


def test_with_frees_after_an_error(any_pool):
    with pytest.raises(ZeroDivisionError), any_pool.alloc(1000):
        1 / 0  # noqa: B018
    assert live(any_pool) == 0


def test_with_takes_a_buffer_that_was_freed_inside(any_pool):
    with any_pool.alloc(1000) as buffer:
        buffer.free()
    assert any_pool.stats().free_count == 1


def test_a_buffer_outlives_its_pool():
    buffer = flagstone.Pool(backend="sim").alloc(1000)
    gc.collect()
    assert buffer.ptr
    buffer.free()


def test_a_freed_buffer_has_no_address(any_pool):
    buffer = any_pool.alloc(1000)
    address = buffer.ptr
    buffer.free()
    for use in (lambda: buffer.ptr, buffer.__dlpack__, lambda: any_pool.record_stream(buffer, 0)):
        with pytest.raises(flagstone.InvalidPointerError) as caught:
            use()
        assert caught.value.address == address


def test_a_buffer_can_be_referenced_weakly(any_pool):
    buffer = any_pool.alloc(1)
    reference = weakref.ref(buffer)
    del buffer
    assert reference() is None


def test_buffers_are_not_made_or_pickled_by_hand(any_pool):
    import pickle

    with pytest.raises(TypeError):
        flagstone.Buffer()
    with pytest.raises(TypeError):
        pickle.dumps(any_pool.alloc(1))
