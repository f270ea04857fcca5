"""Arrays of others, used where they are: NumPy's, DLPack objects, buffers.

Laws: nothing is copied: a producer is asked with `copy=False`, and what it cannot give that way
is refused.  A capsule that is read here is never consumed: it is kept as the array's owner, and
frees its memory when the array goes.
"""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]
CPU = (1, 3)  # kDLCPU, kDLCUDAHost: memory that this processor reads
VERSION = (1, 1)  # of dlpack.h: the first with 8-bit floats
READ_ONLY, IS_COPIED = 1, 2  # flags of a versioned capsule
CODES = {"bfloat16": 4, "float8_e4m3fn": 10, "float8_e5m2": 12}  # DLDataTypeCode, by NumPy's name


class _Tensor(ctypes.Structure):
    """DLTensor of dlpack.h."""

    _fields_ = (
        ("data", ctypes.c_void_p), ("device", ctypes.c_int32 * 2), ("ndim", ctypes.c_int32),
        ("code", ctypes.c_uint8), ("bits", ctypes.c_uint8), ("lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)), ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    )  # fmt: skip


class _Versioned(ctypes.Structure):
    """DLManagedTensorVersioned of dlpack.h; the one without a version begins with its tensor."""

    _fields_ = (
        ("major", ctypes.c_uint32), ("minor", ctypes.c_uint32), ("context", ctypes.c_void_p),
        ("deleter", ctypes.c_void_p), ("flags", ctypes.c_uint64), ("tensor", _Tensor),
    )  # fmt: skip


def _opened(capsule: Any) -> tuple[_Tensor, _Versioned | None]:
    """The structures of a capsule that nobody has consumed, where they lie.  Raises BufferError
    for a version whose layout is not known."""
    valid, address = ctypes.pythonapi.PyCapsule_IsValid, ctypes.pythonapi.PyCapsule_GetPointer
    valid.restype, valid.argtypes = ctypes.c_int, (ctypes.py_object, ctypes.c_char_p)
    address.restype, address.argtypes = ctypes.c_void_p, (ctypes.py_object, ctypes.c_char_p)
    if not valid(capsule, b"dltensor_versioned"):
        return _Tensor.from_address(address(capsule, b"dltensor")), None
    found = _Versioned.from_address(address(capsule, b"dltensor_versioned"))
    if found.major != VERSION[0]:
        raise BufferError(f"DLPack {found.major}.{found.minor} is not read")
    return found.tensor, found


def to_dlpack(array: Array, **options: Any) -> Any:
    """The capsule of an array, of a dtype that NumPy has none for as well.

    Such an array goes out as unsigned integers of its size, NumPy's capsule, and then gets its
    own code: whose memory it is, and until when, stays NumPy's to say.  ``options``: the array
    API's.  Raises BufferError, RuntimeError or TypeError.
    """
    code = CODES.get(array.dtype.name)
    if code is None:
        return array.__dlpack__(**options)
    capsule = array.view(f"u{array.itemsize}").__dlpack__(**options)
    tensor, versioned = _opened(capsule)
    tensor.code = code
    if versioned is not None:
        versioned.minor = max(versioned.minor, VERSION[1])
    return capsule


def from_dlpack(value: Any, extension: bool = False, written: bool = False) -> Array:
    """The array of a DLPack object, without a copy.

    ``extension``: it is looked at by our own reader first, since NumPy does not know bf16 and
    8-bit floats (and keeps a capsule that it refuses).  ``written``: it has to be writable if its
    producer does not forbid it.  Raises TypeError, ValueError, RuntimeError or BufferError.
    """
    found = _extension(value) if extension else None
    if found is not None:
        return found
    try:
        found = np.from_dlpack(value, copy=False)
    except TypeError:  # a producer of before the argument
        found = np.from_dlpack(value)
    except RuntimeError:  # a dtype of ours that is not the port's is told by its name
        found = None if extension else _extension(value)
        if found is None:
            raise
    readonly = written and found.size and not found.flags.writeable
    return _lent(value, found) if readonly else found


def _asked(value: Any) -> Any:
    """The capsule of a DLPack object, asked for without a copy."""
    try:
        return value.__dlpack__(max_version=VERSION, copy=False)
    except TypeError:  # a producer of before the arguments
        return value.__dlpack__()


def _extension(value: Any) -> Array | None:
    """An array of a dtype of CODES by the capsule itself, None if it is something else."""
    import ml_dtypes

    if device_of(value) is not None:
        return None
    capsule = _asked(value)
    tensor, _ = _opened(capsule)
    name = next((n for n, code in CODES.items() if code == tensor.code), "")
    dtype = np.dtype(getattr(ml_dtypes, name)) if name else None
    if dtype is None or (tensor.bits, tensor.lanes) != (8 * dtype.itemsize, 1):
        return None
    return _array(capsule, dtype)


def _lent(value: Any, found: Array) -> Array:
    """What NumPy calls read-only, writable if only its capsule's age is why: one without a version
    cannot say that it is read-only, so NumPy takes that of each; to the standard none is."""
    capsule = _asked(value)
    tensor, versioned = _opened(capsule)
    same = tensor.data + tensor.byte_offset == found.ctypes.data
    return found if versioned is not None or not same else _array(capsule, found.dtype)


def _array(capsule: Any, dtype: np.dtype[Any]) -> Array:
    """The array of a capsule, which it keeps.  Raises BufferError for a copy."""
    tensor, versioned = _opened(capsule)
    if versioned is not None and versioned.flags & IS_COPIED:
        raise BufferError("its producer made a copy")
    shape, size = tuple(tensor.shape[i] for i in range(tensor.ndim)), dtype.itemsize
    packed = [size * int(np.prod(shape[i + 1 :])) for i in range(tensor.ndim)]
    strides = [size * tensor.strides[i] for i in range(tensor.ndim)] if tensor.strides else packed
    last = sum((d - 1) * s for d, s in zip(shape, strides, strict=True))
    raw: Any = (ctypes.c_uint8 * (last + size)).from_address(tensor.data + tensor.byte_offset)
    raw.owner = capsule
    whole = np.frombuffer(raw, np.uint8)
    if versioned is not None and versioned.flags & READ_ONLY:
        whole.flags.writeable = False
    return np.ndarray(shape, dtype, whole, 0, strides)  # type: ignore[arg-type]


def from_object(value: Any, extension: bool = False, written: bool = False) -> Array:
    """The array of a DLPack object or of anything with the buffer protocol."""
    if hasattr(value, "__dlpack__"):
        return from_dlpack(value, extension, written)
    return np.asarray(memoryview(value))


def device_of(value: Any) -> tuple[int, int] | None:
    """Where a DLPack object lies, if that is not this processor's memory."""
    try:
        kind, number = value.__dlpack_device__()
    except (AttributeError, TypeError, ValueError):
        return None
    return None if int(kind) in CPU else (int(kind), int(number))
