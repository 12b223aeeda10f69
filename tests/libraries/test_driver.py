"""The simulated driver, as these libraries call it, is as strict as a real one."""

import numpy as np
import pytest
import simcuda
from cuda.bindings import driver
from cuda.bindings.driver import CUpointer_attribute, CUresult


@pytest.fixture
def memory(device, pool):
    """A buffer of 4096 bytes, and an array of ordinary memory of that size."""
    return pool.alloc(4096), np.zeros(4096, np.uint8)


def status(call, *arguments) -> CUresult:
    return call(*arguments)[0]


def test_a_copy_says_which_side_is_the_device(memory):
    buffer, host = memory
    address, here = buffer.ptr, host.ctypes.data
    assert status(driver.cuMemcpyHtoD, address, here, 4096) == CUresult.CUDA_SUCCESS
    assert status(driver.cuMemcpyDtoH, here, address, 4096) == CUresult.CUDA_SUCCESS
    for call, to, source in (
        (driver.cuMemcpyDtoD, address, here),
        (driver.cuMemcpyHtoD, here, here),
        (driver.cuMemcpyDtoH, address, address),
    ):
        assert status(call, to, source, 4096) == CUresult.CUDA_ERROR_INVALID_VALUE


def test_fills_are_of_device_memory_and_aligned(memory):
    buffer, host = memory
    assert status(driver.cuMemsetD32, buffer.ptr, 0x01020304, 1024) == CUresult.CUDA_SUCCESS
    assert status(driver.cuMemcpyDtoH, host.ctypes.data, buffer.ptr, 4096) == CUresult.CUDA_SUCCESS
    assert (host.view(np.uint32) == 0x01020304).all()
    assert status(driver.cuMemsetD32, buffer.ptr + 2, 0, 1) == CUresult.CUDA_ERROR_INVALID_VALUE
    assert status(driver.cuMemsetD8, host.ctypes.data, 0, 1) == CUresult.CUDA_ERROR_INVALID_VALUE


def test_what_an_address_is(memory):
    buffer, host = memory
    kind = CUpointer_attribute.CU_POINTER_ATTRIBUTE_MEMORY_TYPE
    assert driver.cuPointerGetAttribute(kind, buffer.ptr) == (CUresult.CUDA_SUCCESS, 2)
    assert status(driver.cuPointerGetAttribute, kind, host.ctypes.data) == CUresult.CUDA_ERROR_INVALID_VALUE
    ordinal = CUpointer_attribute.CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL
    assert driver.cuPointerGetAttributes(2, [kind, ordinal], host.ctypes.data) == (CUresult.CUDA_SUCCESS, [0, -2])


def test_memory_is_registered_once(device):
    host = np.zeros(8192, np.uint8)
    address = host.ctypes.data
    assert status(driver.cuMemHostRegister, address, 8192, 0) == CUresult.CUDA_SUCCESS
    assert status(driver.cuMemHostRegister, address, 8192, 0) == CUresult.CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED
    assert status(driver.cuMemHostUnregister, address) == CUresult.CUDA_SUCCESS
    assert status(driver.cuMemHostUnregister, address) == CUresult.CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED


def test_a_dead_stream_is_found(memory):
    buffer, _ = memory
    _, stream = driver.cuStreamCreate(0)
    assert status(driver.cuStreamCreate, 8) == CUresult.CUDA_ERROR_INVALID_VALUE
    assert status(driver.cuMemsetD8Async, buffer.ptr, 0, 1, stream) == CUresult.CUDA_SUCCESS
    assert status(driver.cuStreamDestroy, stream) == CUresult.CUDA_SUCCESS
    assert status(driver.cuMemsetD8Async, buffer.ptr, 0, 1, stream) == CUresult.CUDA_ERROR_INVALID_HANDLE
    (found,) = simcuda.violations()
    assert "names no stream" in found
    simcuda.forgive()


def test_functions_are_given_by_name_and_version():
    query = driver.cuGetProcAddress
    symbol = driver.CUdriverProcAddressQueryResult
    old, new = (query(b"cuCtxGetDevice", version, 0) for version in (12000, 13000))
    assert old[0] == new[0] == CUresult.CUDA_SUCCESS
    assert old[1] != new[1], "the newer one takes a context"
    assert query(b"cuNothing", 13000, 0)[2] == symbol.CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND
    per_thread = driver.CUdriverProcAddress_flags.CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM
    assert query(b"cuMemcpy", 13000, per_thread.value)[0] == CUresult.CUDA_ERROR_NOT_SUPPORTED
