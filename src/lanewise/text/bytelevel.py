"""Byte-level byte-pair encoding ("gpt2"): words cut by the `tokenizers` library, merged by us.

Laws: the library gets patterns only, nothing of its own conversion; a byte that the vocabulary
cannot say is refused, not dropped; long texts are cut in parts where every rule of
`pretokenizers` cuts (a blank after an ASCII letter), so memory stays bounded.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import TypeVar

from lanewise.errors import TextError
from lanewise.strings import Index
from lanewise.text.merge import Words, merge, too_long, unencodable
from lanewise.text.pretokenizers import PreTokenizer
from lanewise.text.vocabulary import CONTROL, UNKNOWN, USER_DEFINED, Vocabulary, refuse

_PART = 1 << 16  # characters, about, of one call of the library
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
_CHARACTERS = dict(enumerate(ALPHABET))  # for str.translate


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
        from tokenizers import Regex, normalizers, pre_tokenizers

        self._vocabulary = vocabulary
        self._nfc = normalizers.NFC() if rule.nfc else None
        self._ranks = _ranks(vocabulary)
        self._whole_words = rule.whole_words
        self._cutter = pre_tokenizers.Sequence(
            [pre_tokenizers.Split(Regex(pattern), "isolated") for pattern in rule.patterns]
        )
        self._words = Words(self._work)
        missing = [byte for byte in range(256) if ALPHABET[byte] not in vocabulary.ids]
        self._missing = re.compile(b"[%s]" % re.escape(bytes(missing))) if missing else None

    @property
    def shrinks(self) -> int:
        """Characters of other text that become one before it is cut, at most: composing takes
        back what canonical decomposition makes, four of one (Unicode, UAX 15)."""
        return 4 if self._nfc is not None else 1

    def normal(self, text: str) -> str:
        """Text as user-defined tokens are looked for in it: as it is."""
        return text

    def encode(self, text: str) -> Iterator[list[int]]:
        """The ids of plain text, part by part; whatever might follow the text, only the last part
        could be another.

        Raises `TextError` ``text.unencodable`` (a byte without a token), ``text.too_long``.
        """
        if self._nfc is not None:
            text = self._nfc.normalize_str(text)
        found = self._missing.search(text.encode()) if self._missing else None
        if found:
            raise unencodable(text, len(text.encode()[: found.start()].decode("utf-8", "ignore")))
        for part in parts(text):
            cut = library(
                lambda part=part: self._cutter.pre_tokenize_str(part), "text.encode", "text"
            )
            yield [token for word, _ in cut for token in self._words.ids(word)]

    def _work(self, word: str) -> list[int]:
        ids, kinds = self._vocabulary.ids, self._vocabulary.kinds
        text = word.encode().decode("latin-1").translate(_CHARACTERS)
        whole = ids.get(text) if self._whole_words else None
        if whole is not None and kinds[whole] not in (CONTROL, UNKNOWN):
            return [whole]
        pieces = merge(text, self._ranks, " ")
        try:
            return [ids[piece] for piece in pieces]
        except KeyError as error:
            message = f"a merge makes {error.args[0][:60]!r}, which is no token"
            raise refuse("tokenizer.ggml.merges", message) from None

    def token_bytes(self, token: int) -> bytes:
        """The bytes that a token stands for; those of its text where it is not of the alphabet."""
        text = self._vocabulary.tokens[token]
        if self._vocabulary.kinds[token] not in (CONTROL, UNKNOWN, USER_DEFINED):
            try:
                return bytes(map(_BYTES.__getitem__, text))
            except KeyError:
                pass
        return text.encode()


def parts(text: str, size: int = _PART) -> Iterator[str]:
    """The text in parts of about ``size`` characters, cut only where every rule cuts words."""
    start = 0
    while len(text) - start > size and (cut := _CUT.search(text, start + size)):
        yield text[start : cut.start()]
        start = cut.start()
    if len(text) - start > _LONGEST:
        raise too_long(len(text) - start)
    yield text[start:]


def _ranks(vocabulary: Vocabulary) -> Index:
    """The rank of each merge, by its text; of one that is there twice, the last.

    This is on the way to the first token, so only the number of blanks is looked at for all; a
    merge that makes no token is refused by the first word that it is used in.
    """
    merges = vocabulary.merges
    if merges is None:
        raise refuse("tokenizer.ggml.merges", "missing")
    if merges.data.count(b" ") != len(merges):
        wrong = next(i for i, text in enumerate(merges) if text.count(" ") != 1)
        text = f"merge {wrong}, {merges[wrong][:60]!r}, is not two tokens"
        raise refuse("tokenizer.ggml.merges", text)
    return Index(merges, last=True)
