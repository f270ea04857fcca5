"""Rotary frequencies of contexts longer than a model was trained on, and tables of angles.

A factor divides the frequency of one pair of channels.  Three published schemes, each as factors
that `rope(factors=)` or `rope_table` takes:

    linear   every frequency by the same factor (position interpolation)
    llama3   low frequencies by the factor, high ones not at all, a ramp over wavelengths between
    yarn     the same by a ramp over channels; angles' cosines and sines grow by a magnitude
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lanewise.errors import UsageError, call_site

KINDS = ("linear", "llama3", "yarn")


def rope_factors(
    kind: str, rotary_dim: int, base: float = 10000.0, *, factor: float, original: int = 8192,
    low: float = 1.0, high: float = 4.0, fast: float = 32.0, slow: float = 1.0,
) -> tuple[NDArray[np.float32], float]:  # fmt: skip
    """(factors f32 [rotary_dim / 2], magnitude) of a scheme: "linear", "llama3" or "yarn".

    ``original``: positions that the model was trained on.  llama3: wavelengths above original /
    ``low`` are divided, below original / ``high`` are not.  yarn: channels that turn more than
    ``fast`` times over the original context are not divided, less than ``slow`` times are.

    The magnitude (1 but for yarn: 0.1 ln(factor) + 1) belongs on cosines and sines: give it to
    `rope_table`, or multiply attention's scale by its square.  Raises UsageError ``usage.rope``.
    """
    half = _half(rotary_dim)
    for value in (factor, base, original, low, high, fast, slow):
        _number(value)
    sound = all(math.isfinite(v) for v in (factor, base, low, high, fast, slow))
    if kind not in KINDS:
        raise _bad(f"kind is {kind!r}", f"one of: {', '.join(KINDS)}")
    if not sound or factor < 1 or base <= 1 or original < 1 or low >= high or slow >= fast:
        raise _bad("a number is out of range", "factor >= 1, base > 1, original >= 1, low < high, "
                   "slow < fast, all finite")  # fmt: skip
    i = np.arange(half)
    frequency = base ** (-2.0 * i / rotary_dim)
    if kind == "linear":
        return np.full(half, factor, np.float32), 1.0
    if kind == "llama3":
        turns = original * frequency / (2 * math.pi)
        kept = np.clip((turns - low) / (high - low), 0, 1)
        return (1 / ((1 - kept) / factor + kept)).astype(np.float32), 1.0

    def channel(turns: float) -> float:
        """The channel that turns so often over the original context."""
        return rotary_dim * math.log(original / (turns * 2 * math.pi)) / (2 * math.log(base))

    first = max(math.floor(channel(fast)), 0)
    last = min(math.ceil(channel(slow)), rotary_dim - 1)
    divided = np.clip((i - first) / max(last - first, 0.001), 0, 1)
    factors = 1 / (divided / factor + 1 - divided)
    return factors.astype(np.float32), 0.1 * math.log(factor) + 1


def rope_table(
    positions: int, rotary_dim: int, base: float = 10000.0, factors: Any = None,
    magnitude: float = 1.0,
) -> NDArray[np.float32]:  # fmt: skip
    """f32 [positions, rotary_dim]: cosines, then sines, of p / (base^(2i/rotary_dim) factor_i),
    times ``magnitude``; ``factors`` [rotary_dim / 2] as `rope_factors` gives them, or a
    checkpoint.  Raises UsageError ``usage.rope``."""
    half = _half(rotary_dim)
    if not isinstance(positions, int | np.integer) or isinstance(positions, bool) or positions < 1:
        raise _bad(f"positions is {positions!r}", "how many: an integer from 1")
    if not _number(base) > 0 or not math.isfinite(_number(magnitude)):
        raise _bad(f"base is {base!r}, magnitude {magnitude!r}", "a base above 0, a finite "
                   "magnitude")  # fmt: skip
    frequency = base ** (-2.0 * np.arange(half) / rotary_dim)
    if factors is not None:
        if isinstance(factors, tuple) and len(factors) == 2:
            raise _bad("factors is a pair", "factors, magnitude = rope_factors(...), and "
                       "rope_table(..., factors=factors, magnitude=magnitude)")  # fmt: skip
        try:
            divisors = np.asarray(factors, np.float64)
        except (TypeError, ValueError):
            raise _bad(f"factors is {factors!r}", f"{half} positive numbers") from None
        if divisors.shape != (half,) or not (divisors > 0).all():
            raise _bad(f"factors of shape {divisors.shape}", f"{half} positive numbers")
        frequency = frequency / divisors
    angles = np.arange(positions)[:, None] * frequency
    table = np.concatenate([np.cos(angles), np.sin(angles)], 1) * magnitude
    return table.astype(np.float32)


def _number(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float | np.number):
        raise _bad(f"a number is {value!r}", "an integer or a float")
    return float(value)


def _half(rotary_dim: int) -> int:
    if not isinstance(rotary_dim, int) or rotary_dim < 2 or rotary_dim % 2:
        raise _bad(f"rotary_dim is {rotary_dim!r}", "an even number from 2")
    return rotary_dim // 2


def _bad(what: str, remedy: str) -> UsageError:
    return UsageError("usage.rope", what, place=call_site(), remedy=remedy)
