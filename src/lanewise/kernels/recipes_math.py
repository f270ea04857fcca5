"""NumPy models of math.h: the same f32 operations in the same order, so the same bits.

Laws: every array is float32; each operation rounds once; ``fma`` is exact.  The models are what
docs/recipes.md states, one function a row.  Only NaN payloads are left open.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from lanewise.kernels.recipes import F32, fma

_f = np.float32
_ONE, _TWO, _HALF, _INF = _f(1), _f(2), _f(0.5), _f(np.inf)


def _h(text: str) -> np.float32:
    value = float.fromhex(text)
    assert float(_f(value)) == value
    return _f(value)


def _table(text: str) -> tuple[np.float32, ...]:
    """Coefficients, the highest power first."""
    return tuple(_h(t) for t in text.split())


EXP = _table("0x1.6d75dap-10 0x1.123ad8p-7 0x1.5554c4p-5 0x1.555490p-3 0x1p-1")
INV_LN2, LN2, LN2_LOW = _h("0x1.715476p+0"), _h("0x1.62e430p-1"), _h("0x1.05c610p-29")
LOG = _table(
    "0x1.148440p-4 -0x1.de2948p-4 0x1.e6cd20p-4 -0x1.fc2434p-4 0x1.233aacp-3 -0x1.555c54p-3 "
    "0x1.99a47ep-3 -0x1.000006p-2 0x1.555548p-2"
)
TANH = _table(
    "0x1.1ace3ep-9 -0x1.0c895ep-7 0x1.63ad18p-6 -0x1.b9f220p-5 0x1.11107cp-3 -0x1.555554p-2"
)
ERF = _table(
    "0x1.4c344ep-14 -0x1.a50b0ep-11 0x1.542e10p-8 -0x1.b7fe90p-6 0x1.ce2d50p-4 -0x1.812740p-2 "
    "0x1.06eba8p-3"
)
MILLS = _table(
    "0x1.37cc5ap-11 0x1.ff4b0cp-11 -0x1.e9a574p-10 -0x1.bc3d60p-8 -0x1.f82bacp-12 "
    "0x1.2cd580p-5 0x1.d7d3d2p-6 -0x1.535bb2p-2 0x1.5845dcp-1"
)
NORMAL = _table(
    "0x1.02922ap-13 -0x1.3b38c8p-10 0x1.470026p-7 -0x1.1058e4p-4 0x1.988454p-2"
)
SIN = _table("0x1.7b20a6p-19 -0x1.a05636p-13 0x1.111172p-7 -0x1.555556p-3")
COS = _table("-0x1.352b4cp-22 0x1.a06ed6p-16 -0x1.6c175cp-10 0x1.555556p-5")
GELU = _table("0x1.988454p+0 0x1.2444f2p-4 -0x1.857936p-25 0x1.49b16ap-29")


def horner(c: tuple[np.float32, ...], x: F32) -> F32:
    """((c0 x + c1) x + c2) ..., an fma each."""
    p: npt.ArrayLike = np.full_like(x, c[0])
    for k in c[1:]:
        p = fma(p, x, k)
    return np.asarray(p, np.float32)


def scale2(p: F32, n: F32) -> F32:
    """p * 2^n, rounded once."""
    whole = np.where(np.isnan(n), 0, n).astype(np.int32)
    return np.where(np.isnan(n), n, np.ldexp(p.astype(np.float64), whole)).astype(np.float32)


def with_sign(a: F32, b: F32) -> F32:
    return np.copysign(a, b)


@dataclass(frozen=True)
class Exp:
    """exp as (p + low) * 2^n."""

    p: F32
    low: F32
    n: F32


def exp_split(x: F32, low: npt.ArrayLike = 0.0) -> Exp:
    x = np.where(x > 170, _f(170), x)
    x = np.where(x < -170, _f(-170), x)
    n = np.rint(x * INV_LN2)
    r = fma(n, LN2_LOW, fma(n, -LN2, x)) + np.asarray(low, np.float32)
    s = fma(r * r, horner(EXP, r), r)
    p = _ONE + s
    return Exp(p, np.asarray(s - (p - _ONE), np.float32), n)


def exp(x: F32) -> F32:
    e = exp_split(x)
    return scale2(e.p, e.n)


def log(x: F32) -> F32:
    tiny = x < _h("0x1p-126")
    y = np.where(tiny, x * _h("0x1p25"), x).astype(np.float32)
    b = y.view(np.int32)
    i = (b - np.int32(0x3F3504F3)) >> 23
    f = (b - (i << 23)).view(np.float32) - _ONE
    e = i.astype(np.float32) + np.where(tiny, _f(-25), _f(0))
    s = f * f
    t = fma(e, -LN2_LOW, (horner(LOG, f) * s) * f)
    t = fma(s, -_HALF, t)
    r = fma(e, LN2, f + t)
    r = np.where(x == _INF, _INF, r)
    r = np.where(x == 0, -_INF, r)
    r = np.where(x < 0, _f(np.nan), r)
    return np.where(np.isnan(x), x, r)


def tanh(x: F32) -> F32:
    a = np.abs(x)
    z = a * a
    small = fma(horner(TANH, z) * z, a, a)
    large = _ONE - _TWO / (exp(a + a) + _ONE)
    return with_sign(np.where(a < _f(0.625), small, large), x)


def times_sigmoid(value: F32, u: F32, low: npt.ArrayLike = 0.0) -> F32:
    negative = u < 0
    low = np.asarray(low, np.float32)
    e = exp_split(-np.abs(u), np.where(negative, low, -low))
    power = scale2(e.p, e.n)
    d = _ONE + power
    d_low = (power - (d - _ONE)) + scale2(e.low, e.n)
    top = value * e.p
    top_low = fma(value, e.low, fma(value, e.p, -top))
    top = np.where(negative, top, value)
    top_low = np.where(negative, top_low, _f(0))
    by = _ONE / d
    q = top * by
    rest = fma(-q, d, top) + fma(-q, d_low, top_low)
    q = np.where((np.abs(q) < _INF) & (q != 0), fma(rest, by, q), q)
    return scale2(q, np.where(negative, e.n, _f(0)))


def sigmoid(x: F32) -> F32:
    return times_sigmoid(np.full_like(x, 1), x)


def silu(x: F32) -> F32:
    held = np.where(x < -170, _f(-170), x)
    return times_sigmoid(held, held)


def gelu(x: F32) -> F32:
    a = np.where(x > 20, _f(20), x)
    a = np.where(a < -20, _f(-20), a)
    c0, c1, c0_low, c1_low = GELU
    z = a * a
    zl = fma(a, a, -z)
    t = c1 * z
    tl = fma(c1, zl, fma(c1_low, z, fma(c1, z, -t)))
    s = c0 + t
    back = s - c0
    sl = ((c0 - (s - back)) + (t - back) + tl) + c0_low
    w = a * s
    wl = fma(a, sl, fma(a, s, -w))
    return times_sigmoid(np.where(x < -20, _f(-20), x), w, wl)


def mills(y: F32) -> tuple[F32, F32]:
    """exp(y*y/2) * Phi(-y) as high + low."""
    d = y + _TWO
    d_low = y - (d - _TWO)
    t = _ONE / d
    t_low = t * fma(-t, d_low, fma(-t, d, _ONE))
    q = fma(t, _f(-4), _ONE)
    q_low = fma(t_low, _f(-4), fma(t, _f(-4), _ONE - q))
    c0, c1, c2, c3 = MILLS[8], MILLS[7], MILLS[6], MILLS[5]
    w = horner(MILLS[:8], q) * q
    high = c0 + w
    slope = fma(fma(_f(3) * c3, q, _TWO * c2), q, c1)
    low = fma(slope, q_low, w - (high - c0))
    top = np.asarray(high * t, np.float32)
    return top, fma(high, t_low, fma(low, t, fma(high, t, -top)))


def erf(x: F32) -> F32:
    a = np.abs(x)
    small = fma(horner(ERF, a * a), a, a)
    held = np.where(a > 5, _f(5), a)
    e = exp(-(held * held))
    large = fma(e * _f(-2), mills(held * _h("0x1.6a09e6p+0"))[0], _ONE)
    return with_sign(np.where(a < 1, small, large), x)


def gelu_erf(x: F32) -> F32:
    a = np.abs(x)
    y = np.where(a > 20, _f(20), a)
    z = y * y
    near = x * fma(with_sign(y, x), horner(NORMAL, z), _HALF)
    e = exp_split(z * -_HALF, fma(y, y, -z) * -_HALF)
    tail, tail_low = mills(y)
    right = x * fma(-scale2(e.p, e.n), tail, _ONE)
    b = y * tail
    b_low = fma(y, tail_low, fma(y, tail, -b))
    c = b * e.p
    c_low = fma(b, e.low, fma(b, e.p, -c))
    left = scale2(-(c + fma(b_low, e.p, c_low)), e.n)
    return np.where(a < _f(0.6875), near, np.where(x < 0, left, right))


def rsqrt(x: F32) -> F32:
    return np.asarray(_ONE / np.sqrt(x), np.float32)


def _turn(x: F32, quarter: int) -> F32:
    n = np.rint(x * _h("0x1.45f306p-1"))
    r = fma(n, _h("-0x1.921fb6p+0"), x)
    r = fma(n, _h("0x1.ee59dap-50"), fma(n, _h("0x1.777a5cp-25"), r))
    z = r * r
    s = fma(horner(SIN, z) * z, r, r)
    c = fma(z * z, horner(COS, z), fma(z, -_HALF, _ONE))
    inside = np.abs(x) <= 2.0**18
    q = np.where(inside, n, 0).astype(np.int32) + quarter
    y = np.where(q & 1, c, s)
    y = np.where(q & 2, -y, y)
    return np.where(inside, y, _f(np.nan))


def sin(x: F32) -> F32:
    return np.where(x == 0, x, _turn(x, 0))


def cos(x: F32) -> F32:
    return _turn(x, 1)


UNARY: dict[str, Callable[[F32], F32]] = {
    "exp": exp, "log": log, "tanh": tanh, "sigmoid": sigmoid, "silu": silu, "gelu": gelu,
    "gelu_erf": gelu_erf, "erf": erf, "rsqrt": rsqrt, "sin": sin, "cos": cos,
}  # fmt: skip
"""By name; each takes and gives float32 of any shape."""


def apply(name: str, x: npt.ArrayLike) -> F32:
    """One of UNARY, quietly: infinities and NaN are values here."""
    with np.errstate(all="ignore"):
        return np.asarray(UNARY[name](np.asarray(x, np.float32)), np.float32)
