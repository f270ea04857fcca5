"""Encoders of the k-quants that the `gguf` package only decodes: q4_k, q5_k, q6_k.

Laws: round to nearest within scales taken from a block's extremes; no search, so text suffers a
little more than from a searching encoder, and speed and memory are the same.  Every sub-scale is
itself rounded first, and codes are chosen for the rounded one.  An element is then off by half a
step of its sub-block (q6_k: by a whole one opposite to its largest, since codes end at 31), and by
what rounding the sub-scale and the sub-min clipped.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Bytes = NDArray[np.uint8]
Floats = NDArray[np.float32]
BLOCK = 256
_CHUNK = 1 << 12  # blocks at a time: temporaries stay in the cache


def _over(x: Floats, by: Floats) -> Floats:
    """x / by, 0 where by is 0 (everything that it scales is 0 then)."""
    return np.divide(x, by, out=np.zeros(np.broadcast_shapes(x.shape, by.shape), np.float32),
                     where=by != 0)  # fmt: skip


def _half(x: Floats) -> tuple[Bytes, Floats]:
    """x [n, 1] as f16: (its two bytes, the value that they stand for)."""
    stored = x.astype("<f2")
    return stored.view(np.uint8).reshape(-1, 2), stored.astype(np.float32)


def _planes(codes: Bytes, bits: int, run: int) -> Bytes:
    """Codes of some bits [n, c] into bytes [n, c * bits / 8]: runs of `run` bytes hold one run of
    elements in their lowest bits, the next run in the bits above, and so on."""
    fields = codes.reshape(len(codes), -1, 8 // bits, run)
    shifts = (np.arange(8 // bits, dtype=np.uint8) * bits)[:, None]
    return np.bitwise_or.reduce(fields << shifts, axis=2).reshape(len(codes), -1)


def _with_mins(x: Floats, most: int) -> tuple[Bytes, Bytes]:
    """(16 bytes of f16 scale, f16 min scale, packed 6-bit scales and mins; codes 0 .. most)."""
    sub = x.reshape(-1, 8, 32)
    low = np.minimum(sub.min(axis=2), 0)
    scale, offset = (sub.max(axis=2).clip(0) - low) / np.float32(most), -low
    d, d_value = _half(scale.max(axis=1, keepdims=True) / 63)
    m, m_value = _half(offset.max(axis=1, keepdims=True) / 63)
    s = np.rint(_over(scale, d_value)).clip(0, 63).astype(np.uint8)
    o = np.rint(_over(offset, m_value)).clip(0, 63).astype(np.uint8)
    step = (d_value * s)[:, :, None]
    codes = np.rint(_over(sub + (m_value * o)[:, :, None], step)).clip(0, most).astype(np.uint8)
    packed = np.hstack([
        s[:, :4] | (s[:, 4:] >> 4 << 6), o[:, :4] | (o[:, 4:] >> 4 << 6),
        (s[:, 4:] & 15) | (o[:, 4:] << 4),
    ])  # fmt: skip
    return np.hstack([d, m, packed]), codes.reshape(-1, BLOCK)


def q4_k(x: Floats) -> Bytes:
    """f32 [n, 256] -> [n, 144]."""
    head, codes = _with_mins(x, 15)
    return np.hstack([head, _planes(codes, 4, 32)])


def q5_k(x: Floats) -> Bytes:
    """f32 [n, 256] -> [n, 176]."""
    head, codes = _with_mins(x, 31)
    return np.hstack([head, _planes(codes >> 4, 1, 32), _planes(codes & 15, 4, 32)])


def q6_k(x: Floats) -> Bytes:
    """f32 [n, 256] -> [n, 210]; the largest of a sub-block gets the code -32."""
    sub = x.reshape(-1, 16, 16)
    at = np.abs(sub).argmax(axis=2)[:, :, None]
    scale = np.take_along_axis(sub, at, axis=2)[:, :, 0] / np.float32(-32)
    d, d_value = _half(np.abs(scale).max(axis=1, keepdims=True) / 127)
    s = np.rint(_over(scale, d_value)).clip(-127, 127).astype(np.int8)
    step = (d_value * s)[:, :, None]
    codes = (np.rint(_over(sub, step)).clip(-32, 31) + 32).astype(np.uint8).reshape(-1, BLOCK)
    return np.hstack([
        _planes(codes & 15, 4, 64), _planes(codes >> 4, 2, 32), s.view(np.uint8), d,
    ])  # fmt: skip


ENCODERS = {"q4_k": q4_k, "q5_k": q5_k, "q6_k": q6_k}


def encode(name: str, x: Floats) -> Bytes:
    """f32 [n, k] -> rows of blocks of a k-quant; k whole blocks of 256."""
    blocks = np.ascontiguousarray(x, np.float32).reshape(-1, BLOCK)
    parts = [ENCODERS[name](blocks[i : i + _CHUNK]) for i in range(0, len(blocks), _CHUNK)]
    return np.concatenate(parts).reshape(len(x), -1)
