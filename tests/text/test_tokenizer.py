"""Tokenizers: the reference ids, SentencePiece's own, round trips, damage, long texts."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from lanewise.errors import TextError
from lanewise.text import bytelevel, merge, spm
from lanewise.text.pretokenizers import PRETOKENIZERS, find
from lanewise.text.tokenizer import Tokenizer, _Finder
from tests.text.vocabularies import (
    CONTROLS,
    GOLDEN,
    byte_ids,
    byte_level,
    byte_level_meta,
    sentence_piece,
    sentence_piece_meta,
)

REFERENCE = Path(__file__).parents[1] / "reference"
NAMES = sorted(name for row in PRETOKENIZERS for name in row.names)
ROWS = [row.names[0] for row in PRETOKENIZERS]
TOKENIZERS = {name: byte_level(name) for name in ROWS}
PIECES = sentence_piece()


def code_of(call: Any, *args: Any, **named: Any) -> TextError:
    with pytest.raises(TextError) as caught:
        call(*args, **named)
    return caught.value


# The demo model against ids that two other tokenizers agree on.


@pytest.mark.model
def test_reference_ids_of_nasty_texts(smollm2: tuple[dict[str, Any], Tokenizer]) -> None:
    cases = json.loads((REFERENCE / "smollm2_tokens.json").read_text())["cases"]
    assert len(cases) == 354
    for case in cases:
        assert smollm2[1].encode(case["text"]) == case["ids"], case["text"]
        assert smollm2[1].decode(case["ids"]) == case["text"]


@pytest.mark.model
def test_reference_ids_of_prompts(smollm2: tuple[dict[str, Any], Tokenizer]) -> None:
    tokenizer = smollm2[1]
    cases = json.loads((REFERENCE / "smollm2_greedy.json").read_text())["cases"]
    assert len(cases) == 12
    for case in cases.values():
        special = "messages" in case
        assert tokenizer.encode(case["text"], special=special) == case["prompt_ids"]
        assert tokenizer.decode(case["prompt_ids"]) == case["text"]
        assert tokenizer.decode(case["greedy_ids"], skip_special=True) == case["greedy_text"]


@pytest.mark.model
def test_the_demo_models_special_tokens(smollm2: tuple[dict[str, Any], Tokenizer]) -> None:
    tokenizer = smollm2[1]
    assert (tokenizer.vocab_size, tokenizer.bos, tokenizer.eos) == (49152, 1, 2)
    assert tokenizer.eog == {0, 2, 4} and tokenizer.notes == () and not tokenizer.add_bos
    assert [tokenizer.is_special(i) for i in (0, 16, 17)] == [True, True, False]
    # 21 bytes have no token: none may vanish from a text.
    error = code_of(tokenizer.encode, "né\x04")
    assert error.code == "text.unencodable" and "U+0004, character 2" in error.message


@pytest.mark.model
def test_our_own_reader_gives_the_same(
    smollm2: tuple[dict[str, Any], Tokenizer], smollm2_path: Path
) -> None:
    from lanewise.checkpoint.gguf import Gguf

    with Gguf(smollm2_path) as file:
        tokenizer = Tokenizer.from_metadata(file.metadata)
    text = "The <|im_end|> 1234 naïf\n"
    assert tokenizer.encode(text, special=True) == smollm2[1].encode(text, special=True)
    assert tokenizer.eog == smollm2[1].eog and tokenizer.notes == ()


# SentencePiece.


@pytest.mark.parametrize("name", GOLDEN)
def test_ids_equal_sentencepieces(name: str) -> None:
    tokenizer = sentence_piece(name)
    for text, ids in GOLDEN[name]["cases"]:
        assert tokenizer.encode(text, add_bos=False) == ids, text
        assert tokenizer.encode(text) == [1, *ids]
        if name != "unknown" and spm.SPACE not in text:
            assert tokenizer.decode(ids) == text


def test_cutting_changes_no_piece(monkeypatch: pytest.MonkeyPatch) -> None:
    """Long words are cut where no piece joins the sides; here every word is long."""
    monkeypatch.setattr(spm, "_LONG", 1)
    for name in GOLDEN:
        tokenizer = sentence_piece(name)
        for text, ids in GOLDEN[name]["cases"]:
            assert tokenizer.encode(text, add_bos=False) == ids, text


def test_unused_pieces_are_taken_apart() -> None:
    tokens = ["<unk>", "a", "b", "c", "ab", "abc"]
    meta = sentence_piece_meta(
        tokens=tokens, scores=[0.0, -4, -5, -6, -1, -2], token_type=[2, 1, 1, 1, 1, 5],
        bos_token_id=None, eos_token_id=None, add_space_prefix=False,
    )  # fmt: skip
    assert Tokenizer.from_metadata(meta).encode("abcab") == [4, 3, 4]
    meta["tokenizer.ggml.token_type"] = [2, 1, 1, 1, 5, 5]
    assert Tokenizer.from_metadata(meta).encode("abcab") == [1, 2, 3, 1, 2]
    assert Tokenizer.from_metadata(meta).encode("dd☃a") == [0, 1]
    meta["tokenizer.ggml.unknown_token_id"] = -1
    assert code_of(Tokenizer.from_metadata(meta).encode, "ad").code == "text.unencodable"


def test_a_blank_goes_before_text_and_after_control_tokens() -> None:
    a = PIECES.encode("the", add_bos=False)
    assert PIECES.encode("<s>the</s>the", special=True) == [1, *a, 2, *a]
    assert PIECES.decode([1, *a, *a]) == "<s> the the"
    assert PIECES.decode([*a, *a]) == "the the"
    assert PIECES.decode(a, continued=True) == " the"
    assert PIECES.decode([1, *a], skip_special=True) == "the"
    assert PIECES.encode("", add_bos=False) == []


def test_pieces_have_usual_special_ids() -> None:
    keys = ("unknown_token_id", "bos_token_id", "eos_token_id")
    tokenizer = sentence_piece(**dict.fromkeys(keys))
    assert (tokenizer.bos, tokenizer.eos, tokenizer.eog) == (1, 2, {2})
    for key, note in zip(keys, tokenizer.notes, strict=True):
        assert f"{key} is missing" in note
    assert sentence_piece(bos_token_id=2**32 - 1).bos is None


# Byte-level.


@pytest.mark.parametrize("name", ROWS)
@given(text=st.text(max_size=60))
def test_round_trip(name: str, text: str) -> None:
    tokenizer = TOKENIZERS[name]
    expected = text
    if find(name).nfc:
        import unicodedata

        expected = unicodedata.normalize("NFC", text)
    assert tokenizer.decode(tokenizer.encode(text, add_bos=False)) == expected


@given(text=st.text(max_size=60))
def test_round_trip_of_pieces(text: str) -> None:
    ids = PIECES.encode(text, add_bos=False)
    assert PIECES.decode(ids) == text.replace(spm.SPACE, " ")


def words(name: str, text: str) -> list[str]:
    """The words that a rule cuts the text into."""
    cutter = TOKENIZERS[name]._model._cutter  # type: ignore[attr-defined]
    return [word for word, _ in cutter.pre_tokenize_str(text)]


TEXT = "I'LL won't  pay 1234567, OK?!\n\n  camelCase=日本語\t№"


@pytest.mark.parametrize(("name", "expected"), [
    ("gpt-2", ["I", "'", "LL", " won", "'t", " ", " pay", " 1234567", ",", " OK", "?!", "\n\n ",
               " camelCase", "=", "日本語", "\t", "№"]),
    ("smollm", ["I", "'", "LL", " won", "'t", " ", " pay", " ", *"1234567", ",", " OK", "?!",
                "\n\n ", " camelCase", "=", "日本語", "\t", "№"]),
    ("llama-bpe", ["I", "'LL", " won", "'t", " ", " pay", " ", "123", "456", "7", ",", " OK",
                   "?!\n\n", " ", " camelCase", "=日本語", "\t", "№"]),
    ("qwen2", ["I", "'LL", " won", "'t", " ", " pay", " ", *"1234567", ",", " OK",
               "?!\n\n", " ", " camelCase", "=日本語", "\t", "№"]),
    ("gpt-4o", ["I'LL", " won't", " ", " pay", " ", "123", "456", "7", ",", " OK",
                "?!\n\n", " ", " camel", "Case", "=日本語", "\t", "№"]),
    ("tekken", ["I", "'LL", " won", "'t", " ", " pay", " ", *"1234567", ",", " OK",
                "?!\n\n", " ", " camel", "Case", "=日本語", "\t", "№"]),
    ("deepseek-v3", ["I", "'LL", " won", "'t", " ", " pay", " ", "123", "456", "7", ",", " OK",
                     "?!\n\n", " ", " camelCase", "=", "日本語", "\t", "№"]),
    ("deepseek-coder", ["I", "'", "LL", " won", "'", "t", " ", " pay", " ", *"1234567", ",", " OK",
                        "?!", "\n", "\n", " ", " camelCase", "=", "日本語", "\t", "№"]),
    ("falcon", ["I", "'", "LL", " won", "'", "t", " ", " pay", " ", "123", "456", "7", ",", " OK",
                "?!", "\n\n ", " camelCase", "=", "日本語", "\t", "№"]),
])  # fmt: skip
def test_words(name: str, expected: list[str]) -> None:
    assert "".join(words(name, TEXT)) == TEXT
    assert words(name, TEXT) == expected


@pytest.mark.parametrize("name", ROWS)
@given(text=st.text(st.sampled_from("aZé日1 \n\t'.!_\u0301"), max_size=60))
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_parts_change_no_word(name: str, text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Long texts go through in parts; here a part is three characters."""
    whole = TOKENIZERS[name].encode(text)
    with monkeypatch.context() as patch:
        patch.setattr(bytelevel.parts, "__defaults__", (3,))
        assert TOKENIZERS[name].encode(text) == whole


