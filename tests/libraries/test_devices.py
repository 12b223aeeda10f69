"""Several devices: each library's memory of a device comes from that device's pool."""

import pytest
import simcuda

START = """\
from flagstone import _core

def live():
    return [_core.process_pool(device).stats().live_blocks for device in range(2)]

"""

CUPY = """\
import static_runtime
from cupy_backends.cuda.api import runtime
static_runtime.lead(runtime.__file__)
import cupy
import flagstone.cupy
flagstone.cupy.install()
with cupy.cuda.Device(1):
    array = cupy.zeros(1000, dtype=cupy.uint8)
assert array.device.id == 1
assert live() == [0, 1]
assert (array.get() == 0).all()
copy = cupy.empty(1000, dtype=cupy.uint8)
copy.data.copy_from_device(array.data, 1000)
assert (copy.get() == 0).all()
assert live() == [1, 1]
del array
assert live() == [1, 0]
"""

NUMBA = """\
import flagstone.numba
flagstone.numba.install()
from numba import cuda
with cuda.gpus[1]:
    array = cuda.to_device([1.0, 2.0])
    assert live() == [0, 1]
    assert array.copy_to_host().tolist() == [1.0, 2.0]
with cuda.gpus[0]:
    other = cuda.device_array(1000)
    assert live() == [1, 1]
    del array
    assert live() == [1, 0]
"""

CUDA_CORE = """\
import flagstone.cuda_core
from cuda.core import Device
for number in range(2):
    device = Device(number)
    device.set_current()
    device.memory_resource = flagstone.cuda_core.MemoryResource(_core.process_pool(number))
buffer = device.allocate(1000, stream=device.create_stream())
assert buffer.device_id == 1
assert live() == [0, 1]
Device(0).set_current()
buffer.close()
assert live() == [0, 0]
"""


@pytest.mark.parametrize("code", [CUPY, NUMBA, CUDA_CORE], ids=["cupy", "numba", "cuda_core"])
def test_the_pool_is_that_of_the_device(code, child):
    environment = {**simcuda.environment(), **simcuda.settings(devices=2)}
    environment["PYTHONPATH"] += ":tests/libraries"
    ran = child(START + code, env=environment)
    assert ran.returncode == 0, ran.stderr
    assert "simcuda:" not in ran.stderr, ran.stderr
