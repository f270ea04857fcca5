"""Sampling options, checked by name, and the stream of draws that a seed gives.

The k-th generated token of a request uses `Stream(seed).draw(k)`: one draw a token, whatever the
options, so that equal seeds give equal text from any chunking, batch or thread count.
"""

from __future__ import annotations

import math
import os
from dataclasses import dataclass
from numbers import Integral, Real
from typing import Final

from lanewise.errors import LanewiseError, UsageError, collect
from lanewise.runtime.stream import Stream
from lanewise.settings import MIN_TEMPERATURE

MAX_TEMPERATURE: Final = 1e30  # an f32, like everything that the sampler takes
MAX_SEED: Final = (1 << 63) - 1
MAX_TOKENS: Final = 1 << 31

__all__ = [
    "MAX_SEED", "MAX_TEMPERATURE", "MAX_TOKENS", "MIN_TEMPERATURE", "Sampling", "Stream",
    "check_count", "option_error",
]


@dataclass(frozen=True, slots=True)
class Sampling:
    """How the next token is chosen: temperature (0 = the most likely), then top-k (0 = off),
    top-p (1 = off), min-p (0 = off), then one draw."""

    temperature: float = 0.8
    top_k: int = 40
    top_p: float = 0.95
    min_p: float = 0.05
    seed: int = 0

    @staticmethod
    def checked(
        temperature: float, top_k: int, top_p: float, min_p: float, seed: int | None
    ) -> Sampling:
        """The options as a record; UsageError "usage.option" names each that is out of range
        (all are collected).  A seed of None is drawn from the system."""
        t, p, m = _number(temperature), _number(top_p), _number(min_p)
        checks = (
            ("temperature", temperature, t == 0 or MIN_TEMPERATURE <= t <= MAX_TEMPERATURE,
             f"0 (the most likely token), or from {MIN_TEMPERATURE} to 1e30"),
            ("top_k", top_k, _is_int(top_k) and 0 <= top_k < 1 << 32, "0 (off) to 2^32 - 1"),
            ("top_p", top_p, 0 < p <= 1, "above 0, up to 1 (off)"),
            ("min_p", min_p, 0 <= m <= 1, "0 (off) to 1"),
            ("seed", seed, seed is None or (_is_int(seed) and 0 <= seed <= MAX_SEED),
             "0 to 2^63 - 1, or None"),
        )
        collect([option_error(name, value, want) for name, value, good, want in checks if not good])
        if seed is None:
            seed = int.from_bytes(os.urandom(4), "little")
        return Sampling(t, int(top_k), p, m, int(seed))


def _is_int(value: object) -> bool:
    """An int, or one of NumPy's; no bool."""
    return isinstance(value, Integral) and not isinstance(value, bool)


def _number(value: object) -> float:
    """A float of a number, also NumPy's; NaN of everything else (NaN fails every range)."""
    if isinstance(value, bool) or not isinstance(value, Real):
        return math.nan
    try:
        return float(value)
    except OverflowError:
        return math.nan


def option_error(name: str, value: object, want: str) -> LanewiseError:
    """The refusal of one option: its name, its value, its range."""
    return UsageError(
        "usage.option", f"{value!r} is not possible", place=name, remedy=f"give {want}"
    )


def check_count(name: str, value: object, low: int, high: int) -> int:
    """An integer option within [low, high], as an int; UsageError "usage.option" otherwise."""
    number = int(value) if isinstance(value, Integral) and not isinstance(value, bool) else low - 1
    if not low <= number <= high:
        raise option_error(name, value, f"from {low} to {high}")
    return number
