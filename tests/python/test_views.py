"""Memory of other libraries as views: by DLPack, and by the CUDA array interface."""

import ctypes
import gc
import threading
import weakref

import dlpack
import pytest

import flagstone
from flagstone import _core
from flagstone.testing import SimulatedDevice

MIB = 1 << 20
ADDRESS = 0x7F0000000000


class Array:
    """What has the CUDA array interface and nothing else, as Numba's arrays."""

    def __init__(self, **entries):
        self.__cuda_array_interface__ = {
            "shape": (10, 4),
            "typestr": "<f4",
            "data": (ADDRESS, False),
            "version": 3,
            **entries,
        }


class OnDevice(Array):
    device = 3


@pytest.fixture
def device():
    return SimulatedDevice(capacity=1 << 30)


@pytest.fixture
def ours(device):
    return flagstone.Pool(device)


@pytest.mark.parametrize("version", [None, (1, 0), (1, 3)])
def test_a_structure_is_taken_whole_and_given_back_once(version):
    array = dlpack.Producer(
        ADDRESS, (3, 5), (5, 1), device=(dlpack.CUDA, 2), dtype=(2, 32, 1), offset=64, version=version
    )
    view = flagstone.from_dlpack(array)
    assert (view.ptr, view.nbytes, view.device, view.readonly) == (ADDRESS + 64, 60, 2, False)
    assert array.deleted == 0
    del view
    assert array.deleted == 1


@pytest.mark.parametrize("kind", [1, 3])
def test_memory_of_the_host_has_no_stream(kind):
    array = dlpack.Producer(ADDRESS, (8,), device=(kind, 0))
    view = flagstone.from_dlpack(array, stream=7)
    assert (view.device, view.stream, array.streams) == (None, None, [None])
    assert not hasattr(view, "__cuda_array_interface__")
    assert "8 bytes on the host" in repr(view)


@pytest.mark.parametrize(("stream", "told"), [(None, 1), (0, 1), (1, 1), (2, 2), (0xABC0, 0xABC0), (-1, -1)])
def test_the_producer_is_told_the_stream_as_the_protocol_says(stream, told):
    array = dlpack.Producer(ADDRESS, (8,), device=(dlpack.CUDA, 0))
    view = flagstone.from_dlpack(array, stream=stream)
    assert array.streams == [told]
    assert view.stream == (None if stream == -1 else stream or 0)
    exported = view.__cuda_array_interface__["stream"]
    assert exported == (None if told == -1 else told)


def test_a_view_may_be_dropped_in_any_thread():
    array = dlpack.Producer(ADDRESS, (8,))
    views = [flagstone.from_dlpack(array)]
    thread = threading.Thread(target=views.clear)
    thread.start()
    thread.join()
    assert array.deleted == 1


def test_read_only_memory_says_so():
    view = flagstone.from_dlpack(dlpack.Producer(ADDRESS, (8,), device=(dlpack.CUDA, 0), version=(1, 0), flags=1))
    assert view.readonly
    assert view.__cuda_array_interface__["data"] == (ADDRESS, True)
    assert "read-only" in repr(view)


@pytest.mark.parametrize(
    ("array", "message"),
    [
        (dlpack.Producer(ADDRESS, (3, 5), (1, 3)), r"shape \[3, 5\] with strides \[1, 3\] does not lie in one piece"),
        (dlpack.Producer(ADDRESS, (4,), (2,)), r"strides \[2\]"),
        (dlpack.Producer(ADDRESS, (4,), (-1,)), r"strides \[-1\]"),
        (
            dlpack.Producer(ADDRESS, (4,), device=(10, 1)),
            r"device \(10, 1\), which is neither a CUDA device",
        ),
        (dlpack.Producer(ADDRESS, (4,), dtype=(1, 4, 1)), "elements of 4 bits"),
        (dlpack.Producer(ADDRESS, (4, -1)), r"no shape \[4, -1\]"),
        (dlpack.Producer(ADDRESS, (1 << 62, 1 << 62)), "no shape"),
        (dlpack.Producer(ADDRESS, (1 << 62,), dtype=(2, 64, 1)), "no shape"),
        (dlpack.Producer(ADDRESS, None), "without a shape"),
        (dlpack.Producer(None, (4,)), "4 bytes is not at 0x0"),
        (dlpack.Producer(ADDRESS, (4,), offset=2**64 - 1), "is not at"),
        (dlpack.Producer(ADDRESS, (4,), version=(2, 0)), r"DLPack 2\.0, and versions up to 1"),
    ],
)
def test_what_cannot_be_a_buffer_is_left_to_its_producer(array, message):
    capsule = array.capsule()
    with pytest.raises(BufferError, match=message):
        _core.view_capsule(capsule, None)
    assert array.deleted == 0
    assert dlpack.take(capsule), "nobody has taken it"