def test_composed_first() -> None:
    assert TOKENIZERS["qwen2"].encode("e\u0301") == byte_ids("é")
    assert TOKENIZERS["smollm"].encode("e\u0301") == byte_ids("e\u0301")


def test_whole_words_ignore_merges() -> None:
    """llama-bpe: a word that is a token needs no merges to it; a control token is no word."""
    meta = byte_level_meta("llama-bpe", add_bos_token=None)
    meta["tokenizer.ggml.tokens"] = [*meta["tokenizer.ggml.tokens"], "whole", "stop"]
    meta["tokenizer.ggml.token_type"] = [*meta["tokenizer.ggml.token_type"], 1, 3]
    tokenizer = Tokenizer.from_metadata(meta)
    assert tokenizer.encode("whole") == [1, tokenizer.id_of("whole")]
    assert tokenizer.encode("stop") == [1, *byte_ids("stop")]
    assert tokenizer.encode("stop", special=True)[1:] == [tokenizer.id_of("stop")]
    meta["tokenizer.ggml.pre"] = "gpt-2"
    assert Tokenizer.from_metadata(meta).encode("whole") == byte_ids("whole")


# Special tokens.


def test_special_tokens_are_parsed_on_request_only() -> None:
    tokenizer = byte_level()
    text = "<|im_start|>a<|im_end|><think>"
    think = tokenizer.id_of("<think>")
    plain = [*byte_ids("<|im_start|>a<|im_end|>"), think]  # user-defined ones are always found
    assert tokenizer.encode(text) == plain
    assert tokenizer.encode(text, special=True) == [1, *byte_ids("a"), 2, think]
    assert tokenizer.decode(plain) == text == tokenizer.decode([1, *byte_ids("a"), 2, think])
    assert tokenizer.decode([1, *byte_ids("a"), 2, think], skip_special=True) == "a<think>"
    assert [tokenizer.is_special(i) for i in range(5)] == [True, True, True, True, False]


