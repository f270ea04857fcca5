"""Scaled rotary frequencies: against the published formulas, one channel at a time, in float64."""

from __future__ import annotations

import math

import numpy as np
import pytest

from lanewise import tensor as t
from lanewise.errors import UsageError
from tests.tensor.support import compile, f32, run, u32


def llama3(rotary, base, factor, original, low, high):
    """Llama 3.1: wavelength by wavelength."""
    found = []
    for i in range(rotary // 2):
        frequency = base ** (-2 * i / rotary)
        wavelength = 2 * math.pi / frequency
        if wavelength < original / high:
            new = frequency
        elif wavelength > original / low:
            new = frequency / factor
        else:
            smooth = (original / wavelength - low) / (high - low)
            new = (1 - smooth) * frequency / factor + smooth * frequency
        found.append(frequency / new)
    return found


def yarn(rotary, base, factor, original, fast, slow):
    """YaRN, "NTK by parts": interpolated and extrapolated frequencies, mixed channel by channel."""
    ends = [rotary / 2 * math.log(original / (n * 2 * math.pi)) / math.log(base)
            for n in (fast, slow)]  # fmt: skip
    low, high = max(math.floor(ends[0]), 0), min(math.ceil(ends[1]), rotary - 1)
    found = []
    for i in range(rotary // 2):
        frequency = base ** (-2 * i / rotary)
        ramp = min(max((i - low) / (high - low), 0), 1)
        found.append(frequency / (frequency / factor * ramp + frequency * (1 - ramp)))
    return found


def test_llama3_factors():
    for rotary, base, factor, original in ((128, 500000.0, 8.0, 8192), (64, 500000.0, 32.0, 8192),
                                           (64, 1e4, 4.0, 2048)):  # fmt: skip
        factors, magnitude = t.rope_factors("llama3", rotary, base, factor=factor,
                                            original=original)  # fmt: skip
        want = llama3(rotary, base, factor, original, 1.0, 4.0)
        assert np.abs(factors / want - 1).max() < 1e-6 and magnitude == 1
        assert factors[0] == 1 and factors[-1] == factor and (np.diff(factors) >= 0).all()


def test_yarn_factors_and_magnitude():
    for rotary, base, factor, original in ((128, 1e6, 4.0, 32768), (64, 1e4, 16.0, 4096)):
        factors, magnitude = t.rope_factors("yarn", rotary, base, factor=factor, original=original)
        assert np.abs(factors / yarn(rotary, base, factor, original, 32, 1) - 1).max() < 1e-6
        assert magnitude == pytest.approx(0.1 * math.log(factor) + 1)
        assert factors[0] == 1 and factors[-1] == factor
    # as published for a factor of 4
    assert magnitude > 1 and t.rope_factors("yarn", 64, factor=4)[1] == pytest.approx(1.13862944)


def test_a_factor_of_one_is_nothing_and_linear_is_the_same_for_all():
    for kind in ("linear", "llama3", "yarn"):
        factors, magnitude = t.rope_factors(kind, 64, factor=1.0)
        assert (factors == 1).all() and magnitude == 1
    assert (t.rope_factors("linear", 64, factor=2.5)[0] == 2.5).all()


def test_what_is_out_of_range_is_refused():
    for wrong in (
        {"kind": "ntk"}, {"rotary_dim": 7}, {"factor": 0.5}, {"factor": math.nan}, {"base": 1.0},
        {"low": 4.0}, {"slow": 32.0}, {"original": 0},
    ):  # fmt: skip
        with pytest.raises(UsageError, match=r"usage.rope") as caught:
            t.rope_factors(**{"kind": "llama3", "rotary_dim": 8, "factor": 2.0, **wrong})
        assert caught.value.remedy and caught.value.place.startswith(__file__)
    for factors in ([1.0], [1, 2, 0, 3], np.ones((4, 1))):
        with pytest.raises(UsageError, match=r"usage.rope"):
            t.rope_table(4, 8, factors=factors)


@pytest.mark.parametrize("kind", ["linear", "llama3", "yarn"])
def test_factors_as_a_weight_turn_as_the_table_does(kind):
    """Bound at submission: another scaling needs no other plan."""
    base, rotary = 500.0, 8

    def record(b: t.Builder) -> None:
        b.scalar("base", "f32")
        x, at = b.input("x", t.f32, (4, 2, 10)), b.input("at", t.u32, (4,))
        factors = b.weight("factors", t.f32, (rotary // 2,))
        table = b.weight("table", t.f32, (300, rotary))
        for style in ("interleaved", "half"):
            b.output(style, t.rope(x, rotary, "base", at, factors=factors, style=style))
            b.output(f"{style}.table", t.rope(x, rotary, positions=at, table=table, style=style))

    x, at = f32(np.random.default_rng(0), 4, 2, 10), u32(0, 1, 77, 299)
    factors, magnitude = t.rope_factors(kind, rotary, base, factor=4.0, original=64)
    with compile(record) as plan:
        for divisors in (factors, np.ones(rotary // 2, np.float32)):
            table = t.rope_table(300, rotary, base, divisors)
            made = run(plan, x=x, at=at, table=table, factors=divisors, base=base)
            frequency = base ** (-2 * np.arange(rotary // 2) / rotary) / divisors
            angle = at[:, None, None] * frequency.astype(np.float64)
            pair = x[..., :rotary].astype(np.float64).reshape(4, 2, rotary // 2, 2)
            turned = (pair[..., 0] + 1j * pair[..., 1]) * np.exp(1j * angle)
            want = np.stack([turned.real, turned.imag], -1).reshape(4, 2, rotary)
            assert np.abs(made["interleaved"][..., :rotary] - want).max() < 1e-6
            for style in ("interleaved", "half"):
                assert np.abs(made[style] - made[f"{style}.table"]).max() < 1e-6
    grown = t.rope_table(9, rotary, base, factors, magnitude)
    plain = t.rope_table(9, rotary, base, factors).astype(np.float64)
    assert np.abs(grown - plain * magnitude).max() < 1e-6
