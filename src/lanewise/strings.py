"""Many strings, kept as one stretch of bytes; and where a text is among them.

A vocabulary has hundreds of thousands of strings: as Python objects in a dict they take a hundred
bytes each, here about ten more than their text.  Laws: both are immutable; a text found is the
text asked for (hashes only propose); what they answer is what a list and a dict would.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, overload

import numpy as np
from numpy.typing import NDArray

_CHUNK = 1 << 12  # strings decoded in one go


class Strings(Sequence[str]):
    """Strings by number: ``data`` is the UTF-8 of all, a zero byte after each; string i begins at
    ``starts[i]``, [n + 1].

    >>> words = Strings.of(["one", "zwölf", ""])
    >>> words[1], len(words), words == ["one", "zwölf", ""]
    ('zwölf', 3, True)
    """

    __slots__ = ("data", "starts")

    def __init__(self, data: bytes, starts: NDArray[np.int64]) -> None:
        self.data = data
        narrow = starts.astype(np.uint32 if len(data) < 1 << 32 else np.uint64)
        self.starts = array(narrow.dtype.char, narrow.tobytes())

    @classmethod
    def of(cls, texts: Iterable[str]) -> Strings:
        """The strings of any iterable.  Raises UnicodeEncodeError where one is not Unicode."""
        encoded = [text.encode() for text in texts]
        return cls(b"".join(part + b"\0" for part in encoded), starts_of(map(len, encoded)))

    def __len__(self) -> int:
        return len(self.starts) - 1

    @overload
    def __getitem__(self, at: int) -> str: ...
    @overload
    def __getitem__(self, at: slice) -> list[str]: ...
    def __getitem__(self, at: int | slice) -> str | list[str]:
        if isinstance(at, slice):
            return [self[i] for i in range(*at.indices(len(self)))]
        if not -len(self) <= at < len(self):
            raise IndexError(f"string {at} of {len(self)}")
        at %= len(self)
        return self.data[self.starts[at] : self.starts[at + 1] - 1].decode()

    def __iter__(self) -> Iterator[str]:
        for texts in self.chunks():
            yield from texts

    @property
    def longest(self) -> int:
        """Bytes of the longest string."""
        ends = np.frombuffer(self.starts, self.starts.typecode)
        return int(np.diff(ends).max(initial=1)) - 1

    def chunks(self) -> Iterator[list[str]]:
        """All of them, some thousand at a time."""
        n, starts = len(self), self.starts
        for first in range(0, n, _CHUNK):
            last = min(first + _CHUNK, n)
            texts = self.data[starts[first] : starts[last] - 1].decode().split("\0")
            # A string that holds a zero byte itself was split.
            yield texts if len(texts) == last - first else [self[i] for i in range(first, last)]

    def __eq__(self, other: object) -> bool:
        """As a list's; of lists, too."""
        if isinstance(other, Strings):
            return self.data == other.data and self.starts == other.starts
        return isinstance(other, list) and list(self) == other

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"Strings({self[:8]}{', and more' if len(self) > 8 else ''})"


def starts_of(lengths: Iterable[int] | NDArray[Any]) -> NDArray[np.int64]:
    """Where strings of these lengths in bytes begin in `Strings.data`, and where the last ends."""
    if not isinstance(lengths, np.ndarray):
        lengths = np.fromiter(lengths, np.int64)
    starts = np.zeros(len(lengths) + 1, np.int64)
    np.cumsum(lengths + np.int64(1), out=starts[1:])
    return starts


class Index:
    """The number of a text among ``strings``: that of the first, or with ``last`` of the last.

    >>> Index(Strings.of(["a", "b", "a"])).get("a"), Index(Strings.of(["a"])).get("z")
    (0, None)
    """

    __slots__ = ("_buckets", "_data", "_flip", "_keys", "_shift", "_starts", "distinct", "strings")

    def __init__(self, strings: Strings, *, last: bool = False) -> None:
        self.strings = strings
        self._data, self._starts = strings.data, strings.starts
        n = len(strings)
        hashes = np.empty(n, np.int64)
        at = 0
        for texts in strings.chunks():
            hashes[at : at + len(texts)] = np.fromiter(map(hash, texts), np.int64, len(texts))
            at += len(texts)
        # Sorted by half the hash, then by number: one array is both.  The other way round for
        # `last`, so that the first that is found is always the one.
        self._flip = max(n - 1, 0) if last else 0
        numbers = np.arange(n, dtype=np.int64)
        keys = hashes.view(np.uint64) >> np.uint64(32) << np.uint64(32)
        keys |= np.abs(numbers - self._flip).view(np.uint64)
        keys.sort()
        bits = min(max(n // 2, 1).bit_length(), 31)
        self._shift = 32 - bits
        edges = np.arange((1 << bits) + 1, dtype=np.uint64)
        edges[:-1] <<= np.uint64(64 - bits)
        edges[-1] = np.iinfo(np.uint64).max
        self._buckets = array("I", np.searchsorted(keys, edges).astype(np.uint32).tobytes())
        self._keys = array("Q", keys.tobytes())
        self.distinct = n - self._repeated(hashes)
        """Texts that are not another's again."""

    def _repeated(self, hashes: NDArray[np.int64]) -> int:
        ordered = np.sort(hashes)
        twins = ordered[:-1][ordered[1:] == ordered[:-1]]
        if not len(twins):
            return 0
        alike = [self.strings[int(i)] for i in np.flatnonzero(np.isin(hashes, twins))]
        return len(alike) - len(set(alike))

    def get(self, text: str) -> int | None:
        """The number, or None."""
        half = hash(text) >> 32 & 0xFFFFFFFF
        bucket = half >> self._shift
        at, end = self._buckets[bucket : bucket + 2]
        while at < end:
            found = self._keys[at]
            if found >> 32 == half:
                number = abs((found & 0xFFFFFFFF) - self._flip)
                start, after = self._starts[number : number + 2]
                if self._data[start : after - 1] == text.encode():
                    return number
            at += 1
        return None

    def __getitem__(self, text: str) -> int:
        at = self.get(text)
        if at is None:
            raise KeyError(text)
        return at

    def __contains__(self, text: str) -> bool:
        return self.get(text) is not None
