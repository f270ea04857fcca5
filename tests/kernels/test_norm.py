"""Sums, norms, softmax, rope and cache writes: exact models, float64, every set, odd lengths."""

from __future__ import annotations

import math
from fractions import Fraction

import ml_dtypes
import numpy as np
import pytest

from lanewise.kernels import recipes_rows as models
from lanewise.quant import caches
from tests.kernels.rows import check_digest, driver, same_bits, sets

ISAS = sets()
LENGTHS = [1, 2, 3, 7, 8, 15, 16, 17, 31, 32, 33, 63, 64, 65, 511, 512, 513, 576, 1000, 1536, 2049]


def vector(n: int, seed: int, spread: float = 1.0) -> np.ndarray:
    return (np.random.default_rng(seed).standard_normal(n) * spread).astype(np.float32)


def reduce(isa: str, which: int, x: np.ndarray) -> np.float32:
    out = np.zeros(1, np.float32)
    driver(isa)(3, which, x, len(x), out)
    return out[0]


def row(isa: str, which: int, x: np.ndarray, gain: object = 0, bias: object = 0, eps: float = 0.0,
        inplace: bool = False) -> np.ndarray:  # fmt: skip
    out = x.copy() if inplace else np.full_like(x, 7)
    driver(isa)(4, which, out if inplace else x, gain, bias, eps, len(x), out)
    return out


@pytest.mark.parametrize("isa", ISAS)
def test_sums(isa: str) -> None:
    for n in LENGTHS:
        x = vector(n, n)
        assert same_bits(np.array(reduce(isa, 0, x)), np.array(models.sums(x)))
        assert same_bits(np.array(reduce(isa, 1, x)), np.array(models.sums(x * x)))
        assert reduce(isa, 2, x) == x.max()
        bound = 40 * 2.0**-24 * float(np.abs(x.astype(float)).sum())
        assert abs(float(reduce(isa, 0, x)) - math.fsum(x.astype(float))) <= bound
    assert reduce(isa, 0, np.zeros(0, np.float32)) == 0
    assert reduce(isa, 2, np.zeros(0, np.float32)) == -np.inf


