"""Byte-level byte-pair encoding ("gpt2"), by the `tokenizers` library over our own tables.

Laws: the library gets the checkpoint's tokens and merges, nothing of its own conversion; a byte
that the vocabulary cannot say is refused, not dropped; long texts go through in parts cut where
every rule of `pretokenizers` cuts (a blank after an ASCII letter), so memory stays bounded.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

from lanewise.errors import TextError
from lanewise.text.pretokenizers import PreTokenizer
from lanewise.text.vocabulary import CONTROL, UNKNOWN, USER_DEFINED, Vocabulary, refuse

_PART = 1 << 16  # characters, about, of one call of the library (it takes 0.6 KB a character)
_LONGEST = 1 << 22  # characters of a part that cannot be cut
_CUT = re.compile(r"(?<=[A-Za-z])[ \n]")
_Result = TypeVar("_Result")


def _alphabet() -> list[str]:
    """The character that stands for each byte: itself if it prints, else one from U+0100 on.

    Published with GPT-2 (encoder.py, bytes_to_unicode).
    """
    printing = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = iter(range(0x100, 0x200))
    return [chr(byte if byte in printing else next(others)) for byte in range(256)]


ALPHABET = _alphabet()
_BYTES = {character: byte for byte, character in enumerate(ALPHABET)}


def library(call: Callable[[], _Result], code: str, place: str) -> _Result:
    """What ``call`` of the library gives; whatever it throws, a panic of it too, is a TextError."""
    try:
        return call()
    except BaseException as error:
        if isinstance(error, Exception) or type(error).__module__ == "pyo3_runtime":
            message = str(error)[:300] or type(error).__name__
            raise TextError(
                code, message, place=place, remedy="the checkpoint or the text is damaged"
            ) from error
        raise


class ByteLevel:
    """Text to ids and ids to bytes, for a byte-level vocabulary and one rule of cutting words.

    Raises `TextError` ``text.vocabulary``: merges that are missing or do not fit the tokens.
    """

    def __init__(self, vocabulary: Vocabulary, rule: PreTokenizer) -> None:
        from tokenizers import Regex, Tokenizer, normalizers, pre_tokenizers

        self._vocabulary = vocabulary
        self._nfc = normalizers.NFC() if rule.nfc else None
        model = _model(vocabulary, rule)
        cuts = [pre_tokenizers.Split(Regex(pattern), "isolated") for pattern in rule.patterns]
        to_bytes = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
        self._tokenizer = Tokenizer(model)
        self._tokenizer.pre_tokenizer = pre_tokenizers.Sequence([*cuts, to_bytes])
        missing = [byte for byte in range(256) if ALPHABET[byte] not in vocabulary.ids]
        self._missing = re.compile(b"[%s]" % re.escape(bytes(missing))) if missing else None

    def normal(self, text: str) -> str:
        """Text as user-defined tokens are looked for in it: as it is."""
        return text

    def encode(self, text: str) -> list[int]:
        """The ids of plain text.

        Raises `TextError` ``text.unencodable`` (a byte without a token), ``text.too_long``.
        """
        if self._nfc is not None:
            text = self._nfc.normalize_str(text)
        found = self._missing.search(text.encode()) if self._missing else None
        if found:
            raise unencodable(text, len(text.encode()[: found.start()].decode("utf-8", "ignore")))
        ids: list[int] = []
        for part in parts(text):
            ids += library(
                lambda part=part: self._tokenizer.encode(part, add_special_tokens=False),
                "text.encode", "text",
            ).ids  # fmt: skip
        return ids

    def token_bytes(self, token: int) -> bytes:
        """The bytes that a token stands for; those of its text where it is not of the alphabet."""
        text = self._vocabulary.tokens[token]
        if self._vocabulary.kinds[token] not in (CONTROL, UNKNOWN, USER_DEFINED):
            try:
                return bytes(map(_BYTES.__getitem__, text))
            except KeyError:
                pass
        return text.encode()


def unencodable(text: str, at: int) -> TextError:
    """The error for a character that the vocabulary has no token for."""
    return TextError(
        "text.unencodable",
        f"this vocabulary cannot say U+{ord(text[at]):04X}, character {at} of the text",
        remedy="remove or replace that character",
    )


def parts(text: str, size: int = _PART) -> Iterator[str]:
    """The text in parts of about ``size`` characters, cut only where every rule cuts words."""
    start = 0
    while len(text) - start > size and (cut := _CUT.search(text, start + size)):
        yield text[start : cut.start()]
        start = cut.start()
    if len(text) - start > _LONGEST:
        raise too_long(len(text) - start)
    yield text[start:]


def too_long(length: int) -> TextError:
    """The error for a stretch of text without a place to cut."""
    return TextError(
        "text.too_long",
        f"{length} characters without a space or a line break after a letter",
        remedy="give the text in pieces",
    )


def _model(vocabulary: Vocabulary, rule: PreTokenizer) -> Any:
    """The library's BPE over the checkpoint's tokens and merges.

    Control tokens are left out, so that no plain word can become one; unless a merge names one.
    """
    from tokenizers import models

    if vocabulary.merges is None:
        raise refuse("tokenizer.ggml.merges", "missing")
    pairs: list[Any] = [tuple(merge.split(" ")) for merge in vocabulary.merges]
    if pairs and set(map(len, pairs)) != {2}:
        wrong = next(i for i, pair in enumerate(pairs) if len(pair) != 2)
        text = vocabulary.merges[wrong][:60]
        raise refuse("tokenizer.ggml.merges", f"merge {wrong}, {text!r}, is not two tokens")
    words = dict(vocabulary.ids)
    for text, token in vocabulary.ids.items():
        if vocabulary.kinds[token] in (CONTROL, UNKNOWN):
            del words[text]
    for tokens in (words, vocabulary.ids):
        try:
            return library(
                lambda tokens=tokens: models.BPE(tokens, pairs, ignore_merges=rule.whole_words),
                "text.vocabulary", "tokenizer.ggml.merges",
            )  # fmt: skip
        except TextError as error:
            refusal = error
    for i, (left, right) in enumerate(pairs):
        for text in (left, right, left + right):
            if text not in vocabulary.ids:
                raise refuse("tokenizer.ggml.merges", f"merge {i} names {text[:60]!r}, no token")
    raise refusal