def test_begin_of_text() -> None:
    tokenizer = byte_level(add_bos_token=True)
    a = byte_ids("a")
    assert tokenizer.add_bos
    assert tokenizer.encode("a") == [1, *a] == tokenizer.encode("a", special=True)
    assert tokenizer.encode("a", add_bos=False) == a
    assert tokenizer.encode("<|im_start|>a", special=True) == [1, *a]  # it begins so already
    assert tokenizer.encode("<|im_start|>a", special=True, add_bos=True) == [1, 1, *a]
    assert byte_level().encode("a", add_bos=True) == [1, *a]
    without = byte_level(bos_token_id=None, add_bos_token=True)
    assert without.encode("a") == a and not without.add_bos
    assert code_of(without.encode, "a", add_bos=True).code == "text.bos"
    assert byte_level("llama-bpe", add_bos_token=None).add_bos
    assert not byte_level("smollm", add_bos_token=None).add_bos


def test_ends_of_generation() -> None:
    assert byte_level().eog == {0, 2}
    assert byte_level(eot_token_id=1).eog == {0, 1, 2}
    assert byte_level(eos_token_id=2**32 - 1).eos is None
    tokens = [*byte_level_meta()["tokenizer.ggml.tokens"]]
    tokens[:4] = ["<|end|>", "<|return|>", "<|call|>", "</s>"]
    assert byte_level(tokens=tokens, eos_token_id=1).eog == {1, 2}
    kinds = [3] * 4 + [4] + [1] * (len(tokens) - 5)
    assert byte_level(tokens=tokens, token_type=kinds, eos_token_id=1).eog == {1, 2, 3}
    kinds[0:3] = [1, 1, 1]
    plain = byte_level(tokens=["<|im_end|>", *tokens[1:]], token_type=kinds)
    assert 0 in plain.eog and plain.is_special(0)
    assert any("'<|im_end|>' ends an answer" in note for note in plain.notes)


