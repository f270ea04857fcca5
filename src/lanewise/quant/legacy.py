"""GGUF's simple block types: q4_0, q4_1, q5_0, q5_1, q8_0 (32 elements, one f16 scale).

Laws: a scale has 11 significant bits and a code at most 8, so scale * code is exact in f32; only
adding a min rounds, once.  A decoder's result is therefore the same with or without a fused
multiply-add.  Encoders follow ggml's reference quantisers (the ``gguf`` package's are the oracle):
the scale is computed in f32, codes by the scale's f32 reciprocal, and only then is it rounded
to f16.  They need finite input (`lanewise.quant.format` checks).  Where the reciprocal overflows
(a scale under 2^-128) the reference is undefined; here the code is that of zero, and the
stored scale is zero either way.
"""

from __future__ import annotations

import numpy as np

from lanewise.quant.fields import NIBBLES, Bytes, Floats, half, planes, signed


def decode_q4_0(blocks: Bytes) -> Floats:
    """18 bytes: f16 d, 16 x 2 nibbles (low: elements 0..15, high: 16..31); d * (q - 8)."""
    return half(blocks, 0) * signed(planes(blocks[:, 2:], NIBBLES, 16), 8)


def decode_q4_1(blocks: Bytes) -> Floats:
    """20 bytes: f16 d, f16 m, nibbles; d * q + m."""
    codes = planes(blocks[:, 4:], NIBBLES, 16).astype(np.float32)
    return half(blocks, 0) * codes + half(blocks, 2)


def _fifth_bits(blocks: Bytes, at: int) -> Bytes:
    """Bit i of the u32 at byte ``at`` belongs to element i: [n, 32], as 0 or 16."""
    bits = np.unpackbits(blocks[:, at : at + 4], axis=1, bitorder="little")
    return bits << np.uint8(4)


def decode_q5_0(blocks: Bytes) -> Floats:
    """22 bytes: f16 d, u32 of fifth bits, nibbles; d * (q - 16)."""
    codes = planes(blocks[:, 6:], NIBBLES, 16) | _fifth_bits(blocks, 2)
    return half(blocks, 0) * signed(codes, 16)


def decode_q5_1(blocks: Bytes) -> Floats:
    """24 bytes: f16 d, f16 m, u32 of fifth bits, nibbles; d * q + m."""
    codes = planes(blocks[:, 8:], NIBBLES, 16) | _fifth_bits(blocks, 4)
    return half(blocks, 0) * codes.astype(np.float32) + half(blocks, 2)


def decode_q8_0(blocks: Bytes) -> Floats:
    """34 bytes: f16 d, 32 x i8; d * q."""
    return half(blocks, 0) * blocks[:, 2:].view(np.int8).astype(np.float32)


def _reciprocal(scale: Floats) -> Floats:
    """1 / scale, and 0 where that is not finite."""
    with np.errstate(divide="ignore", over="ignore"):
        inverse = np.float32(1) / scale
    return np.where(np.isfinite(inverse), inverse, np.float32(0))


def _half_bytes(values: Floats) -> Bytes:
    """[n, 1] f32 -> [n, 2] bytes of f16; beyond its range becomes infinity."""
    with np.errstate(over="ignore"):
        return values.astype("<f2").view(np.uint8)


def _nibble_bytes(codes: Bytes) -> Bytes:
    """[n, 32] codes -> [n, 16]: the low four bits of each."""
    low, high = codes[:, :16] & np.uint8(15), codes[:, 16:] << np.uint8(4)
    return low | high


def _symmetric(x: Floats, levels: int) -> tuple[Floats, Bytes]:
    """Scale and codes that map the element of largest magnitude to code 0 (first one on ties)."""
    where = np.abs(x).argmax(axis=1)[:, None]
    scale = np.take_along_axis(x, where, axis=1) / np.float32(-levels)
    codes = np.trunc(x * _reciprocal(scale) + np.float32(levels + 0.5))
    return scale, np.minimum(codes, 2 * levels - 1).astype(np.uint8)


def _affine(x: Floats, top: int) -> tuple[Floats, Floats, Bytes]:
    """Scale, min and codes 0..top of [min, max]."""
    low = x.min(axis=1, keepdims=True)
    with np.errstate(over="ignore", invalid="ignore"):
        scale = (x.max(axis=1, keepdims=True) - low) / np.float32(top)
        codes = np.trunc((x - low) * _reciprocal(scale) + np.float32(0.5))
    codes = np.where(np.isfinite(codes), codes, np.float32(0))
    return scale, low, np.clip(codes, 0, top).astype(np.uint8)


def encode_q4_0(x: Floats) -> Bytes:
    """[n, 32] -> [n, 18]."""
    scale, codes = _symmetric(x, 8)
    return np.hstack([_half_bytes(scale), _nibble_bytes(codes)])


def encode_q4_1(x: Floats) -> Bytes:
    """[n, 32] -> [n, 20]."""
    scale, low, codes = _affine(x, 15)
    return np.hstack([_half_bytes(scale), _half_bytes(low), _nibble_bytes(codes)])


def encode_q5_0(x: Floats) -> Bytes:
    """[n, 32] -> [n, 22]."""
    scale, codes = _symmetric(x, 16)
    fifth = np.packbits(codes >> np.uint8(4), axis=1, bitorder="little")
    return np.hstack([_half_bytes(scale), fifth, _nibble_bytes(codes)])


def encode_q5_1(x: Floats) -> Bytes:
    """[n, 32] -> [n, 24]."""
    scale, low, codes = _affine(x, 31)
    fifth = np.packbits(codes >> np.uint8(4), axis=1, bitorder="little")
    return np.hstack([_half_bytes(scale), _half_bytes(low), fifth, _nibble_bytes(codes)])


def encode_q8_0(x: Floats) -> Bytes:
    """[n, 32] -> [n, 34]; codes round half away from zero."""
    scale = np.abs(x).max(axis=1, keepdims=True) / np.float32(127)
    scaled = x * _reciprocal(scale)
    # Not trunc(|x| + 0.5): adding 0.5 to the float just below it rounds up to 1.
    whole = np.floor(np.abs(scaled))
    whole += np.abs(scaled) - whole >= np.float32(0.5)
    codes = np.copysign(whole, scaled).astype(np.int8)
    return np.hstack([_half_bytes(scale), codes.view(np.uint8)])