@pytest.mark.parametrize("isa", ISAS)
def test_max_orders_zeros_and_carries_nan(isa: str) -> None:
    for n in (1, 5, 16, 33):
        x = np.full(n, -0.0, np.float32)
        assert np.signbit(reduce(isa, 2, x))
        x[n // 2] = 0
        assert not np.signbit(reduce(isa, 2, x))
        for place in {0, n // 2, n - 1}:
            y = x.copy()
            y[place] = np.nan
            assert np.isnan(reduce(isa, 2, y))
        assert reduce(isa, 2, np.full(n, -np.inf, np.float32)) == -np.inf


@pytest.mark.parametrize("isa", ISAS)
def test_norms(isa: str) -> None:
    for n in LENGTHS:
        x, gain, bias = vector(n, n, 3), vector(n, n + 1), vector(n, n + 2)
        wide = x.astype(np.float64)
        for eps in (1e-5, 1e-6):
            got = row(isa, 0, x, gain, eps=eps)
            assert same_bits(got, models.rms_norm(x, gain, eps))
            assert same_bits(got, row(isa, 0, x, gain, eps=eps, inplace=True))
            true = wide / np.sqrt(np.mean(wide**2) + eps) * gain
            assert np.allclose(got, true, rtol=2e-6, atol=1e-9)
            got = row(isa, 1, x, gain, bias, eps)
            assert same_bits(got, models.layer_norm(x, gain, bias, eps))
            c = wide - wide.mean()
            true = c / np.sqrt(np.mean(c * c) + eps) * gain + bias
            assert np.allclose(got, true, rtol=1e-5, atol=1e-5)
        assert same_bits(row(isa, 0, x, eps=1e-5), models.rms_norm(x, None, 1e-5))
        assert same_bits(row(isa, 1, x, eps=1e-5), models.layer_norm(x, None, None, 1e-5))


@pytest.mark.parametrize("isa", ISAS)
def test_softmax(isa: str) -> None:
    for n in LENGTHS:
        x = vector(n, n, 10)
        x[n // 2] = -np.inf if n > 1 else 0
        got = row(isa, 2, x)
        with np.errstate(all="ignore"):
            assert same_bits(got, models.softmax(x))
            e = np.exp(x.astype(np.float64) - x.max())
        # x - max rounds once: that costs half its last place, whatever exp does
        assert np.allclose(got, e / e.sum(), rtol=6e-6, atol=1e-30)
        assert same_bits(got, row(isa, 2, x, inplace=True))


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("style", ["half", "interleaved"])
def test_rope(isa: str, style: str) -> None:
    for d, rotary in ((64, 64), (128, 128), (64, 32), (80, 20), (6, 4), (2, 2), (5, 0)):
        x = vector(d, d)
        angle = np.random.default_rng(d).uniform(0, 6, rotary // 2)
        table = np.concatenate([np.cos(angle), np.sin(angle), [0]]).astype(np.float32)
        expected = models.rope(x, table[:rotary], style)
        for out in (np.full_like(x, 7), x.copy()):
            source = x if out[0] == 7 else out
            driver(isa)(5, int(style == "interleaved"), source, table, rotary, d, out)
            if isa != "qemu" or source is x:  # emulated buffers are copies: no aliasing there
                assert same_bits(out, expected)
        h = rotary // 2
        first = range(h) if style == "half" else range(0, rotary, 2)
        step = h if style == "half" else 1
        for i, f in enumerate(first):
            z = complex(x[f], x[f + step]) * complex(math.cos(angle[i]), math.sin(angle[i]))
            assert abs(z - complex(expected[f], expected[f + step])) < 1e-6


@pytest.mark.parametrize("isa", ISAS)
def test_cache_writes_touch_their_places_only(isa: str) -> None:
    heads, pages = 3, 4
    kinds = {0: np.float16, 1: np.float32, 2: np.float16, 3: np.float32,
             6: ml_dtypes.bfloat16, 7: ml_dtypes.bfloat16}  # fmt: skip
    for d, span in ((5, 64), (8, 16), (64, 64), (72, 32)):
        head = vector(d, d, 50)
        for which, dtype in kinds.items():
            keys = which in (0, 1, 6)
            shape = (pages, heads, d, span) if keys else (pages, heads, span, d)
            pool = np.full(shape, 3, dtype)
            driver(isa)(6, which, head, d, pool, heads, 1, 2, span - 1, span)
            expected = np.full(shape, 3, dtype)
            view = expected if keys else expected.transpose(0, 1, 3, 2)
            view[2, 1, :, span - 1] = head.astype(dtype)
            assert (pool.view(np.uint8) == expected.view(np.uint8)).all(), (d, which)


def halves(x: float) -> float:
    """The number of 11 bits nearest to x, ties to even: f16 within its normal range, exactly."""
    mantissa, exponent = math.frexp(x)
    return math.ldexp(round(math.ldexp(mantissa, 11)), exponent - 11)


@pytest.mark.parametrize("isa", ISAS)
def test_quantised_cache_writes(isa: str) -> None:
    """A head lands in its place, by the rule of quant/caches.py; whole, and by exact arithmetic."""
    heads, pages = 3, 4
    for d in (32, 64, 96):
        head = vector(d, d, 50)
        head[:32] *= {32: 1.0, 64: 1e-6, 96: 0.0}[d]  # a scale in range, a subnormal one, none
        codes, scales = caches.encode(head)
        for which, span in ((4, 64), (5, 64), (4, 16), (5, 32)):
            pool = np.full((pages, heads, d // 32 * 34 * span), 3, np.uint8)
            driver(isa)(6, which, head, d, pool, heads, 1, 2, span - 2, span)
            at = pool[2, 1, : span * d].view(np.int8)
            scale_at = pool[2, 1, span * d :].view(np.float16)
            at, scale_at = (
                (x.reshape(-1, span)[:, -2] if which == 4 else x.reshape(span, -1)[-2])
                for x in (at, scale_at)
            )
            assert np.array_equal(at, codes) and same_bits(scale_at.copy(), scales)
            at[:], scale_at.view(np.uint16)[:] = 3, 0x0303
            assert (pool == 3).all(), (d, which)


def test_quantised_cache_by_exact_arithmetic() -> None:
    x = vector(640, 7, 20)
    codes, scales = caches.encode(x)
    for g, scale in enumerate(scales):
        part = [Fraction(float(v)) for v in x[32 * g : 32 * g + 32]]
        top = float(np.float32(max(map(abs, part)) / 127))
        assert float(scale) == halves(top)
        for v, code in zip(part, codes[32 * g :], strict=False):
            off = abs(v / Fraction(float(scale)) - int(code))
            assert off <= Fraction(1, 2) + Fraction(1, 10**5)
    assert np.array_equal(caches.decode(codes, scales), codes * np.repeat(scales, 32).astype("f4"))
    assert np.abs(caches.decode(codes, scales) - x).max() < np.abs(x).max() / 250


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf, 9e6])
@pytest.mark.parametrize("isa", ISAS)
def test_a_quantised_group_that_is_not_finite_is_nan(isa: str, bad: float) -> None:
    head = vector(64, 1)
    head[40] = bad
    codes, scales = caches.encode(head)
    assert np.isfinite(scales[0]) and np.isnan(scales[1]) and not codes[32:].any()
    pool = np.zeros(64 * 68, np.uint8)
    driver(isa)(6, 5, head, 64, pool, 1, 0, 0, 0, 64)
    assert np.array_equal(pool[:64].view(np.int8), codes)
    assert np.array_equal(pool[64 * 64 : 64 * 64 + 4].view(np.uint16), scales.view(np.uint16))


def test_digests() -> None:
    x, g, b = vector(1536, 1, 3), vector(1536, 2), vector(1536, 3)
    check_digest("sums", *(np.array([models.sums(vector(n, n))]) for n in LENGTHS))
    check_digest("rms_norm", models.rms_norm(x, g, 1e-5))
    check_digest("layer_norm", models.layer_norm(x, g, b, 1e-5))
    check_digest("softmax", models.softmax(x))
    check_digest("rope.half", models.rope(x[:64], g[:64], "half"))
    check_digest("rope.interleaved", models.rope(x[:64], g[:64], "interleaved"))
