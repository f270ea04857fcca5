"""NumPy models of the row kernels: sums, norms, rope, attention, sampling; bit for bit.

Laws: f32 throughout, one rounding per operation, orders as docs/recipes.md fixes them.  Written
from the recipes, not from the kernels; speed does not matter here.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from lanewise.kernels.recipes import F32, fma
from lanewise.kernels.recipes_math import exp, tanh

U32 = npt.NDArray[np.uint32]
_f = np.float32

SUM_PIECE = 512
"""Elements of a piece of a sum."""
LANES = 32
PAGE = 64
"""Positions of a page, and of a block of attention."""
PIECE = 256
"""Positions of a piece of attention."""
NO_TOKEN = 0xFFFFFFFF


def sums(x: F32) -> np.float32:
    """The Sums recipe over a vector [n]."""
    total = _f(0)
    for at in range(0, len(x), SUM_PIECE):
        piece = np.zeros(SUM_PIECE, np.float32)
        piece[: len(x[at : at + SUM_PIECE])] = x[at : at + SUM_PIECE]
        lanes = np.zeros(LANES, np.float32)
        for row in piece.reshape(-1, LANES):
            lanes = lanes + row
        while len(lanes) > 1:
            half = len(lanes) // 2
            lanes = lanes[:half] + lanes[half:]
        total = total + lanes[0]
    return total


def _inverse_root(mean: np.float32, eps: float) -> np.float32:
    return _f(1) / np.sqrt(mean + _f(eps))


def rms_norm(x: F32, gain: F32 | None, eps: float) -> F32:
    """[width] -> [width]: (x * r) * gain."""
    y = x * _inverse_root(sums(x * x) / _f(len(x)), eps)
    return y if gain is None else y * gain


def layer_norm(x: F32, gain: F32 | None, bias: F32 | None, eps: float) -> F32:
    """[width] -> [width]: ((x - mean) * r) * gain + bias."""
    d = np.asarray(x - sums(x) / _f(len(x)), np.float32)
    y = d * _inverse_root(sums(d * d) / _f(len(x)), eps)
    y = y if gain is None else y * gain
    return y if bias is None else y + bias


def softmax(x: F32) -> F32:
    """[n] -> [n]: e / Sums(e), e = exp(x - max)."""
    e = exp(x - np.max(x))
    return e / sums(e)


def rope(x: F32, table: F32, style: str) -> F32:
    """One head [d]; table [rotary]: cosines, then sines; style "half" or "interleaved"."""
    h = len(table) // 2
    c, s = table[:h], table[h:]
    pairs = {"half": (slice(0, h), slice(h, 2 * h)), "interleaved": (slice(0, 2 * h, 2),
             slice(1, 2 * h, 2))}  # fmt: skip
    first, second = pairs[style]
    a, b = x[first], x[second]
    out = x.copy()
    out[first], out[second] = a * c - b * s, b * c + a * s
    return out


@dataclass(frozen=True)
class Partial:
    """(max, sum, output) of some pieces, for one query head."""

    m: np.float32
    total: np.float32
    out: F32


def attention_piece(
    q: F32, k: F32, v: F32, seen: npt.NDArray[np.bool_], scale: float, softcap: float
) -> Partial:
    """One query head over the 256 slots of a piece: q [d], k and v [256, d], seen [256]."""
    chain = np.zeros(PIECE, np.float32)
    for d in range(len(q)):
        chain = fma(q[d], k[:, d], chain)
    score = chain * _f(scale)
    if softcap > 0:
        score = _f(softcap) * tanh(score / _f(softcap))
    m = np.max(score[seen])
    p = np.where(seen, exp(np.asarray(score - m, np.float32)), _f(0)).astype(np.float32)
    out = np.zeros(len(q), np.float32)
    for j in np.flatnonzero(seen):
        out = fma(p[j], v[j], out)
    return Partial(m, sums(p), out)


def attention_merge(a: Partial, b: Partial) -> Partial:
    """Two neighbours, a before b."""
    m = np.maximum(a.m, b.m)
    ea, eb = (exp(np.array([x - m], np.float32))[0] for x in (a.m, b.m))
    total = fma(b.total, eb, a.total * ea)
    return Partial(m, _f(total), fma(b.out, eb, a.out * ea))


def attention_head(
    q: F32, k: F32, v: F32, position: int, scale: float, softcap: float = 0.0, window: int = 0,
    sink: float | None = None,
) -> F32:  # fmt: skip
    """One query head [d] over k and v [positions, d] of its kv head, widened to f32."""
    first = max(0, position - window + 1) if window else 0
    padded = -(-(position + 1) // PIECE) * PIECE
    kk, vv = np.zeros((padded, len(q)), np.float32), np.zeros((padded, len(q)), np.float32)
    kk[: position + 1], vv[: position + 1] = k[: position + 1], v[: position + 1]
    j = np.arange(padded)
    seen = (j >= first) & (j <= position)
    state: Partial | None = None
    with np.errstate(all="ignore"):
        for at in range(first // PIECE * PIECE, padded, PIECE):
            part = slice(at, at + PIECE)
            piece = attention_piece(q, kk[part], vv[part], seen[part], scale, softcap)
            state = piece if state is None else attention_merge(state, piece)
        assert state is not None
        if sink is not None:
            state = attention_merge(state, Partial(_f(sink), _f(1), np.zeros_like(state.out)))
        return state.out / state.total + _f(0)


def sample(
    logits: F32, temperature: float, top_k: int, top_p: float, min_p: float, draw: float
) -> int:
    """The token of one row [n]; see docs/recipes.md."""
    if not len(logits) or np.isnan(logits).any() or np.max(logits) == np.inf:
        return NO_TOKEN
    best = int(np.argmax(logits))
    if not temperature > 0:
        return best
    if np.max(logits) == -np.inf:
        return NO_TOKEN
    with np.errstate(all="ignore"):
        p = softmax(logits * (_f(1) / _f(temperature)))
    if np.isnan(p[best]):
        return best
    order = np.lexsort((np.arange(len(p)), -p))
    keep = np.ones(len(p), bool)
    if 0 < top_k < len(p):
        keep[order[top_k:]] = False
    if top_p < 1:
        bound = _f(top_p) * sums(np.where(keep, p, _f(0)).astype(np.float32))
        kept = order[keep[order]]
        running = np.cumsum(p[kept], dtype=np.float32)
        keep[kept[1:][~(running[:-1] < bound)]] = False
    keep &= ~(p < _f(min_p if min_p < 1 else 1) * np.max(p))
    held = _f(min(max(draw, 0), 1 - 2.0**-24)) if draw == draw else _f(0)
    running = np.cumsum(np.where(keep, p, _f(0)), dtype=np.float32)
    return int(np.argmax(running > held * running[-1]))
