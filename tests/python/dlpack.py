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


_new = ctypes.pythonapi.PyCapsule_New
_new.restype, _new.argtypes = ctypes.py_object, [c_void_p, c_char_p, c_void_p]


_lent = set()


class Producer:
    """An array of another library, whose structure says what is wanted; `deleted` counts how often it came back."""

    def __init__(self, data, shape, strides=None, *, device=(CPU, 0), dtype=(1, 8, 1), offset=0, version=None, flags=0):
        self.device, self.version, self.deleted, self.streams = device, version, 0, []
        self._shape = (c_int64 * len(shape))(*shape) if shape is not None else None
        self._strides = (c_int64 * len(strides))(*strides) if strides is not None else None
        self._deleter = Deleter(self._delete)
        tensor = Tensor(
            data,
            Device(*device),
            len(shape) if shape is not None else 1,
            DataType(*dtype),
            ctypes.cast(self._shape, POINTER(c_int64)),
            ctypes.cast(self._strides, POINTER(c_int64)),
            offset,
        )
        if version is None:
            self._structure = Managed(tensor, None, self._deleter)
        else:
            self._structure = Versioned(*version, None, self._deleter, flags, tensor)

    def _delete(self, _structure):
        self.deleted += 1
        _lent.discard(self)

    def capsule(self):
        """Return a capsule over the structure, which stays until its deleter is called."""
        _lent.add(self)
        name = b"dltensor" if self.version is None else b"dltensor_versioned"
        # The bytes are constants of this function, so the name lives as long as the capsule.
        return _new(ctypes.addressof(self._structure), name, None)

    def __dlpack_device__(self):
        return self.device

    def __dlpack__(self, *, stream=None, **versions):
        if versions and self.version is None:
            raise TypeError("what was before DLPack 1.0 knows no versions")
        self.streams.append(stream)
        return self.capsule()
