"""The adapters for CuPy and cuda.core, with small stand-ins in their place. tests/libraries has the real ones."""

import gc
import importlib
import sys
import types

import pytest

import flagstone
from flagstone import _core


@pytest.fixture
def stand_in(monkeypatch):
    """Put a module in the place of a library, and import an adapter over it."""

    def put(library, adapter, **contents):
        parent, _, child = library.rpartition(".")
        module = types.ModuleType(library)
        vars(module).update(contents)
        monkeypatch.setitem(sys.modules, library, module)
        if parent:
            package = types.ModuleType(parent)
            setattr(package, child, module)
            monkeypatch.setitem(sys.modules, parent, package)
        monkeypatch.delitem(sys.modules, adapter, raising=False)
        return importlib.import_module(adapter)

    yield put
    for name in ("cupy", "cuda_core"):
        sys.modules.pop(f"flagstone.{name}", None)


class UnownedMemory:
    def __init__(self, ptr, size, owner, device_id):
        self.ptr, self.size, self.owner, self.device_id = ptr, size, owner, device_id


class MemoryPointer:
    def __init__(self, mem, offset):
        self.mem, self.offset = mem, offset


def test_cupy_allocates_on_its_current_stream(stand_in):
    installed = []
    cuda = types.SimpleNamespace(
        Device=lambda: types.SimpleNamespace(id=0),
        get_current_stream=lambda: types.SimpleNamespace(ptr=2),
        set_allocator=installed.append,
        UnownedMemory=UnownedMemory,
        MemoryPointer=MemoryPointer,
    )
    adapter = stand_in("cupy", "flagstone.cupy", cuda=cuda)
    adapter.install(backend="sim")
    assert installed == [adapter.allocator]
    before = _core.process_pool().stats().live_blocks
    pointer = adapter.allocator(1000)
    memory = pointer.mem
    assert (pointer.offset, memory.size, memory.device_id, memory.owner.stream) == (0, 1000, 0, 2)
    assert memory.ptr == memory.owner.ptr
    assert _core.process_pool().stats().live_blocks == before + 1
    del pointer, memory
    gc.collect()
    assert _core.process_pool().stats().live_blocks == before


def test_settings_of_the_process_are_set_once(stand_in):
    adapter = stand_in("cupy", "flagstone.cupy", cuda=types.SimpleNamespace(set_allocator=lambda _: None))
    adapter.install(backend="sim")
    adapter.install(backend="sim")
    with pytest.raises(flagstone.ConfigError):
        adapter.install(backend="sim", limit="1GiB")
    with pytest.raises(flagstone.ConfigError, match="limti"):
        adapter.install(backend="sim", limti="1GiB")


def test_a_library_without_settings_has_those_of_the_one_before(child):
    ran = child(
        "import flagstone\n"
        "from flagstone._core import process_pool\n"
        "from flagstone._process import configure\n"
        "configure('sim', {'limit': '1GiB', 'remap': False, 'cache': None})\n"
        "configure('sim', {})\n"
        "assert process_pool().settings == {'limit': str(1 << 30), 'remap': 'off'}, process_pool().settings\n"
        "for backend, settings in (('cuda', {}), ('sim', {'limit': '2GiB'})):\n"
        "    try: configure(backend, settings)\n"
        "    except flagstone.ConfigError: continue\n"
        "    raise AssertionError((backend, settings))\n"
    )
    assert ran.returncode == 0, ran.stderr


class Resource:
    """What `cuda.core.MemoryResource` is for its subclasses."""


class Stream:
    def __cuda_stream__(self):
        return (0, 2)


class CudaCoreBuffer:
    def __init__(self, ptr, size, mr, stream):
        self.ptr, self.size, self.mr, self.stream = ptr, size, mr, stream

    @classmethod
    def from_handle(cls, ptr, size, mr, *, stream):
        if size == 13:
            raise RuntimeError("no buffer")
        return cls(ptr, size, mr, stream)


def test_cuda_core_buffers_come_from_a_pool(stand_in, pool):
    adapter = stand_in("cuda.core", "flagstone.cuda_core", MemoryResource=Resource, Buffer=CudaCoreBuffer)
    resource = adapter.MemoryResource(pool)
    assert isinstance(resource, Resource)
    assert (resource.device_id, resource.is_device_accessible, resource.is_host_accessible) == (0, True, False)
    buffer = resource.allocate(1000, stream=Stream())
    assert (buffer.size, buffer.mr) == (1000, resource)
    assert pool.stats().live_blocks == 1
    resource.deallocate(buffer.ptr, buffer.size, stream=buffer.stream)
    assert pool.stats().live_blocks == 0
    with pytest.raises(RuntimeError, match="no buffer"):
        resource.allocate(13, stream=Stream())
    assert pool.stats().live_blocks == 0, "a block without a buffer goes back"


@pytest.mark.parametrize(
    ("adapter", "package", "advice"),
    [
        ("torch", "torch", "pip install 'flagstone[torch]'"),
        ("cupy", "cupy", "pip install cupy-cuda13x"),
        ("numba", "numba", "pip install numba-cuda"),
        ("cuda_core", "cuda", "pip install cuda-core"),
    ],
)
def test_without_the_library_the_error_says_what_to_install(child, adapter, package, advice):
    ran = child(f"import sys; sys.modules[{package!r}] = None\nimport flagstone.{adapter}")
    assert ran.returncode == 1
    assert ran.stderr.splitlines()[-1].startswith("ImportError: ")
    assert ran.stderr.rstrip().endswith(advice)
