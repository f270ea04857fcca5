"""GGUF's k-quants: q2_k, q3_k, q4_k, q5_k, q6_k (256 elements, f16 scales times small integers).

Laws: f16 scale (11 bits) * sub-scale (at most 7) * code (at most 6) is exact in f32, and so is
min scale * sub-min: only their difference rounds, once.  q2_k, q4_k and q5_k have mins
(subtracted); q3_k and q6_k are symmetric.  Sub-blocks are 16 elements (q2_k, q3_k, q6_k) or
32 (q4_k, q5_k).
"""

from __future__ import annotations

import numpy as np

from lanewise.quant.fields import BITS, NIBBLES, PAIRS, Bytes, Floats, half, planes, signed


def _scaled(scale: Floats, codes: Floats) -> Floats:
    """scale [n, s] over codes [n, 256]: [n, s, 256 / s]."""
    n, s = scale.shape
    return scale[:, :, None] * codes.reshape(n, s, 256 // s)


def _minus(values: Floats, low: Floats) -> Floats:
    """values [n, s, 256 / s] less the min of each sub-block, [n, s]: [n, 256]."""
    values -= low[:, :, None]
    return values.reshape(-1, 256)


def decode_q2_k(blocks: Bytes) -> Floats:
    """84 bytes: 16 x (4-bit scale, 4-bit min), 64 x 4 codes, f16 d, f16 dmin."""
    pairs = blocks[:, :16]
    scale = half(blocks, 80) * (pairs & np.uint8(15)).astype(np.float32)
    low = half(blocks, 82) * (pairs >> np.uint8(4)).astype(np.float32)
    codes = planes(blocks[:, 16:80], PAIRS, 32).astype(np.float32)
    return _minus(_scaled(scale, codes), low)


def decode_q3_k(blocks: Bytes) -> Floats:
    """110 bytes: 32 x 8 third bits (set: no offset), 64 x 4 low codes, 16 scales of 6 bits, f16 d.

    Scales: byte i < 8 holds the low nibbles of scales i and i + 8; byte 8 + j the upper two bits
    of scales j, j + 4, j + 8, j + 12.
    """
    low = planes(blocks[:, 96:104], NIBBLES, 8)
    high = planes(blocks[:, 104:108], PAIRS, 4)
    scale = half(blocks, 108) * signed(low | (high << np.uint8(4)), 32)
    third = planes(blocks[:, :32], BITS, 32) << np.uint8(2)
    codes = planes(blocks[:, 32:96], PAIRS, 32) | third
    return _scaled(scale, signed(codes, 4)).reshape(-1, 256)


def _scales_and_mins(packed: Bytes) -> tuple[Floats, Floats]:
    """12 bytes -> 8 scales and 8 mins of 6 bits each.

    Bytes 0..3: scales 0..3, bytes 4..7: mins 0..3, both in their low six bits, their top two
    being the top two of scales and mins 4..7; bytes 8..11: the low nibbles of those.
    """
    s, m, rest = packed[:, 0:4], packed[:, 4:8], packed[:, 8:12]
    scales = np.hstack([s & 63, (rest & 15) | ((s >> 6) << 4)])
    mins = np.hstack([m & 63, (rest >> 4) | ((m >> 6) << 4)])
    return scales.astype(np.float32), mins.astype(np.float32)


def _with_mins(blocks: Bytes, codes: Bytes) -> Floats:
    """Shared end of q4_k and q5_k: both begin with f16 d, f16 dmin, 12 bytes of scales."""
    scales, mins = _scales_and_mins(blocks[:, 4:16])
    scale, low = half(blocks, 0) * scales, half(blocks, 2) * mins
    return _minus(_scaled(scale, codes.astype(np.float32)), low)


def decode_q4_k(blocks: Bytes) -> Floats:
    """144 bytes: f16 d, f16 dmin, 12 bytes of scales, 128 x 2 nibbles by runs of 32."""
    return _with_mins(blocks, planes(blocks[:, 16:], NIBBLES, 32))


def decode_q5_k(blocks: Bytes) -> Floats:
    """176 bytes: f16 d, f16 dmin, 12 bytes of scales, 32 x 8 fifth bits, 128 x 2 nibbles."""
    fifth = planes(blocks[:, 16:48], BITS, 32) << np.uint8(4)
    return _with_mins(blocks, planes(blocks[:, 48:], NIBBLES, 32) | fifth)


def decode_q6_k(blocks: Bytes) -> Floats:
    """210 bytes: 128 x 2 nibbles by runs of 64, 64 x 4 upper pairs, 16 x i8 scales, f16 d."""
    scale = half(blocks, 208) * blocks[:, 192:208].view(np.int8).astype(np.float32)
    high = planes(blocks[:, 128:192], PAIRS, 32) << np.uint8(4)
    codes = planes(blocks[:, :128], NIBBLES, 64) | high
    return _scaled(scale, signed(codes, 32)).reshape(-1, 256)
