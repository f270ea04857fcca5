"""What is known of a text's tokens without encoding all of it: how many at least, and the first."""

from __future__ import annotations

import unicodedata

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from lanewise.text import bytelevel
from lanewise.text.pretokenizers import PRETOKENIZERS
from lanewise.text.tokenizer import Tokenizer
from tests.text.vocabularies import (
    CONTROLS,
    byte_level,
    byte_level_meta,
    sentence_piece,
    sentence_piece_meta,
)

ROWS = [row.names[0] for row in PRETOKENIZERS]
TOKENIZERS = {name: byte_level(name) for name in ROWS}
PIECES = sentence_piece()
UNKNOWNS = sentence_piece("unknown")


@pytest.mark.parametrize("name", [*ROWS, "spm", "unknown"])
@given(
    text=st.one_of(
        st.text(max_size=60),
        st.text(st.sampled_from("aĠ \u1100\u1161\u11a8\u0390\u0342日"), max_size=60),
        st.sampled_from([*CONTROLS, "    ", "aaaa", "thethe", "<think>", "\U0001f600" * 9]),
    ).map(lambda t: t * 7)
)
def test_no_text_has_fewer_tokens_than_the_least(name: str, text: str) -> None:
    tokenizer = {**TOKENIZERS, "spm": PIECES, "unknown": UNKNOWNS}[name]
    for parsed in (text, unicodedata.normalize("NFD", text)):
        for special in (False, True):
            count = len(tokenizer.encode(parsed, special=special, add_bos=False))
            assert tokenizer.least(parsed) <= count


def test_the_least_is_of_use() -> None:
    """A token is at most as long as the longest: "<|endoftext|>", 13 letters."""
    assert TOKENIZERS["smollm"].least("a" * 1300) == 100 == TOKENIZERS["qwen2"].least("a" * 1300)
    assert TOKENIZERS["qwen2"].least("é" * 1300) == 25  # composed, it might be a quarter
    assert UNKNOWNS.least("é" * 1300) == 0  # one unknown token, however many
    assert PIECES.least("") == 0


def with_names(meta: dict, *names: str) -> Tokenizer:
    """A tokenizer with user-defined tokens of these names."""
    for key, more in (("tokens", list(names)), ("token_type", [4] * len(names))):
        meta[f"tokenizer.ggml.{key}"] = [*meta[f"tokenizer.ggml.{key}"], *more]
    if "tokenizer.ggml.scores" in meta:
        meta["tokenizer.ggml.scores"] = [*meta["tokenizer.ggml.scores"], *(0.0 for _ in names)]
    return Tokenizer.from_metadata(meta)


NAMES = ("c<think>x y", "the cat", "\n\nab", "<thi", "a b a b a b")
NAMED = {
    **{name: with_names(byte_level_meta(name), *NAMES) for name in ROWS},
    **{name: with_names(sentence_piece_meta(name), *NAMES)
       for name in ("bytes", "unknown", "across words")},
}  # fmt: skip
BITS = ["a", "b ", " c", "the", "<think>", "<thi", "nk>", "x y", " cat", "\n", "é", "e\u0301",
        "1", "日", "\u0301", "a b a b", " " * 3, "zz " * 9]  # fmt: skip


@pytest.mark.parametrize("name", NAMED)
@given(
    before=st.lists(st.sampled_from(BITS), max_size=30),
    after=st.lists(st.sampled_from(BITS), max_size=9),
    part=st.integers(1, 12),
)
@example(before=["a", " c", "<think>"], after=["x y"], part=1)  # a name that begins before one
@example(before=["a b", "the", " c"], after=["at"], part=1)
@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_the_first_ids_are_those_of_any_longer_text(name, before, after, part, monkeypatch):
    monkeypatch.setattr(bytelevel.parts, "__defaults__", (part,))
    tokenizer, text = NAMED[name], "".join(before)
    wanted = tokenizer.encode(text + "".join(after))
    for count in range(len(wanted) + 1):
        found = tokenizer.first(text, count)
        assert found is None or found == wanted[:count]


def test_the_first_ids_are_found_in_the_start_of_a_text():
    text = "the quick brown fox jumps over the lazy dog\n" * 10_000
    for name in ("smollm", "qwen2", "bytes", "across words"):
        wanted = NAMED[name].encode(text)
        assert NAMED[name].first(text[:200_000], 5000) == wanted[:5000]
        assert NAMED[name].first(text[:40], 5000) is None