@pytest.mark.parametrize(
    ("shape", "strides", "nbytes"),
    [((), None, 1), ((0, 5), (1, 1), 0), ((1, 4), (9, 1), 4), ((2, 1, 3), (3, 7, 1), 6)],
)
def test_shapes_that_lie_in_one_piece(shape, strides, nbytes):
    assert flagstone.from_dlpack(dlpack.Producer(ADDRESS, shape, strides)).nbytes == nbytes


def test_a_capsule_is_used_once():
    capsule = dlpack.Producer(ADDRESS, (4,)).capsule()
    _core.view_capsule(capsule, None)
    with pytest.raises(ValueError, match="used already"):
        _core.view_capsule(capsule, None)
    for wrong in (object(), None, 5):
        with pytest.raises(TypeError, match="capsule is needed, not"):
            _core.view_capsule(wrong, None)


def test_what_is_no_array_is_refused():
    with pytest.raises(TypeError, match="__dlpack__ is needed, not list"):
        flagstone.from_dlpack([1, 2])
    with pytest.raises(TypeError, match="__cuda_array_interface__ is needed, not list"):
        flagstone.as_buffer([1, 2])


def test_an_error_of_the_producer_is_the_caller_s():
    class Refuses(dlpack.Producer):
        def __dlpack__(self, **_):
            raise BufferError("it requires a gradient")

    with pytest.raises(BufferError, match="gradient"):
        flagstone.as_buffer(Refuses(ADDRESS, (4,)))


def test_numpy_lends_its_memory():
    numpy = pytest.importorskip("numpy")
    array = numpy.arange(100, dtype=numpy.float64)
    gone = weakref.ref(array)
    view = flagstone.from_dlpack(array)
    assert (view.ptr, view.nbytes, view.readonly) == (array.ctypes.data, 800, False)
    again = numpy.asarray(view)
    again[:8] = 255
    assert numpy.isnan(array[0])
    with pytest.raises(BufferError, match="one piece"):
        flagstone.from_dlpack(array[::2])
    del array
    gc.collect()
    assert gone() is not None
    del again, view
    gc.collect()
    assert gone() is None


def test_what_numpy_must_not_write_stays_read_only():
    numpy = pytest.importorskip("numpy", minversion="2.1")
    array = numpy.arange(100)
    array.flags.writeable = False
    view = flagstone.from_dlpack(array)
    assert view.readonly
    assert not numpy.asarray(view).flags.writeable


@pytest.mark.parametrize("way", [flagstone.from_dlpack, flagstone.as_buffer])
def test_a_buffer_comes_back_as_a_view(ours, way):
    buffer = ours.alloc(1000)
    view = way(buffer)
    assert (view.ptr, view.nbytes, view.device, view.stream) == (buffer.ptr, 1000, 0, 0)
    del buffer
    gc.collect()
    assert ours.stats().live_blocks == 1
    del view
    assert ours.stats().live_blocks == 0


def test_what_has_the_array_interface_alone_is_held(ours):
    array = Array(data=(ADDRESS, True), strides=(16, 4), stream=None)
    gone = weakref.ref(array)
    view = flagstone.as_buffer(array, pool=ours)
    assert (view.ptr, view.nbytes, view.device, view.readonly, view.stream) == (ADDRESS, 160, 0, True, 0)
    del array
    gc.collect()
    assert gone() is not None
    del view
    assert gone() is None


def test_a_view_and_its_owner_that_hold_each_other_go_together(ours):
    array = Array()
    array.view = flagstone.as_buffer(array, pool=ours)
    gone = weakref.ref(array)
    del array
    gc.collect()
    assert gone() is None


@pytest.mark.parametrize(
    ("typestr", "nbytes"), [("|u1", 40), (">c16", 640), ("<U5", 800), ("<M8[ns]", 320), ("|V3", 120), ("|S7", 280)]
)
def test_sizes_of_elements(ours, typestr, nbytes):
    assert flagstone.as_buffer(Array(typestr=typestr), pool=ours).nbytes == nbytes


@pytest.mark.parametrize(
    ("entries", "error", "message"),
    [
        ({"strides": (4, 40)}, BufferError, r"shape \[10, 4\] with strides of \[4, 40\] bytes"),
        ({"mask": Array()}, BufferError, "mask"),
        ({"typestr": "|O8"}, BufferError, r"'\|O8'"),
        ({"typestr": "|t4"}, BufferError, "not whole bytes"),
        ({"version": 4}, BufferError, "version 4"),
        ({"stream": 0}, ValueError, "stream 0"),
        ({"data": (-1, False)}, ValueError, "address"),
    ],
)
def test_array_interfaces_that_cannot_be_a_buffer(ours, entries, error, message):
    with pytest.raises(error, match=message):
        flagstone.as_buffer(Array(**entries), pool=ours)


