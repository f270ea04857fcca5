"""The quantised activations, as NumPy: recipes ``int8`` and ``int8x2``.

Laws, per group of 32 elements along the last axis, every step in f32:

- ``a`` = the largest |x|, in the order of the bits (so a NaN or an infinity is found);
  ``s`` = a / limit, one division; limit is 127 (int8) or 16256 = 127 * 128 (int8x2).
- ``v`` = x / s rounded half to even, a division and not a product with 1 / s; |v| <= limit.
- ``s`` below 2^-126 (a group of zeros, or all of it under 2^-126 * limit, 1.9e-34 for int8x2):
  ``s`` = +0 and ``v`` = 0.  A subnormal scale has too few bits to hold v within the limit.
- a group with an infinity or a NaN: ``s`` = the quiet NaN 0x7fc00000 and ``v`` = 0, all of the
  group: a product that reads it is NaN, never a finite number.
- int8x2 holds v = 128 * hi + lo with -64 <= lo <= 63, so -127 <= hi <= 127: two int8 words.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from lanewise.errors import UsageError

GROUP = 32
LIMITS = {"int8": 127, "int8x2": 16256}
SMALLEST = np.float32(2.0**-126)
QUIET_NAN = np.array(0x7FC00000, np.uint32).view(np.float32)


@dataclass(frozen=True, eq=False)
class ActArray:
    """Quantised rows: ``v`` int32 [R, K], ``scale`` f32 [R, K / 32], of one ``recipe``."""

    recipe: str
    v: NDArray[np.int32]
    scale: NDArray[np.float32]

    @staticmethod
    def encode(x: NDArray[np.float32], recipe: str) -> ActArray:
        """f32 [R, K] by a recipe; raises as `quantise`."""
        return ActArray(recipe, *quantise(x, recipe))


def quantise(x: NDArray[np.float32], recipe: str) -> tuple[NDArray[np.int32], NDArray[np.float32]]:
    """x [..., K] f32 -> (v int32 [..., K], s f32 [..., K / 32]); x is about v * s.

    Raises UsageError ``usage.activations`` for another recipe, dtype, or K that is not a multiple
    of 32.

    >>> v, s = quantise(np.full((1, 32), 2.0, np.float32), "int8")
    >>> int(v[0, 0]), float(s[0, 0]) == float(np.float32(2) / np.float32(127))
    (127, True)
    """
    if recipe not in LIMITS:
        raise UsageError(
            "usage.activations", f"no integer activations {recipe!r}", remedy="int8 or int8x2"
        )
    if x.dtype != np.float32 or x.ndim == 0 or x.shape[-1] % GROUP:
        raise UsageError(
            "usage.activations", f"{x.dtype} {x.shape} is not f32 in groups of {GROUP}",
            place=recipe, remedy="pad the last axis with zeros to a multiple of 32",
        )  # fmt: skip
    limit = np.float32(LIMITS[recipe])
    groups = np.ascontiguousarray(x).reshape(*x.shape[:-1], x.shape[-1] // GROUP, GROUP)
    magnitude = groups.view(np.uint32) & np.uint32(0x7FFFFFFF)
    largest = magnitude.max(axis=-1, keepdims=True, initial=0).view(np.float32)
    with np.errstate(all="ignore"):
        scale = largest / limit
        scale = np.where(scale < SMALLEST, np.float32(0), scale)
        scale = np.where(np.isfinite(scale), scale, QUIET_NAN)
        usable = scale > 0
        v = np.rint(groups / np.where(usable, scale, np.float32(1)))
    whole = np.where(usable, v, np.float32(0)).astype(np.int32)
    return whole.reshape(x.shape), scale[..., 0]


def dequantise(v: NDArray[np.int32], s: NDArray[np.float32]) -> NDArray[np.float32]:
    """v [..., K], s [..., K / 32] -> f32 [..., K], one rounding (|v| < 2^24 is exact in f32)."""
    groups = v.reshape(*v.shape[:-1], v.shape[-1] // GROUP, GROUP).astype(np.float32)
    with np.errstate(invalid="ignore", over="ignore"):
        return (groups * s[..., None]).reshape(v.shape)


def split(v: NDArray[np.int32]) -> tuple[NDArray[np.int8], NDArray[np.int8]]:
    """v = 128 * hi + lo, -64 <= lo <= 63; |v| <= 16256 -> (hi, lo), both int8."""
    hi = (v + 64) >> 7
    return hi.astype(np.int8), (v - (hi << 7)).astype(np.int8)


def join(hi: NDArray[np.int8], lo: NDArray[np.int8]) -> NDArray[np.int32]:
    """The way back from `split`."""
    return hi.astype(np.int32) * 128 + lo.astype(np.int32)
