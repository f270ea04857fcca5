"""Values of the interpreter: NumPy arrays, quantised matrices and quantised activations.

`wide` opens any of them as float64; `rounded` closes a float64 result in its type, with one
rounding.  Decoded matrices are kept, by identity, while the matrix lives.
"""

from __future__ import annotations

import weakref
from typing import Any

import ml_dtypes
import numpy as np

from lanewise.ir.graph import Type
from lanewise.quant.activations import ActArray
from lanewise.quant.caches import CacheArray, cache_array
from lanewise.quant.format import QuantArray as QuantArray  # a value, too

Array = np.ndarray[Any, Any]
DTYPES = {
    "f32": np.dtype(np.float32), "f16": np.dtype(np.float16),
    "bf16": np.dtype(ml_dtypes.bfloat16), "u32": np.dtype(np.uint32),
    "i32": np.dtype(np.int32), "f8_e4m3": np.dtype(ml_dtypes.float8_e4m3fn),
    "f8_e5m2": np.dtype(ml_dtypes.float8_e5m2),
}  # fmt: skip
_TWICE = [DTYPES[n] for n in ("bf16", "f8_e4m3", "f8_e5m2")]  # rounded to f32 first by astype
_NAMES = {v: k for k, v in DTYPES.items()}
_decoded: dict[int, tuple[Any, Array]] = {}  # id -> (the matrix or None, f32 rows)


def wide(value: Any) -> Array:
    """The numbers of a value, float64; exact."""
    return dequantised(value) if isinstance(value, ActArray) else opened(value).astype(np.float64)


def opened(value: Any) -> Array:
    """An array as it is, a quantised matrix as f32."""
    return decoded(value) if hasattr(value, "decode") else np.asarray(value)


def decoded(matrix: Any) -> Array:
    """A quantised matrix as f32 [n, k]; decoded once."""
    known = _decoded.get(id(matrix))
    if known is None:
        rows = matrix.decode()
        try:
            weakref.finalize(matrix, _decoded.pop, id(matrix), None)
            known = (None, rows)
        except TypeError:  # no weak references: the cache keeps the matrix, so the id stays its
            known = (matrix, rows)
        _decoded[id(matrix)] = known
    return known[1]


def forget() -> None:
    """Drop every decoded matrix."""
    _decoded.clear()


def dequantised(x: Any) -> Array:
    """Activations v * scale, float64 [R, K]: exact (17 bits by 24)."""
    v = np.asarray(x.v, np.float64)
    scale = np.repeat(np.asarray(x.scale, np.float64), v.shape[1] // x.scale.shape[1], axis=1)
    with np.errstate(invalid="ignore"):  # a group that was not finite: 0 times its scale is NaN
        return v * scale


def rounded(x: Array, type: Type) -> Array:
    """A float64 array in a type's dtype, rounded to nearest even, once."""
    dtype = DTYPES[type.dtype]
    if x.dtype == dtype:
        return x
    with np.errstate(all="ignore"):
        return (_odd(x) if dtype in _TWICE and x.dtype == np.float64 else x).astype(dtype)


def _odd(x: Array) -> Array:
    """float64 to f32 rounded to odd: a second rounding, to fewer bits, cannot tie wrongly."""
    near = x.astype(np.float32)
    bits = near.view(np.int32)
    inexact = (near.astype(np.float64) != x) & np.isfinite(near)
    over = np.abs(near.astype(np.float64)) > np.abs(x)
    down = np.where(inexact & over, bits - 1, bits)  # the magnitude rounded towards zero
    return np.where(inexact, down | 1, down).astype(np.int32).view(np.float32)


def value_type(value: Any) -> Type:
    """The type of a value; KeyError for a NumPy dtype that is none of ours."""
    if isinstance(value, ActArray):
        return Type(value.recipe, tuple(value.v.shape))
    if isinstance(value, CacheArray) or hasattr(value, "decode"):
        return Type(value.format, tuple(value.shape))
    return Type(_NAMES[value.dtype], tuple(value.shape))


def random(rng: np.random.Generator, dtype: str, shape: tuple[int, ...]) -> Array:
    """Normal numbers in a float dtype, or a cache of them (for samples)."""
    if dtype == CacheArray.format:
        return cache_array(rng.standard_normal(shape))
    return rounded(rng.standard_normal(shape), Type(dtype, shape))