def test_phi3s_special_tokens_swallow_white_space() -> None:
    meta = {**byte_level_meta(), "general.name": "My Phi-3 mini"}
    ids = Tokenizer.from_metadata(meta).encode("<|im_end|> \n a<|endoftext|> b", special=True)
    assert ids == [2, *byte_ids("a"), 0, *byte_ids(" b")]


@given(st.text("ab<>|", max_size=30), st.lists(st.text("ab<>|", min_size=1), max_size=6))
def test_finder_takes_the_leftmost_then_longest(text: str, names: list[str]) -> None:
    finder = _Finder({name: i for i, name in enumerate(dict.fromkeys(names))})
    expected: list[str | int] = []
    plain, at = "", 0
    while at < len(text):
        here = [name for name in names if text.startswith(name, at)]
        if here:
            name = max(here, key=len)
            expected += [plain, list(dict.fromkeys(names)).index(name)] if plain else [
                list(dict.fromkeys(names)).index(name)
            ]
            plain, at = "", at + len(name)
        else:
            plain, at = plain + text[at], at + 1
    assert finder.split(text) == expected + ([plain] if plain else [])


# What is refused.


def test_texts_that_are_none() -> None:
    for tokenizer in (byte_level(), PIECES):
        assert code_of(tokenizer.encode, b"a").code == "text.type"
        assert code_of(tokenizer.encode, None).code == "text.type"
        error = code_of(tokenizer.encode, "ab\ud800")
        assert error.code == "text.unicode" and "character 2" in error.message
        for bad in (-1, tokenizer.vocab_size, 2**40):
            assert code_of(tokenizer.decode, [5, bad]).code == "text.id"
            assert code_of(tokenizer.is_special, bad).code == "text.id"


def test_an_unknown_rule_names_the_known() -> None:
    error = code_of(byte_level, "smolm")
    assert error.code == "text.pretokenizer" and "'smolm'" in error.message
    assert "near it: smollm" in error.remedy and "qwen2" in error.remedy


def test_a_missing_rule_is_reported() -> None:
    for missing in (None, ""):
        assert "default" in byte_level(pre=missing).notes[0]  # type: ignore[arg-type]


def test_kinds_of_vocabulary() -> None:
    for model in ("bert", "t5", "rwkv"):
        error = code_of(byte_level, model=model)
        assert error.code == "text.model" and "gpt2, llama" in error.remedy


