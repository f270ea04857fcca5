"""Strings found by proposals equal those found by walking, on sound and on hostile bytes."""

from __future__ import annotations

import struct
import time

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lanewise.checkpoint import strings


def walk(data: bytes, at: int, count: int) -> list[int] | None:
    """The plain loop; None where it leaves the data."""
    out = []
    for _ in range(count):
        if at + 8 > len(data):
            return None
        out.append(at)
        at += 8 + struct.unpack_from("<Q", data, at)[0]
    return None if at > len(data) else [*out, at]


def check(data: bytes, at: int, count: int) -> None:
    buffer = np.frombuffer(data, np.uint8)
    want = walk(data, at, count)
    if want is None:
        with pytest.raises(strings.Cut):
            strings.starts(buffer, at, count)
    else:
        assert strings.starts(buffer, at, count).tolist() == want


texts = st.lists(st.one_of(st.text(max_size=12), st.just(""), st.text("\0a", max_size=9),
                           st.just("x" * 255), st.just("y" * 256)), max_size=60)  # fmt: skip


@given(texts, st.integers(0, 9), st.integers(1, 40), st.binary(max_size=9))
@settings(deadline=None, max_examples=150)
def test_round_trip(items, lead, times, after):
    items = items * times
    body = b"".join(struct.pack("<Q", len(s.encode())) + s.encode() for s in items)
    data = b"\1" * lead + body + after
    check(data, lead, len(items))
    found = strings.starts(np.frombuffer(data, np.uint8), lead, len(items))
    assert strings.decode(np.frombuffer(data, np.uint8), found) == items


@given(st.binary(max_size=400), st.integers(0, 20), st.integers(0, 40))
@settings(deadline=None, max_examples=200)
def test_any_bytes(data, at, count):
    check(data, min(at, len(data)), count)


@given(st.data())
@settings(deadline=None, max_examples=60)
def test_damaged_vocabularies(data):
    """Long enough for windows to grow, with a few bytes changed anywhere."""
    count = 3000
    raw = bytearray(b"".join(struct.pack("<Q", len(s)) + s for s in
                             (str(i * i).encode() for i in range(count))))  # fmt: skip
    for _ in range(data.draw(st.integers(0, 3))):
        raw[data.draw(st.integers(0, len(raw) - 1))] = data.draw(st.integers(0, 255))
    check(bytes(raw), 0, count)


def test_not_utf8_names_the_string():
    data = b"".join(struct.pack("<Q", 2) + s for s in (b"ok", b"\xff\xff", b"ok"))
    buffer = np.frombuffer(data, np.uint8)
    with pytest.raises(UnicodeDecodeError, match="string 1"):
        strings.decode(buffer, strings.starts(buffer, 0, 3))


def test_a_character_cut_in_two_is_not_joined():
    """Two strings that are UTF-8 only together are refused."""
    data = struct.pack("<Q", 1) + b"\xc3" + struct.pack("<Q", 1) + b"\x9f"
    buffer = np.frombuffer(data, np.uint8)
    with pytest.raises(UnicodeDecodeError):
        strings.decode(buffer, strings.starts(buffer, 0, 2))


@pytest.mark.parametrize("unit", [
    bytes(8), struct.pack("<Q", 1) + b"a" + bytes(8), struct.pack("<Q", 1) + b"\0",
    (struct.pack("<Q", 1) + b"a") * 70 + bytes(8), struct.pack("<Q", 256) + b"a" * 256,
], ids=["empty", "every second empty", "zeros", "every 71st empty", "long"])  # fmt: skip
def test_hostile_patterns_cost_no_more_than_a_loop(unit):
    data = unit * max(1, (4 << 20) // len(unit))
    buffer = np.frombuffer(data, np.uint8)
    count = len(walk(unit, 0, 71) or walk(unit, 0, 2) or [0, 0]) - 1
    count = count * (len(data) // len(unit))
    begin = time.process_time()
    found = strings.starts(buffer, 0, count)
    assert time.process_time() - begin < 2.0
    assert found[-1] == len(data) and len(found) == count + 1
