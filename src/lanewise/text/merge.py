"""Merging neighbours: the one algorithm under both kinds of vocabulary.

A heap of candidate pairs, cheapest first, leftmost on a tie: n log n in the length of a word.
Byte-pair encoding keys a pair by its two sides (``glue`` is a blank) and pays its rank;
SentencePiece keys it by the piece that it makes (no glue) and pays the negated score.  Written in
Python: words repeat, and are remembered, so on running text it is as fast as a native one that
must first be built from the vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable
from heapq import heappop, heappush
from typing import Protocol

from lanewise.errors import TextError

_LONGEST = 1 << 20  # characters of one word
_REMEMBERED = 1 << 16  # words, each of up to 64 characters
_SHORT = 64


class Costs(Protocol):
    """What a pair costs, by its text."""

    def get(self, text: str, /) -> float | None: ...


def merge(
    word: str, costs: Costs, glue: str = "",
    made: dict[str, tuple[str, str]] | None = None,
) -> list[str]:
    """The pieces of ``word``: its characters, merged until no pair of neighbours has a cost.

    ``made`` gets, for each candidate by its text, the two sides that it would be made of.

    Raises `TextError` ``text.too_long``.
    """
    if len(word) > _LONGEST:
        raise too_long(len(word))
    parts, n = list(word), len(word)
    after, before = list(range(1, n + 1)), list(range(-1, n - 1))
    heap: list[tuple[float, int, int, int]] = []

    def offer(left: int, right: int) -> None:
        key = parts[left] + glue + parts[right]
        cost = costs.get(key)
        if cost is not None:
            heappush(heap, (cost, left, right, len(key)))
            if made is not None:
                made[key] = (parts[left], parts[right])

    for left in range(n - 1):
        offer(left, left + 1)
    while heap:
        _, left, right, size = heappop(heap)
        # Parts only grow or become empty: a pair of another length is not the pair that was meant.
        if not parts[right] or len(parts[left]) + len(glue) + len(parts[right]) != size:
            continue
        if not parts[left]:
            continue
        parts[left] += parts[right]
        parts[right] = ""
        following = after[left] = after[right]
        if following < n:
            before[following] = left
            offer(left, following)
        if before[left] >= 0:
            offer(before[left], left)
    return [part for part in parts if part]


class Words:
    """Remembers what words were merged to, up to a bound."""

    def __init__(self, work: Callable[[str], list[int]]) -> None:
        self._work = work
        self._known: dict[str, list[int]] = {}

    def ids(self, word: str) -> list[int]:
        """The ids of a word; not to be changed."""
        known = self._known.get(word)
        if known is None:
            known = self._work(word)
            if len(word) <= _SHORT:
                if len(self._known) >= _REMEMBERED:
                    self._known.clear()
                self._known[word] = known
        return known


def too_long(length: int) -> TextError:
    """The error for a stretch of text without a place to cut."""
    return TextError(
        "text.too_long",
        f"{length} characters that nothing divides into words",
        remedy="give the text in pieces",
    )


def unencodable(text: str, at: int) -> TextError:
    """The error for a character that the vocabulary has no token for."""
    return TextError(
        "text.unencodable",
        f"this vocabulary cannot say U+{ord(text[at]):04X}, character {at} of the text",
        remedy="remove or replace that character",
    )
