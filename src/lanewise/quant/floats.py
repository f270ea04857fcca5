"""Unquantised rows of a checkpoint: f32, f16, bf16.

Laws: widening to f32 is exact, NaN payloads and the signs of zeros included.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Bytes = NDArray[np.uint8]
Floats = NDArray[np.float32]


def decode_f32(blocks: Bytes) -> Floats:
    """[n, 4] bytes -> [n, 1]: the bits themselves."""
    return blocks.view("<f4").astype(np.float32, copy=False)


def decode_f16(blocks: Bytes) -> Floats:
    """[n, 2] bytes -> [n, 1]."""
    return blocks.view("<f2").astype(np.float32)


def decode_bf16(blocks: Bytes) -> Floats:
    """[n, 2] bytes -> [n, 1]: a bf16 is the upper half of an f32."""
    return (blocks.view("<u2").astype(np.uint32) << np.uint32(16)).view(np.float32)


def encode_f32(values: Floats) -> Bytes:
    """[n, 1] -> [n, 4] bytes."""
    return np.ascontiguousarray(values, "<f4").view(np.uint8)


def encode_f16(values: Floats) -> Bytes:
    """[n, 1] -> [n, 2] bytes, to nearest even; beyond 65504 becomes infinity."""
    with np.errstate(over="ignore"):
        return np.ascontiguousarray(values.astype("<f2")).view(np.uint8)


def encode_bf16(values: Floats) -> Bytes:
    """[n, 1] -> [n, 2] bytes, to nearest even; a NaN keeps its upper payload and becomes quiet."""
    bits = np.ascontiguousarray(values, np.float32).view(np.uint32).astype(np.uint64)
    nan = (bits & 0x7FFFFFFF) > 0x7F800000
    rounded = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16
    quiet = (bits >> 16) | 0x40
    return np.where(nan, quiet, rounded).astype("<u2").view(np.uint8)
