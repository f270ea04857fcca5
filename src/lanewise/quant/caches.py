"""Cached keys and values in 8 bits (q8_0): the recipe of a write, in NumPy, bit for bit.

Per 32 channels of a head at a position: scale f16 = max|x| / 127 (f32 division, then one rounding),
read back as s; code = x / s, rounded half to even, held to -127..127; s = 0: codes 0.  A group
whose scale is not finite (an infinity, a NaN, or beyond 8.3 million) is scale NaN, codes 0.
A value is code * s in f32, which is exact.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]
GROUP = 32
"""Channels that share a scale."""


def encode(x: Array) -> tuple[NDArray[np.int8], NDArray[np.float16]]:
    """f32 [..., D] -> codes [..., D], scales [..., D / 32]; D is a multiple of 32."""
    groups = np.asarray(x, np.float32).reshape(*x.shape[:-1], -1, GROUP)
    with np.errstate(all="ignore"):
        scale = (np.abs(groups).max(-1) / np.float32(127)).astype(np.float16)
        scale[~np.isfinite(scale)] = np.nan
        s = scale.astype(np.float32)[..., None]
        codes = np.where(s > 0, np.rint(groups / s), np.float32(0))
    return np.clip(codes, -127, 127).astype(np.int8).reshape(x.shape), scale


def decode(codes: NDArray[np.int8], scale: NDArray[np.float16]) -> NDArray[np.float32]:
    """The inverse, f32 [..., D]."""
    wide = np.repeat(scale.astype(np.float32), GROUP, axis=-1)
    return np.asarray(codes.astype(np.float32) * wide, np.float32)


def recode(values: Array) -> tuple[NDArray[np.int8], NDArray[np.float16]]:
    """What a cache that holds these values may hold them as: `encode`, unless a subnormal scale
    made the largest code less than 127; then the scale near it that gives every value back."""
    codes, scale = encode(values)
    groups = np.asarray(values, np.float32).reshape(*scale.shape, GROUP)
    for step in range(1, 9):
        off = (decode(codes, scale).reshape(groups.shape) != groups).any(-1) & ~np.isnan(scale)
        if not off.any():
            break
        for by in (step, -step):
            near = (scale.view(np.uint16) + np.uint16(by % 65536)).view(np.float16)
            wide = near.astype(np.float32)[..., None]
            with np.errstate(all="ignore"):
                code = np.clip(np.rint(groups / wide), -127, 127)
            fits = off & (code * wide == groups).all(-1)
            scale = np.where(fits, near, scale)
            parts = np.where(fits[..., None], code, codes.reshape(groups.shape))
            codes = parts.astype(np.int8).reshape(codes.shape)
            off &= ~fits
    return codes, scale


class CacheArray(np.ndarray[Any, Any]):
    """A q8_0 cache as the interpreter holds it: its values, f32 of the logical shape."""

    format = "q8_0"


def cache_array(x: Array) -> CacheArray:
    """What a q8_0 cache holds after x f32 [..., D] was written to it."""
    return decode(*encode(x)).view(CacheArray)


__all__ = ["GROUP", "CacheArray", "cache_array", "decode", "encode"]