@pytest.mark.parametrize("model", [None, "", "none", "no_vocab"])
@pytest.mark.parametrize("tokens", [None, ["a", "b"]])
def test_a_checkpoint_without_a_vocabulary(model: str | None, tokens: list[str] | None) -> None:
    error = code_of(lambda: byte_level(model=model, tokens=tokens))
    assert error.code == "text.model" and error.place == "tokenizer.ggml.model"
    assert "has no vocabulary" in error.message and "Lane.logits" in error.remedy


N = len(byte_level_meta()["tokenizer.ggml.tokens"])


@pytest.mark.parametrize(("key", "value"), [
    ("tokens", None),
    ("tokens", []),
    ("tokens", "abc"),
    ("tokens", 7),
    ("tokens", [b"a", b"b"]),
    ("tokens", ["a", 1]),
    ("tokens", ["a\ud800"] * N),
    ("merges", None),
    ("merges", [["a", "b"]]),
    ("merges", ["ab"]),
    ("merges", ["a b c"]),
    ("merges", [""]),
    ("merges", ["a b", "c"]),
    ("token_type", [1]),
    ("token_type", [1] * (N + 1)),
    ("token_type", [9] * N),
    ("token_type", [-1] * N),
    ("token_type", [1.0] * N),
    ("token_type", ["1"] * N),
    ("token_type", np.ones((N, 2), np.int32)),
    ("scores", [0.0]),
    ("scores", [float("nan")] * N),
    ("bos_token_id", N),
    ("bos_token_id", -2),
    ("bos_token_id", "1"),
    ("eos_token_id", 2**31),
    ("eos_token_id", 1.5),
    ("unknown_token_id", True),
    ("eot_token_id", N),
    ("add_bos_token", 1),
    ("add_space_prefix", "no"),
    ("model", 1),
    ("pre", ["smollm"]),
])  # fmt: skip
def test_damage_is_refused_by_key(key: str, value: Any) -> None:
    error = code_of(byte_level, **{key: value})
    assert error.code == "text.vocabulary" and error.place == f"tokenizer.ggml.{key}"
    assert error.remedy


def test_a_merge_that_makes_no_token_is_refused_where_it_is_used() -> None:
    tokenizer = byte_level(merges=["a b", "ab x", "zz a", " ", "ab", "a c d"])
    assert tokenizer.encode("ab") == [tokenizer.id_of("ab")]
    assert tokenizer.encode("zzacd") == byte_ids("zzacd")
    error = code_of(tokenizer.encode, "abx")
    assert error.place == "tokenizer.ggml.merges" and "'abx'" in error.message


@pytest.mark.parametrize(("key", "value"), [
    ("scores", None),
    ("scores", [0.0]),
    ("tokens", [f"<0x{i:02X}" for i in range(700)]),
])
def test_damage_of_pieces_is_refused_by_key(key: str, value: Any) -> None:
    error = code_of(sentence_piece, **{key: value})
    assert error.code == "text.vocabulary" and error.place == f"tokenizer.ggml.{key}"


JUNK = st.one_of(
    st.none(), st.integers(), st.floats(), st.text(max_size=5), st.binary(max_size=5),
    st.booleans(),
    st.lists(st.one_of(st.integers(-2, 300), st.text(max_size=3), st.floats()), max_size=5),
)  # fmt: skip


@given(st.data())
def test_damaged_metadata_ends_in_an_error_or_in_ids(data: st.DataObject) -> None:
    meta = data.draw(st.sampled_from([byte_level_meta(), sentence_piece_meta()]))
    for key in data.draw(st.lists(st.sampled_from(sorted(meta)), min_size=1, max_size=3)):
        value = meta[key]
        if isinstance(value, list) and value and data.draw(st.booleans()):
            value = list(value)
            i = data.draw(st.integers(0, len(value) - 1))
            new = {str: st.text(max_size=4), int: st.integers(-1, 7), float: st.floats()}
            value[i] = data.draw(new.get(type(value[i]), JUNK))
            meta[key] = value
        else:
            meta[key] = data.draw(JUNK)
    try:
        tokenizer = Tokenizer.from_metadata(meta)
        ids = tokenizer.encode("ab the <|im_end|> é", special=True)
    except TextError as error:
        assert error.code.startswith("text.")
        return
    assert all(0 <= i < tokenizer.vocab_size for i in ids)
    tokenizer.decode(ids)


