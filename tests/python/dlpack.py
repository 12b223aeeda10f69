"""A DLPack consumer in ctypes: reads the structures of dlpack.h as another library would."""

import ctypes
from ctypes import POINTER, Structure, c_char_p, c_int32, c_int64, c_uint8, c_uint16, c_uint32, c_uint64, c_void_p

CPU, CUDA = 1, 2


class Device(Structure):
    _fields_ = (("kind", c_int32), ("ordinal", c_int32))


class DataType(Structure):
    _fields_ = (("code", c_uint8), ("bits", c_uint8), ("lanes", c_uint16))


class Tensor(Structure):
    _fields_ = (
        ("data", c_void_p),
        ("device", Device),
        ("ndim", c_int32),
        ("dtype", DataType),
        ("shape", POINTER(c_int64)),
        ("strides", POINTER(c_int64)),
        ("byte_offset", c_uint64),
    )


Deleter = ctypes.CFUNCTYPE(None, c_void_p)


class Managed(Structure):
    _fields_ = (("tensor", Tensor), ("context", c_void_p), ("deleter", Deleter))


class Versioned(Structure):
    _fields_ = (
        ("major", c_uint32),
        ("minor", c_uint32),
        ("context", c_void_p),
        ("deleter", Deleter),
        ("flags", c_uint64),
        ("tensor", Tensor),
    )


_name = ctypes.pythonapi.PyCapsule_GetName
_name.restype, _name.argtypes = c_char_p, [ctypes.py_object]
_pointer = ctypes.pythonapi.PyCapsule_GetPointer
_pointer.restype, _pointer.argtypes = c_void_p, [ctypes.py_object, c_char_p]
_rename = ctypes.pythonapi.PyCapsule_SetName
_rename.restype, _rename.argtypes = ctypes.c_int, [ctypes.py_object, c_char_p]

_USED = {b"dltensor": b"used_dltensor", b"dltensor_versioned": b"used_dltensor_versioned"}


def take(capsule):
    """Take the structure out of a capsule, as a consumer does: from now on `delete` has to be called."""
    name = _name(capsule)
    structure = (Versioned if name == b"dltensor_versioned" else Managed).from_address(_pointer(capsule, name))
    # The capsule keeps the pointer to its name, so the new name has to live as long: it is a constant of this module.
    _rename(capsule, _USED[name])
    return structure


def delete(structure):
    """Give the structure back to its producer."""
    structure.deleter(ctypes.addressof(structure))
