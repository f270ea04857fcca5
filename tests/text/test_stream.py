"""Streams: the joined pieces equal decoding at once; stops are found wherever the text is cut."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lanewise.errors import TextError, UsageError
from lanewise.text.stream import Detokeniser, StopMatcher
from lanewise.text.tokenizer import Tokenizer
from tests.text.vocabularies import byte_ids, byte_level, sentence_piece

BYTES = byte_level()
PIECES = sentence_piece()


def stream(tokenizer: Tokenizer, ids: list[int], skip_special: bool, continued: bool) -> list[str]:
    detokeniser = Detokeniser(tokenizer, skip_special, continued)
    return [*(detokeniser.push(token) for token in ids), detokeniser.flush()]


@given(
    st.data(), st.sampled_from([BYTES, PIECES]), st.booleans(), st.booleans()
)
def test_stream_equals_decoding_at_once(
    data: st.DataObject, tokenizer: Tokenizer, skip_special: bool, continued: bool
) -> None:
    ids = data.draw(st.lists(st.integers(0, tokenizer.vocab_size - 1), max_size=30))
    pieces = stream(tokenizer, ids, skip_special, continued)
    assert "".join(pieces) == tokenizer.decode(ids, skip_special, continued)


@given(st.text(max_size=40))
def test_characters_come_whole(text: str) -> None:
    """Every byte its own token: a character comes with its last byte, none is torn."""
    pieces = stream(BYTES, byte_ids(text), True, False)
    assert "".join(pieces) == text and pieces[-1] == ""
    assert [piece for piece in pieces if piece] == list(text)


def test_half_a_character_is_held_then_replaced() -> None:
    euro = byte_ids("€")
    assert stream(BYTES, euro[:2], True, False) == ["", "", "�"]
    assert stream(BYTES, [*euro[:2], *byte_ids("a")], True, False) == ["", "", "�a", ""]


def test_an_id_out_of_range_changes_nothing() -> None:
    detokeniser = Detokeniser(BYTES)
    with pytest.raises(TextError, match=r"text\.id"):
        detokeniser.push(BYTES.vocab_size)
    assert detokeniser.push(*byte_ids("a")) == "a"


def first_end(text: str, stops: list[str]) -> tuple[str, str | None]:
    """The law of stops, slowly: the first place where one is complete, the longest there."""
    for end in range(1, len(text) + 1):
        done = [stop for stop in stops if text[:end].endswith(stop)]
        if done:
            stop = max(done, key=len)
            return text[: end - len(stop)], stop
    return text, None


SMALL = st.text("ab\n", max_size=14)


@given(st.lists(SMALL, max_size=8), st.lists(st.text("ab\n", min_size=1, max_size=6), max_size=4))
def test_stops_are_found_however_the_text_is_cut(parts: list[str], stops: list[str]) -> None:
    matcher = StopMatcher(stops)
    out, sent = "", ""
    for part in parts:
        out += matcher.push(part)
        sent += part
        given_now, stop = first_end(sent, stops)
        assert given_now.startswith(out) and matcher.stopped == stop
        if stop is None:  # what is held is the start of a stop, and no more than need be
            held = sent[len(out) :]
            starts = (s[:n] for s in stops for n in range(len(s)) if sent.endswith(s[:n]))
            assert held == max(starts, key=len, default="")
    out += matcher.flush()
    assert (out, matcher.stopped) == first_end(sent, stops)
    if matcher.stopped is not None:
        assert matcher.push("more") == "" == matcher.flush()


def test_stops_of_one_string_and_bad_ones() -> None:
    matcher = StopMatcher("###")
    assert [matcher.push(c) for c in "a#b##c###d"] == ["a", "", "#b", "", "", "##c", *[""] * 4]
    assert matcher.stopped == "###" and matcher.flush() == ""
    for bad in ([""], [1], ["a", None]):
        with pytest.raises(UsageError) as caught:
            StopMatcher(bad)  # type: ignore[arg-type]
        assert caught.value.code == "usage.stop"


def test_a_long_stop_costs_constant_time_a_character() -> None:
    stop = "a" * 20_000 + "b"
    matcher = StopMatcher([stop])
    text = ("a" * 19_999 + "c") * 3
    given_out = "".join(matcher.push(text[i : i + 100]) for i in range(0, len(text), 100))
    assert given_out + matcher.flush() == text