def test_numpy_values_are_taken() -> None:
    meta = byte_level_meta()
    meta["tokenizer.ggml.token_type"] = np.array(meta["tokenizer.ggml.token_type"], np.int32)
    meta["tokenizer.ggml.bos_token_id"] = np.uint32(1)
    meta["tokenizer.ggml.add_bos_token"] = np.bool_(True)
    assert Tokenizer.from_metadata(meta).encode("a") == [1, *byte_ids("a")]


def test_tokens_of_one_text_are_reported() -> None:
    tokens = [*byte_level_meta()["tokenizer.ggml.tokens"]]
    tokens[-1] = tokens[-2]
    tokenizer = byte_level(tokens=tokens, merges=["a a"])
    assert tokenizer.encode("aa") == [tokens.index("aa")]
    assert "1 tokens have the text of an earlier one" in tokenizer.notes[0]


def test_bytes_of_tokens() -> None:
    tokenizer = byte_level()
    assert [tokenizer.token_bytes(i) for i in byte_ids("é")] == [b"\xc3", b"\xa9"]
    assert tokenizer.token_bytes(tokenizer.id_of("Ġthe")) == b" the"  # type: ignore[arg-type]
    assert tokenizer.token_bytes(0) == CONTROLS[0].encode()
    assert PIECES.token_bytes(3 + 0xE9) == b"\xe9"
    assert tokenizer.decode(byte_ids("é")[:1]) == "�"


# Long texts.

LONG = {
    "letters": "ab", "capitals": "AB", "mixed": "aB", "blanks": " ", "lines": "\n", "both": " \n",
    "digits": "1", "han": "日本", "marks": "!", "combining": "\u0301\u0323", "tabs": "\t x",
}  # fmt: skip


@pytest.mark.parametrize("name", ["smollm", "llama-bpe", "qwen2", "gpt-4o", "deepseek-llm", "spm"])
def test_long_texts_take_linear_time(name: str) -> None:
    """Eight times the text may take twice eight times as long, and no more (and half a second)."""
    tokenizer = PIECES if name == "spm" else TOKENIZERS[name]
    for what, unit in LONG.items():
        taken = []
        for length in (5_000, 40_000):
            text = unit * (length // len(unit))
            start = time.process_time()
            ids = tokenizer.encode(text, add_bos=False)
            taken.append(time.process_time() - start)
        assert ids and taken[1] < 16 * taken[0] + 0.5, (what, taken)


def test_texts_that_cannot_be_cut_have_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bytelevel, "_LONGEST", 100_000)
    monkeypatch.setattr(merge, "_LONGEST", 10_000)
    assert code_of(byte_level().encode, "a " * 60_000 + "1" * 200_000).code == "text.too_long"
    assert code_of(byte_level().encode, "a" * 20_000).code == "text.too_long"
    assert code_of(PIECES.encode, "ab" * 10_000).code == "text.too_long"
    text = "word " * 60_000
    assert byte_level().decode(byte_level().encode(text)) == text
    assert PIECES.decode(PIECES.encode(text, add_bos=False)) == text


def test_what_is_no_id_is_refused_by_name() -> None:
    tokenizer = TOKENIZERS[ROWS[0]]
    for ids, code in (
        (5, "text.type"), ("ab", "text.type"), (None, "text.type"), (["a"], "text.id"),
        ([1.5], "text.id"), ([True], "text.id"), ([-1], "text.id"), ([10**9], "text.id"),
    ):  # fmt: skip
        error = code_of(tokenizer.decode, ids)
        assert error.code == code and error.remedy
    assert tokenizer.decode(np.array(tokenizer.encode("a b"))) == "a b"
