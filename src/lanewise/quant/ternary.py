"""GGUF's ternary types: tq1_0 (1.69 bits), tq2_0 (2.06 bits); 256 elements, one f16 scale, no min.

Laws: an element is d * t; t is -1, 0 or 1 (tq2_0's code 3, which no encoder writes, is 2).
"""

from __future__ import annotations

import numpy as np

from lanewise.quant.fields import PAIRS, Bytes, Floats, half, planes, signed

_POWERS = np.array([1, 3, 9, 27, 81], np.uint8)


def _trits(packed: Bytes, count: int) -> Bytes:
    """``count`` base-3 digits of each byte, first digit of all bytes first: [n, count * b].

    A byte b stands for the fraction b / 256: digit i is the whole part of 3 * frac(b * 3^i / 256),
    so the multiplication is meant to wrap.
    """
    n = packed.shape[0]
    shifted = packed[:, None, :] * _POWERS[:count, None]
    return ((shifted.astype(np.uint16) * np.uint16(3)) >> 8).astype(np.uint8).reshape(n, -1)


def decode_tq1_0(blocks: Bytes) -> Floats:
    """54 bytes: 32 x 5 trits, 16 x 5 trits, 4 x 4 trits, f16 d."""
    parts = (_trits(blocks[:, :32], 5), _trits(blocks[:, 32:48], 5), _trits(blocks[:, 48:52], 4))
    return half(blocks, 52) * signed(np.hstack(parts), 1)


def decode_tq2_0(blocks: Bytes) -> Floats:
    """66 bytes: 64 x 4 codes of two bits by runs of 32, f16 d."""
    return half(blocks, 64) * signed(planes(blocks[:, :64], PAIRS, 32), 1)
