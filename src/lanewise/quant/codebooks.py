"""GGUF types whose codes index a table of 16 values: iq4_nl, iq4_xs, mxfp4, nvfp4.

Laws: as everywhere, scale * code is exact in f32 (nvfp4 and mxfp4 scales have at most 4 bits).
Values, not the standards behind them, follow GGUF (oracle: the ``gguf`` package):

- mxfp4: the scale byte 255, NaN in OCP's E8M0, is 2^128; code 8, minus zero in E2M1, is plus zero
  (times a positive scale).
- nvfp4: the scale is E4M3 without its sign bit, which is ignored; byte 127, NaN in E4M3, is 0
  and byte 255 is 480.  The factor that NVFP4 keeps once per tensor is a tensor of its own in GGUF
  (``.scale``): a decoded block does not include it.

The two kinds of scale are stored halved beside doubled values, so that the table is of integers.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from lanewise.quant.fields import NIBBLES, Bytes, Floats, half, planes, signed

# The non-linear 4-bit levels of iq4_nl and iq4_xs, a published constant of the format.
IQ4_LEVELS = np.array(
    [-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113], np.float32
)
# E2M1, doubled (OCP Microscaling Formats 1.0, section 5.3.3).
FP4_DOUBLED = np.array([0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12], np.float32)


def _e8m0_halved() -> NDArray[np.float32]:
    """2^(e - 128) for e = 0..255; the first two are subnormal."""
    return np.ldexp(np.float64(1), np.arange(256) - 128).astype(np.float32)


def _ue4m3_halved() -> NDArray[np.float32]:
    """Half the value of every E4M3 byte, sign ignored; 127 is 0."""
    byte = np.arange(256)
    exponent, mantissa = (byte >> 3) & 15, byte & 7
    whole = np.where(exponent == 0, mantissa, mantissa + 8)
    value = np.ldexp(whole.astype(np.float64), np.maximum(exponent, 1) - 10)
    value[127] = 0.0
    return (value / 2).astype(np.float32)


E8M0_HALVED = _e8m0_halved()
UE4M3_HALVED = _ue4m3_halved()


def decode_iq4_nl(blocks: Bytes) -> Floats:
    """18 bytes: f16 d, 16 x 2 nibbles; d * level(q)."""
    return half(blocks, 0) * IQ4_LEVELS[planes(blocks[:, 2:], NIBBLES, 16)]


def decode_iq4_xs(blocks: Bytes) -> Floats:
    """136 bytes: f16 d, u16 of upper scale pairs, 4 x 2 low scale nibbles, 128 x 2 nibbles.

    Sub-blocks of 32; d * (scale - 32) * level(q).
    """
    n = blocks.shape[0]
    upper = np.ascontiguousarray(blocks[:, 2:4]).view("<u2")
    high = ((upper >> np.arange(0, 16, 2, dtype=np.uint16)) & np.uint16(3)).astype(np.uint8)
    low = planes(blocks[:, 4:8], NIBBLES, 1)
    scale = half(blocks, 0) * signed(low | (high << np.uint8(4)), 32)
    levels = IQ4_LEVELS[planes(blocks[:, 8:], NIBBLES, 16)].reshape(n, 8, 32)
    return (scale[:, :, None] * levels).reshape(n, 256)


def decode_mxfp4(blocks: Bytes) -> Floats:
    """17 bytes: E8M0 scale, 16 x 2 nibbles of E2M1."""
    return E8M0_HALVED[blocks[:, :1]] * FP4_DOUBLED[planes(blocks[:, 1:], NIBBLES, 16)]


def decode_nvfp4(blocks: Bytes) -> Floats:
    """36 bytes: 4 x E4M3 scale of 16 elements each, 4 x 8 x 2 nibbles of E2M1."""
    n = blocks.shape[0]
    values = FP4_DOUBLED[planes(blocks[:, 4:], NIBBLES, 8)].reshape(n, 4, 16)
    return (UE4M3_HALVED[blocks[:, :4]][:, :, None] * values).reshape(n, 64)
