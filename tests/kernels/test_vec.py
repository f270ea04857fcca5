"""vec.h: every operation against NumPy, bit for bit, on every instruction set."""

from __future__ import annotations

import ctypes
import mmap
from fractions import Fraction

import ml_dtypes
import numpy as np
import pytest

from lanewise.kernels.recipes import fma
from tests.kernels.rows import driver, library, same_bits, sets

ISAS = sets()
UNARY = {
    "neg": (15, np.negative), "abs": (16, np.abs), "sqrt": (11, np.sqrt), "rint": (12, np.rint),
    "floor": (13, np.floor), "trunc": (14, np.trunc), "square": (9, np.square),
}  # fmt: skip
BINARY = {
    "add": (0, np.add), "sub": (1, np.subtract), "mul": (2, np.multiply), "div": (3, np.divide),
    "eq": (7, np.equal), "ne": (8, np.not_equal), "lt": (9, np.less), "le": (10, np.less_equal),
    "gt": (11, np.greater), "ge": (12, np.greater_equal),
}  # fmt: skip


def values(n: int, seed: int) -> np.ndarray:
    """Any bits, and every pair of the odd ones."""
    rng = np.random.default_rng(seed)
    x = rng.integers(0, 2**32, n, dtype=np.uint64).astype(np.uint32).view(np.float32)
    near = rng.uniform(-9, 9, n).astype(np.float32)
    half = np.round(rng.uniform(-9, 9, n)).astype(np.float32) + np.float32(0.5)
    big = (rng.integers(-(2**25), 2**25, n) / 2).astype(np.float32)
    return np.concatenate([x, near, half, big, np.tile(ODD, len(ODD))])


ODD = np.array(
    [0.0, -0.0, 1, -1, np.inf, -np.inf, np.nan, 2.0**-149, -(2.0**-149), 3.4e38, 0.5, -0.5,
     2.0**23],
    np.float32,
)  # fmt: skip


def call(isa: str, arity: int, which: int, *x: np.ndarray) -> np.ndarray:
    out = np.full_like(x[0], 7)
    a, b, c = (*x, *x, *x)[:3]
    driver(isa)(0, which, arity, a, b, c, out, len(a))
    return out


@pytest.mark.parametrize("isa", ISAS)
def test_arithmetic(isa: str) -> None:
    x, y = values(3001, 1), values(3001, 2)
    y[-len(ODD) ** 2 :] = np.repeat(ODD, len(ODD))
    with np.errstate(all="ignore"):
        for name, (which, f) in UNARY.items():
            assert same_bits(call(isa, 1, which, x), f(x)), name
        for name, (which, f) in BINARY.items():
            assert same_bits(call(isa, 3, which, x, y, x), f(x, y).astype(np.float32)), name


@pytest.mark.parametrize("isa", ISAS)
def test_min_and_max_carry_nan_and_order_the_zeros(isa: str) -> None:
    x, y = np.tile(ODD, len(ODD)), np.repeat(ODD, len(ODD))
    low, high = call(isa, 3, 4, x, y, x), call(isa, 3, 5, x, y, x)
    for a, b, lo, hi in zip(x, y, low, high, strict=True):
        if np.isnan(a) or np.isnan(b):
            assert np.isnan(lo) and np.isnan(hi)
            continue
        key = [(v, not np.signbit(v)) for v in (a, b)]
        assert (lo, not np.signbit(lo)) == min(key) and (hi, not np.signbit(hi)) == max(key)


