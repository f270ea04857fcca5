"""Packed strings answer what a list and a dict answer, and take a fraction of their memory."""

from __future__ import annotations

import tracemalloc

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lanewise import strings
from lanewise.strings import Index, Strings

texts = st.lists(st.one_of(st.sampled_from(["", "a", "b", "a\0b", "\0", "é", "a b", "𝄞"]),
                           st.text(max_size=6)), max_size=40)  # fmt: skip


@given(texts, st.text(max_size=3), st.integers(1, 300))
@settings(deadline=None, max_examples=80)
def test_like_a_list_and_a_dict(items, other, times):
    items = items + [f"{i}" for i in range(times)] + items
    packed = Strings.of(items)
    assert list(packed) == items == packed and len(packed) == len(items)
    assert [packed[i] for i in range(-len(items), len(items))] == items * 2
    assert packed[1:5] == items[1:5] and packed != [*items, "more"]
    with pytest.raises(IndexError):
        packed[len(items)]
    first, last = Index(packed), Index(packed, last=True)
    of_last = dict(zip(items, range(len(items)), strict=True))
    assert first.distinct == last.distinct == len(of_last)
    for text in {*items, other, other + "\0"}:
        assert first.get(text) == (items.index(text) if text in items else None)
        assert last.get(text) == of_last.get(text)
        assert (text in first) == (text in of_last)
    with pytest.raises(KeyError, match="no such"):
        first["no such"]


@pytest.mark.parametrize("code", [lambda text: 0, lambda text: -1, lambda text: len(text) << 32])
def test_equal_hashes_are_told_apart(monkeypatch, code):
    monkeypatch.setattr(strings, "hash", code, raising=False)
    items = [f"{i % 70}" for i in range(100)]
    index, last = Index(Strings.of(items)), Index(Strings.of(items), last=True)
    assert index.distinct == 70 and index.get("70") is None
    assert [index[t] for t in items] == [i % 70 for i in range(100)]
    assert [last[t] for t in items[:40]] == [*range(70, 100), *range(30, 40)]


def test_many_chunks_and_none():
    items = [f"word {i}" + "\0" * (i == 9000) for i in range(13_000)]
    index = Index(Strings.of(items))
    assert [index.get(t) for t in items] == list(range(13_000))
    empty = Index(Strings.of([]))
    assert empty.get("") is None and empty.distinct == 0 and list(empty.strings) == []


def test_half_a_surrogate_pair_is_refused():
    with pytest.raises(UnicodeEncodeError):
        Strings.of(["a", "\ud800"])


def test_memory():
    """A list and a dict of as many take over 150 bytes a string."""
    count = 60_000
    tracemalloc.start()
    index = Index(Strings.of(f"{i:x}" for i in range(count)))
    taken, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    text = sum(len(t) for t in index.strings)
    assert taken < text + 20 * count
