"""The stream of draws that a seed gives: a value, so that copies share nothing.

Laws: the draw of a step depends on the seed and the step alone; it is a multiple of 2^-24 below
1, exact in f32.  A sequence that skips a step shifts no later draw.
"""

from __future__ import annotations

from dataclasses import dataclass
from numbers import Integral
from typing import Final

from lanewise.errors import UsageError, call_site

_MASK: Final = (1 << 64) - 1
_GOLDEN: Final = 0x9E3779B97F4A7C15


def _finalize(z: int) -> int:
    """The output function of splitmix64 (Steele, Lea, Flood: OOPSLA 2014), on 64 bits."""
    z ^= z >> 30
    z = z * 0xBF58476D1CE4E5B9 & _MASK
    z ^= z >> 27
    z = z * 0x94D049BB133111EB & _MASK
    return z ^ z >> 31


def _integer(name: str, value: object) -> None:
    if type(value) is not int and (isinstance(value, bool) or not isinstance(value, Integral)):
        raise UsageError("usage.option", f"{name} is {value!r}", place=call_site(),
                         remedy="an integer")  # fmt: skip


@dataclass(frozen=True, slots=True)
class Stream:
    """Reproducible draws: `seed` is any integer, taken modulo 2^64.  Raises UsageError
    ``usage.option`` for a seed, or a step, that is no integer."""

    seed: int

    def __post_init__(self) -> None:
        _integer("seed", self.seed)

    def draw(self, step: int) -> float:
        """The draw of a step, in [0, 1): a multiple of 2^-24, exact in f32."""
        _integer("step", step)
        return (_finalize((int(self.seed) + int(step) * _GOLDEN) & _MASK) >> 40) / (1 << 24)

    @staticmethod
    def derive(root: int, sequence: int) -> Stream:
        """The stream of one of many sequences under one root seed."""
        return Stream(_finalize((root + (sequence + 1) * _GOLDEN) & _MASK))