@pytest.mark.parametrize("isa", ISAS)
def test_fma_rounds_once(isa: str) -> None:
    """Against exact rationals: random bits, near cancellations, subnormal results."""
    rng = np.random.default_rng(3)
    n = 400
    x, y, z = (values(n, s)[: 2 * n].copy() for s in (4, 5, 6))
    a = rng.uniform(1, 2, (2, 3000)).astype(np.float32)
    cancel = -(a[0] * a[1])
    tiny = (a * np.float32(2.0**-70)).astype(np.float32)
    x, y = np.concatenate([x, a[0], tiny[0]]), np.concatenate([y, a[1], tiny[1]])
    z = np.concatenate([z, cancel, np.full(3000, 2.0**-149, np.float32)])
    # a hair (2^-70) off the middle between two f32: rounding to f64 first would land on it
    e = np.float32(2.0**-23)
    k = np.arange(300, dtype=np.float32) * e
    x = np.concatenate([x, np.repeat([1 + e, -1 - e], 300).astype(np.float32) / 4096])
    y = np.concatenate([y, np.full(600, (1 - e) / 4096, np.float32)])
    z = np.concatenate([z, 1 + k, 1 + k])
    got = call(isa, 3, 6, x, y, z)
    assert same_bits(fma(x, y, z), got)
    for p, q, r, g in zip(x, y, z, got, strict=True):
        if not np.isfinite([p, q, r]).all():
            with np.errstate(all="ignore"):  # in f64 no finite product overflows
                special = np.float64(p) * np.float64(q) + np.float64(r)
            assert same_bits(np.array(special.astype(np.float32)), np.array(g))
            continue
        exact = Fraction(float(p)) * Fraction(float(q)) + Fraction(float(r))
        if abs(exact) >= Fraction(2) ** 128 - Fraction(2) ** 103:
            assert np.isinf(g)
            continue
        # nearest: no neighbour is closer, and a tie goes to the even one
        error = abs(Fraction(float(g)) - exact)
        for side in (np.float32(-np.inf), np.float32(np.inf)):
            other = np.nextafter(g, side)
            if np.isfinite(other):
                away = abs(Fraction(float(other)) - exact)
                assert error < away or (error == away and not int(g.view(np.uint32)) & 1)


@pytest.mark.parametrize("isa", ISAS)
def test_integer_conversions(isa: str) -> None:
    x = [0, 0.5, 1.5, 2.5, -0.5, -1.5, -2.7, 8388607.5, 2147483520, -2147483520]
    x = np.array(x, np.float32)
    assert (call(isa, 1, 17, x) == np.rint(x)).all()
    assert (call(isa, 1, 18, x) == np.trunc(x)).all()


@pytest.mark.parametrize("isa", ISAS)
def test_all_halves_widen(isa: str) -> None:
    bits = np.arange(65536, dtype=np.uint16)
    for which, kind in ((0, np.float16), (4, np.float16), (2, ml_dtypes.bfloat16),
                        (6, ml_dtypes.bfloat16)):  # fmt: skip
        out = np.zeros(65536 + 3, np.float32)
        source = np.concatenate([bits, bits[:3]])
        driver(isa)(1, which, source, out, len(source))
        assert same_bits(out, source.view(kind).astype(np.float32)), which


@pytest.mark.parametrize("isa", ISAS)
def test_floats_narrow_to_nearest_even(isa: str) -> None:
    """Every half, the midpoints between halves, a bit to either side, and any bits."""
    rng = np.random.default_rng(5)
    parts = [rng.integers(0, 2**32, 20_000, dtype=np.uint64).astype(np.uint32)]
    with np.errstate(all="ignore"):
        for kind in (np.float16, ml_dtypes.bfloat16):
            h = np.arange(65536, dtype=np.uint16).view(kind).astype(np.float32)
            h = h[np.isfinite(h)]
            h.sort()
            middle = ((h[1:].astype(np.float64) + h[:-1]) / 2).astype(np.float32)
            parts += [p.view(np.uint32) + np.uint32(d) for p in (h, middle)
                      for d in (0, 1, 2**32 - 1)]  # fmt: skip
    x = np.concatenate(parts).view(np.float32)
    with np.errstate(all="ignore"):
        for which, kind in ((1, np.float16), (5, np.float16), (3, ml_dtypes.bfloat16),
                            (7, ml_dtypes.bfloat16)):  # fmt: skip
            out = np.zeros(len(x), np.uint16)
            driver(isa)(1, which, x, out, len(x))
            wide = out.view(kind).astype(np.float32)
            assert same_bits(wide, x.astype(kind).astype(np.float32)), which