def test_empty_arrays(ours):
    view = flagstone.as_buffer(Array(shape=(0, 4), data=(0, False), strides=(99, 99)), pool=ours)
    assert (view.nbytes, view.__cuda_array_interface__["data"]) == (0, (0, False))
    assert flagstone.from_dlpack(dlpack.Producer(None, (0,))).nbytes == 0


def test_the_device_of_an_array_is_what_it_says_or_the_pool_s(ours):
    assert flagstone.as_buffer(OnDevice()).device == 3

    class OnTorchs(Array):
        device = type("device", (), {"index": 4})()

    class OnCupys(Array):
        device = type("Device", (), {"id": 5})()

    assert [flagstone.as_buffer(array()).device for array in (OnTorchs, OnCupys)] == [4, 5]
    with pytest.raises(TypeError, match="Array does not say which device it is on; pass pool="):
        flagstone.as_buffer(Array())
    assert flagstone.as_buffer(Array(), pool=ours).device == 0


def test_an_array_on_another_device_than_the_pool_s_is_refused(ours):
    with pytest.raises(BufferError, match="on device 3, and the pool on device 0"):
        flagstone.as_buffer(dlpack.Producer(ADDRESS, (4,), device=(dlpack.CUDA, 3)), pool=ours)
    with pytest.raises(BufferError, match="on device 3, and the pool on device 0"):
        flagstone.as_buffer(OnDevice(), pool=ours)
    with pytest.raises(BufferError, match="on the host"):
        flagstone.as_buffer(dlpack.Producer(ADDRESS, (4,)), pool=ours)


@pytest.mark.parametrize("way", ["dlpack", "interface"])
@pytest.mark.parametrize("waits", [True, False])
def test_the_stream_that_uses_it_comes_after_the_one_that_made_it(device, ours, way, waits):
    made, used = device.create_stream(), device.create_stream()
    buffer = ours.alloc(1000, made)
    array = Array(shape=(250,), data=(buffer.ptr, False), stream=made) if way == "interface" else buffer
    device.hold(made)
    device.launch(made, writes=[buffer])
    view = flagstone.as_buffer(array, stream=used if waits else -1, pool=ours)
    device.launch(used, reads=[view])
    device.release(made)
    assert (device.violations() == []) == waits


def test_streams_that_are_not_there_are_errors(ours):
    with pytest.raises(flagstone.StreamError):
        flagstone.as_buffer(Array(stream=0xDEAD0), pool=ours)
    with pytest.raises(flagstone.StreamError):
        flagstone.as_buffer(ours.alloc(100), stream=0xDEAD0)
    with pytest.raises(TypeError, match="a stream is"):
        flagstone.from_dlpack(ours.alloc(100), stream="default")


def test_a_use_of_a_view_of_the_pool_s_own_memory_is_recorded(device, ours):
    other = device.create_stream()
    ours.keep_stream(other)
    view = flagstone.as_buffer(ours.alloc(MIB))
    device.hold(other)
    device.launch(other, reads=[view])
    ours.record_stream(view, other)
    address = view.ptr
    del view
    assert ours.alloc(MIB).ptr != address, "the other stream is not done with it"
    device.release(other)
    assert device.violations() == []
    with pytest.raises(flagstone.InvalidPointerError):
        ours.record_stream(flagstone.from_dlpack(dlpack.Producer(ADDRESS, (4,))), other)


def test_a_view_that_is_left_at_exit_calls_nothing(child):
    ran = child(
        "import sys; sys.path.insert(0, 'tests/python')\n"
        "import ctypes, dlpack, flagstone\n"
        "array = dlpack.Producer(4096, (4,))\n"
        "view = flagstone.from_dlpack(array)\n"
        "sys.modules['kept'] = view\n"
    )
    assert (ran.returncode, ran.stderr) == (0, "")


def test_host_memory_is_read_where_it_lies():
    memory = ctypes.create_string_buffer(b"flagstone", 16)
    view = flagstone.from_dlpack(dlpack.Producer(ctypes.addressof(memory), (16,)))
    assert ctypes.string_at(view.ptr, 9) == b"flagstone"
    assert view.__array_interface__["data"] == (ctypes.addressof(memory), False)
    assert not hasattr(flagstone.from_dlpack(dlpack.Producer(ADDRESS, (8,), device=(2, 0))), "__array_interface__")
