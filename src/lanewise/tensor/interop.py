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
BFLOAT = 4  # kDLBfloat


class _Tensor(ctypes.Structure):
    """DLTensor of dlpack.h."""

    _fields_ = (
        ("data", ctypes.c_void_p), ("device", ctypes.c_int32 * 2), ("ndim", ctypes.c_int32),
        ("code", ctypes.c_uint8), ("bits", ctypes.c_uint8), ("lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)), ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    )  # fmt: skip


def from_dlpack(value: Any, bf16: bool = False) -> Array:
    """The array of a DLPack object, without a copy.

    ``bf16``: it is looked at by our own reader first, since NumPy does not know that type (and
    keeps a capsule that it refuses).  Raises TypeError, ValueError, RuntimeError or BufferError.
    """
    found = _bfloat16(value) if bf16 else None
    if found is not None:
        return found
    try:
        return np.from_dlpack(value, copy=False)
    except TypeError:  # a producer of before the argument
        return np.from_dlpack(value)


def _bfloat16(value: Any) -> Array | None:
    """A bf16 array by the capsule itself, None if it is something else."""
    import ml_dtypes

    if device_of(value) is not None:
        return None
    capsule = value.__dlpack__()
    address = ctypes.pythonapi.PyCapsule_GetPointer
    address.restype, address.argtypes = ctypes.c_void_p, (ctypes.py_object, ctypes.c_char_p)
    tensor = _Tensor.from_address(address(capsule, b"dltensor"))
    if (tensor.code, tensor.bits, tensor.lanes) != (BFLOAT, 16, 1):
        return None
    shape = tuple(tensor.shape[i] for i in range(tensor.ndim))
    packed = [2 * int(np.prod(shape[i + 1 :])) for i in range(tensor.ndim)]
    strides = [2 * tensor.strides[i] for i in range(tensor.ndim)] if tensor.strides else packed
    last = sum((d - 1) * s for d, s in zip(shape, strides, strict=True))
    raw: Any = (ctypes.c_uint8 * (last + 2)).from_address(tensor.data + tensor.byte_offset)
    raw.owner = capsule
    whole = np.frombuffer(raw, np.uint8)
    return np.ndarray(shape, ml_dtypes.bfloat16, whole, 0, strides)  # type: ignore[arg-type]


def from_object(value: Any, bf16: bool = False) -> Array:
    """The array of a DLPack object or of anything with the buffer protocol."""
    if hasattr(value, "__dlpack__"):
        return from_dlpack(value, bf16)
    return np.asarray(memoryview(value))


def device_of(value: Any) -> tuple[int, int] | None:
    """Where a DLPack object lies, if that is not this processor's memory."""
    try:
        kind, number = value.__dlpack_device__()
    except (AttributeError, TypeError, ValueError):
        return None
    return None if int(kind) in CPU else (int(kind), int(number))