F8 = ((0, ml_dtypes.float8_e4m3fn), (2, ml_dtypes.float8_e5m2))  # vectors; scalars are 4 more


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize(("which", "kind"), F8)
def test_all_bytes_widen(isa: str, which: int, kind: type) -> None:
    source = np.arange(256 + 5, dtype=np.uint32).astype(np.uint8)  # the last vector is partial
    for helper in (which, which + 4):
        out = np.zeros(len(source), np.float32)
        driver(isa)(13, helper, source, out, len(source))
        assert same_bits(out, source.view(kind).astype(np.float32)), helper
        assert (np.signbit(out) == (source >= 128))[~np.isnan(out)].all()


def narrowing(kind: type) -> np.ndarray:
    """f32 that may round wrongly: every half, the middles between neighbouring codes, their
    neighbours in f32, what overflows, any bits."""
    rng = np.random.default_rng(9)
    codes = np.arange(256, dtype=np.uint8).view(kind).astype(np.float32)
    codes = np.unique(codes[np.isfinite(codes)])
    step = codes[-1] - codes[-2]
    beyond = np.array([codes[-1] + step, codes[-1] + step / 2, codes[0] - step / 2], np.float32)
    near = np.concatenate([codes, (codes[1:] + codes[:-1]) / 2, beyond])
    with np.errstate(all="ignore"):
        half = np.arange(65536, dtype=np.uint16).view(np.float16).astype(np.float32)
    huge = np.array([1e30, -1e30, 3.4e38, 2.0**-149, -(2.0**-126)], np.float32)
    random = rng.integers(0, 2**32, 20_003, dtype=np.uint64).astype(np.uint32).view(np.float32)
    sides = [np.nextafter(near, np.float32(s), dtype=np.float32) for s in (-np.inf, np.inf)]
    return np.concatenate([half, near, *sides, ODD, huge, random])


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize(("which", "kind"), F8)
def test_floats_narrow_to_bytes(isa: str, which: int, kind: type) -> None:
    x = narrowing(kind)
    with np.errstate(all="ignore"):
        want = x.astype(kind)
    for helper in (which + 1, which + 5):
        out = np.zeros(len(x), np.uint8)
        driver(isa)(13, helper, x, out, len(x))
        nan = np.isnan(want.astype(np.float32))
        assert (out == want.view(np.uint8))[~nan].all(), helper
        assert np.isnan(out.view(kind).astype(np.float32))[nan].all(), helper


@pytest.mark.parametrize(("which", "kind"), F8)
def test_partial_stores_of_bytes_write_no_more(which: int, kind: type) -> None:
    for isa in ISAS:
        for n in range(1, 20):
            x, out = np.full(n, 1.5, np.float32), np.full(64, 9, np.uint8)
            driver(isa)(13, which + 1, x, out, n)
            assert (out[:n].view(kind) == 1.5).all() and (out[n:] == 9).all()


@pytest.mark.parametrize("isa", [i for i in ISAS if i != "qemu"])
def test_partial_loads_stay_inside(isa: str) -> None:
    """The array ends where its page of memory ends, and what follows may not be read."""
    lanes = driver(isa)(12)
    page = mmap.PAGESIZE
    area = mmap.mmap(-1, 2 * page)
    base = ctypes.addressof(ctypes.c_char.from_buffer(area))
    protect = ctypes.CDLL(None).mprotect
    assert protect(ctypes.c_void_p(base + page), ctypes.c_size_t(page), 0) == 0
    n = 32
    x = np.frombuffer(area, np.float32, n, page - 4 * n)
    x.flags.writeable or x.setflags(write=True)
    x[:] = np.arange(1, n + 1)
    out = np.full((lanes + 1, 2, lanes), 9, np.float32)
    block = (ctypes.c_uint64 * 3)(base + page - 4 * n, out.ctypes.data, n)
    library(isa).lw_drive(ctypes.c_int64(2), block)
    for k in range(lanes + 1):
        assert list(out[k, 0]) == [*x[n - k :], *[0] * (lanes - k)]
        assert list(out[k, 1]) == [*[2] * k, *[9] * (lanes - k)]
