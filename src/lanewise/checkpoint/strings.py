"""Arrays of length-prefixed strings: find them fast, decode them late.

A GGUF string is a u64 length and that many bytes; the start of string i + 1 is known only from
string i, and a vocabulary has hundreds of thousands.  Laws: the chain of starts is followed
exactly, whatever the bytes; NumPy only proposes (positions followed by seven zero bytes, which is
how a length under 256 looks), and a proposal counts if it is where the chain says.
"""

from __future__ import annotations

import struct

import numpy as np
from numpy.typing import NDArray

from lanewise.strings import Strings, starts_of

# Bytes looked at in one go; after a failed proposal few again, and so many strings are walked one
# by one before NumPy is asked: hostile bytes then cost what a plain loop costs.
_SMALLEST, _LARGEST = 1 << 12, 1 << 18
_WALK = 512
_CHUNK = 1 << 13  # strings decoded in one go, so that little memory is needed beside the result
_LENGTH = struct.Struct("<Q")


class Cut(Exception):
    """The array runs past the end of the bytes; ``index`` says in which string."""

    def __init__(self, index: int) -> None:
        self.index = index
        super().__init__(index)


def starts(data: NDArray[np.uint8], at: int, count: int) -> NDArray[np.int64]:
    """Positions of ``count`` strings from ``at`` on: int64 [count + 1], the last is the end.

    Raises `Cut` if one does not fit into ``data``.
    """
    out = np.empty(count + 1, np.int64)
    done = 0
    window = _SMALLEST
    while done < count:
        found, whole = _proposed(data, at, window)
        found = found[: count - done]
        if len(found):
            out[done : done + len(found)] = found
            done += len(found)
            last = int(found[-1])
            at = last + 8 + int(data[last])
        if whole:
            window = min(window * 4, _LARGEST)
        elif done < count:
            window = _SMALLEST
            at, done = _walk(data, at, out, done, min(count, done + _WALK))
    if at > len(data):
        raise Cut(count - 1)
    out[count] = at
    return out


def _proposed(data: NDArray[np.uint8], at: int, size: int) -> tuple[NDArray[np.int64], bool]:
    """Starts of the strings from ``at`` on, as far as proposals follow each other, and whether
    that was to the end of the window."""
    window = data[at : at + size]
    zero = window == 0
    two = zero[:-1] & zero[1:]
    four = two[:-2] & two[2:]
    seven = four[:-3] & four[3:]
    candidates = np.flatnonzero(seven[1:])
    if not len(candidates) or candidates[0]:
        return candidates[:0], False
    follow = candidates + 8 + window[candidates]
    broken = np.flatnonzero(candidates[1:] != follow[:-1])
    good = int(broken[0]) + 1 if len(broken) else len(candidates)
    return candidates[:good] + at, not len(broken)


def _walk(
    data: NDArray[np.uint8], at: int, out: NDArray[np.int64], done: int, stop: int
) -> tuple[int, int]:
    view = data.data
    read, end = _LENGTH.unpack_from, len(view) - 8
    for i in range(done, stop):
        if at > end:
            raise Cut(i)
        out[i] = at
        at += 8 + read(view, at)[0]
    return at, stop


def decode(data: NDArray[np.uint8], positions: NDArray[np.int64]) -> Strings:
    """The strings at ``positions`` (as `starts` gives them), copied.

    Raises UnicodeDecodeError; its ``reason`` names the string.
    """
    lengths = np.diff(positions) - 8
    parts = [
        _plain(data, positions[first : first + _CHUNK + 1], first)
        for first in range(0, len(lengths), _CHUNK)
    ]
    return Strings(b"".join(parts), starts_of(lengths))


def _plain(data: NDArray[np.uint8], positions: NDArray[np.int64], number: int) -> bytes:
    """The bytes of some strings, the first of them ``number``, a zero byte after each."""
    first, last = int(positions[0]), int(positions[-1])
    region = data[first:last].copy()
    begin = positions[:-1] - first
    # The length before each string becomes a single zero byte.
    keep = np.ones(len(region), bool)
    for i in range(7):
        keep[begin + i] = False
    region[begin + 7] = 0
    joined = region[keep].tobytes()
    try:
        joined.decode("utf-8")
    except UnicodeDecodeError:
        _refuse(data, positions, number)
    return joined[1:] + b"\0"


def _refuse(data: NDArray[np.uint8], positions: NDArray[np.int64], number: int) -> None:
    for i, (begin, end) in enumerate(zip(positions[:-1] + 8, positions[1:], strict=True), number):
        try:
            data[begin:end].tobytes().decode("utf-8")
        except UnicodeDecodeError as error:
            error.reason = f"{error.reason} (string {i})"
            raise
