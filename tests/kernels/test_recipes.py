"""The NumPy models against arithmetic that does not round: fractions and float64."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lanewise.kernels import recipes
from lanewise.quant import activations

BITS = st.integers(0, 2**32 - 1)


def from_bits(bits: int) -> np.float32:
    return np.array([bits], np.uint32).view(np.float32)[0]


def nearest(exact: Fraction) -> np.float32:
    """The f32 nearest to a fraction, ties to even, by comparing neighbours exactly."""
    with np.errstate(over="ignore"):
        guess = np.float32(float(exact))
        if not np.isfinite(guess):
            guess = np.copysign(np.finfo(np.float32).max, guess)
        down = np.nextafter(guess, np.float32(-np.inf))
        up = np.nextafter(guess, np.float32(np.inf))
    limit = Fraction(2) ** 128 - Fraction(2) ** 103  # from here on, to infinity
    if abs(exact) >= limit:
        return np.float32(np.inf if exact > 0 else -np.inf)
    choices = [c for c in (down, guess, up) if np.isfinite(c)]
    return min(choices, key=lambda c: (abs(Fraction(float(c)) - exact), int(c.view(np.uint32)) & 1))


@given(BITS, BITS, BITS)
@settings(max_examples=400, deadline=None)
def test_fma_rounds_once(a: int, b: int, c: int) -> None:
    x, y, z = from_bits(a), from_bits(b), from_bits(c)
    got = recipes.fma(x, y, z)
    if not (np.isfinite(x) and np.isfinite(y) and np.isfinite(z)):
        with np.errstate(all="ignore"):
            want = np.float32(np.float64(x) * np.float64(y) + np.float64(z))
        assert np.array_equal(got, want, equal_nan=True)
        return
    want = nearest(Fraction(float(x)) * Fraction(float(y)) + Fraction(float(z)))
    assert got == want and (want != 0 or got == 0)


@given(st.integers(1, 2**23), st.integers(1, 2**23), st.integers(-60, 60), st.booleans())
@settings(max_examples=400, deadline=None)
def test_fma_near_ties(m: int, n: int, shift: int, negative: bool) -> None:
    """Products whose tail decides a tie, where rounding twice goes wrong."""
    x, y = np.float32(2**23 + m), np.float32(2**23 + n)
    z = np.float32((-1.0 if negative else 1.0) * 2.0 ** (46 + shift))
    want = nearest(Fraction(float(x)) * Fraction(float(y)) + Fraction(float(z)))
    assert recipes.fma(x, y, z) == want


def test_rounding_twice_is_wrong() -> None:
    """1 + 2^-23 + 2^-24 - 2^-60 lies just below a tie; f64 takes it for the tie."""
    a, b = np.float32(2.0**-12 * (1 + 2.0**-18)), np.float32(2.0**-12 * (1 - 2.0**-18))
    c = np.float32(1 + 2.0**-23)
    assert np.float32(np.float64(a) * np.float64(b) + np.float64(c)) == np.float32(1 + 2.0**-22)
    assert recipes.fma(a, b, c) == c


@pytest.mark.parametrize("kind", ["int8", "int8x2"])
def test_quantize_agrees_with_quant(kind: str) -> None:
    """Two models of one recipe, written apart."""
    rng = np.random.default_rng(3)
    x = rng.integers(0, 2**32, (200, 64), dtype=np.uint64).astype(np.uint32).view(np.float32)
    x[50:] = (rng.standard_normal((150, 64)) * np.exp2(rng.integers(-150, 120, (150, 1)))).astype(
        np.float32
    )
    x[60] = 0
    got = recipes.quantize(x, kind)  # type: ignore[arg-type]
    v, s = activations.quantise(x, kind)
    assert np.array_equal(got.values, v)
    assert np.array_equal(got.scales, s, equal_nan=True)
    hi, lo = got.words()
    assert (128 * hi + lo == v).all() and (lo >= -64).all() and (lo <= 63).all()
    assert (np.abs(hi) <= 127).all()


@pytest.mark.parametrize("kind", ["int8", "int8x2"])
def test_quantize_is_within_half_a_step(kind: str) -> None:
    x = np.random.default_rng(4).standard_normal((20, 320)).astype(np.float32)
    q = recipes.quantize(x, kind)  # type: ignore[arg-type]
    step = np.repeat(q.scales.astype(np.float64), 32, axis=1)
    assert (np.abs(q.values * step - x) <= step * 0.502).all()
    assert np.abs(q.values).max() == recipes.LEVELS[kind]  # type: ignore[index]
