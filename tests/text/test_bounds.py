"""What is known of a text's tokens without encoding all of it: how many at least."""

from __future__ import annotations

import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lanewise.text.pretokenizers import PRETOKENIZERS
from tests.text.vocabularies import CONTROLS, byte_level, sentence_piece

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
