"""The activation recipes against float64 and exact integer reasoning."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from lanewise.errors import UsageError
from lanewise.quant.activations import GROUP, LIMITS, dequantise, join, quantise, split

RECIPES = sorted(LIMITS)
finite = st.floats(width=32, allow_nan=False, allow_infinity=False)
groups = hnp.arrays(np.float32, (2, 64), elements=finite)


def half_even(value: Fraction) -> int:
    return round(value)  # Fraction rounds half to even, exactly


def model(group: np.ndarray, limit: int) -> tuple[list[int], np.float32]:
    """The recipe for one finite group, one element at a time, f32 steps made from fractions."""
    largest = max(abs(Fraction(float(x))) for x in group)
    with np.errstate(under="ignore"):
        # numpy's f64 -> f32 conversion of a correctly rounded f64 quotient could round twice;
        # an f32 / f32 quotient rounded through f64 does not (f64 has over twice the bits).
        s = np.float32(float(largest) / limit)
    if float(s) < 2.0**-126:
        return [0] * len(group), np.float32(0)
    out = []
    for x in group:
        quotient = np.float32(float(x) / float(s))
        out.append(half_even(Fraction(float(quotient))))
    return out, s


@pytest.mark.parametrize("recipe", RECIPES)
@given(x=groups)
@settings(max_examples=150, deadline=None)
def test_equals_the_model(recipe, x):
    v, s = quantise(x, recipe)
    assert v.dtype == np.int32 and v.shape == (2, 64)
    assert s.dtype == np.float32 and s.shape == (2, 2)
    for row in range(2):
        for g in range(2):
            at = slice(g * GROUP, (g + 1) * GROUP)
            want_v, want_s = model(x[row, at], LIMITS[recipe])
            assert s[row, g] == want_s
            assert v[row, at].tolist() == want_v


@pytest.mark.parametrize("recipe", RECIPES)
@given(x=groups, shrink=st.integers(0, 149))
@settings(max_examples=150, deadline=None)
def test_within_the_limit_and_half_a_step(recipe, x, shrink):
    x = np.ldexp(x, -shrink).astype(np.float32)
    v, s = quantise(x, recipe)
    assert np.abs(v).max() <= LIMITS[recipe]
    error = np.abs(v.reshape(2, 2, GROUP) * s.astype(np.float64)[..., None] - x.reshape(2, 2, -1))
    step = np.maximum(s.astype(np.float64), 2.0**-126 * (LIMITS[recipe] + 1) * 2)[..., None]
    assert (error <= step * (0.5 + LIMITS[recipe] * 2.0**-23)).all()
    np.testing.assert_array_equal(np.sign(v) * np.sign(x) >= 0, True)


@given(v=hnp.arrays(np.int32, (64,), elements=st.integers(-16256, 16256)))
def test_split_and_join(v):
    hi, lo = split(v)
    assert hi.dtype == lo.dtype == np.int8
    assert lo.min() >= -64 and lo.max() <= 63 and np.abs(hi.astype(int)).max() <= 127
    np.testing.assert_array_equal(join(hi, lo), v)


def test_split_every_value():
    v = np.arange(-16256, 16257, dtype=np.int32)
    hi, lo = split(v)
    np.testing.assert_array_equal(hi.astype(np.int64) * 128 + lo, v)
    assert (lo >= -64).all() and (lo <= 63).all()


def test_by_hand():
    x = np.zeros((1, 32), np.float32)
    x[0, :5] = [127, -127, 0.5, 1.5, -2.5]
    v, s = quantise(x, "int8")
    assert s[0, 0] == 1
    assert v[0, :6].tolist() == [127, -127, 0, 2, -2, 0]  # ties to even
    x[0, 0] = 16256
    v, s = quantise(x, "int8x2")
    assert s[0, 0] == 1 and v[0, :5].tolist() == [16256, -127, 0, 2, -2]


def test_division_is_not_a_reciprocal():
    """Somewhere x / s and x * (1 / s) round to different codes: the recipe divides."""
    x = np.random.default_rng(0).standard_normal((512, 64)).astype(np.float32)
    v, s = quantise(x, "int8x2")
    by_reciprocal = np.rint(x.reshape(512, 2, 32) * (np.float32(1) / s)[..., None])
    assert (by_reciprocal.astype(np.int32) != v.reshape(512, 2, 32)).any()


@pytest.mark.parametrize("recipe", RECIPES)
def test_the_ends(recipe):
    limit = LIMITS[recipe]
    x = np.zeros((6, 32), np.float32)
    x[1] = -0.0
    x[2, 3] = np.float32(2.0**-126) * limit  # the smallest usable scale
    x[3, 3] = np.float32(2.0**-127) * limit  # its scale is subnormal
    x[4, 3] = 1e-45
    x[5, :2] = [np.finfo(np.float32).max, -np.finfo(np.float32).max]
    v, s = quantise(x, recipe)
    assert s[:2].tolist() == [[0], [0]] and not np.signbit(s).any()
    assert s[2, 0] == 2.0**-126 and v[2, 3] == limit
    assert s[3:5].tolist() == [[0], [0]] and (v[3:5] == 0).all()
    assert v[5, :3].tolist() == [limit, -limit, 0] and np.isfinite(s[5, 0])


@pytest.mark.parametrize("recipe", RECIPES)
def test_what_is_not_finite_spreads(recipe):
    x = np.ones((3, 64), np.float32)
    x[0, 5] = np.inf
    x[1, 5], x[1, 6] = -np.inf, np.nan
    x[2, 40] = np.array([0xFFC00001], np.uint32).view(np.float32)[0]
    v, s = quantise(x, recipe)
    bits = s.view(np.uint32)
    assert bits[0, 0] == bits[1, 0] == bits[2, 1] == 0x7FC00000
    assert np.isfinite(s[0, 1]) and np.isfinite(s[1, 1]) and np.isfinite(s[2, 0])
    assert (v[0, :32] == 0).all() and (v[1, :32] == 0).all() and (v[2, 32:] == 0).all()
    assert (v[0, 32:] == LIMITS[recipe]).all() and (v[2, :32] == LIMITS[recipe]).all()
    assert np.isnan(dequantise(v, s)[0, :32]).all()  # never a finite number


def test_refusals():
    for x, recipe in (
        (np.zeros((1, 33), np.float32), "int8"),
        (np.zeros((1, 32), np.float64), "int8"),
        (np.zeros((1, 32), np.float32), "int4"),
        (np.float32(1).reshape(()), "int8"),
    ):
        with pytest.raises(UsageError) as caught:
            quantise(x, recipe)
        assert caught.value.code == "usage.activations"


def test_shapes():
    v, s = quantise(np.zeros((0, 32), np.float32), "int8")
    assert v.shape == (0, 32) and s.shape == (0, 1)
    v, s = quantise(np.ones((2, 3, 96), np.float32), "int8")
    assert v.shape == (2, 3, 96) and s.shape == (2, 3, 3)
    np.testing.assert_allclose(dequantise(v, s), 1, rtol=1e-6)
