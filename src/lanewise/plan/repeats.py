"""Finding what repeats in a list of launches: equal layers are printed, and explained, once."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Run:
    """`count` repeats of the `length` items from `begin` on."""

    begin: int
    length: int
    count: int


def repeats(keys: Sequence[Hashable], longest: int = 64) -> list[Run]:
    """Cut a list into runs: greedily the repetition that covers most from each place on."""
    runs: list[Run] = []
    i = 0
    while i < len(keys):
        best = Run(i, 1, 1)
        for length in range(1, min(longest, (len(keys) - i) // 2) + 1):
            if keys[i] != keys[i + length]:
                continue
            count = _count(keys, i, length)
            if count > 1 and count * length > best.count * best.length:
                best = Run(i, length, count)
        runs.append(best)
        i += best.length * best.count
    return runs


def _count(keys: Sequence[Hashable], begin: int, length: int) -> int:
    first = keys[begin : begin + length]
    count = 1
    while keys[begin + count * length : begin + (count + 1) * length] == first:
        count += 1
    return count
