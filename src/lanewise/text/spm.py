"""SentencePiece-style merging ("llama"): the best-scored neighbours first, leftmost on a tie.

The algorithm is that of SentencePiece's bpe_model.cc.  Merges synthesised from the scores would
not do: pairs of one token tie, and the tie is broken by place in the text.  Laws: words that no
token joins are merged apart (the result is the same) and remembered; what is no token falls back
to its bytes.
"""

from __future__ import annotations

import math
import re
from array import array
from collections.abc import Iterator
from itertools import pairwise

import numpy as np

from lanewise.text.merge import Words, merge, unencodable
from lanewise.text.vocabulary import (
    BYTE,
    CONTROL,
    UNKNOWN,
    UNUSED,
    USER_DEFINED,
    Vocabulary,
    refuse,
)

SPACE = "\u2581"  # stands for a blank inside tokens
_NEVER = (UNKNOWN, CONTROL, BYTE)  # made by merging
_LONG = 1 << 12  # characters of a word from which it pays to look for more places to cut


class _Pieces:
    """The pieces that merging may make, with their negated scores; all but bytes and controls."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        assert vocabulary.scores is not None
        self._ids, self._tokens = vocabulary.ids, vocabulary.tokens
        self._costs = array("d", (-vocabulary.scores).astype(np.float64).tobytes())
        for token in np.flatnonzero(np.isin(vocabulary.kinds, _NEVER)).tolist():
            # Of tokens with one text the first counts.
            self._costs[self._ids[self._tokens[token]]] = math.nan

    def get(self, text: str) -> float | None:
        token = self._ids.get(text)
        if token is None or math.isnan(cost := self._costs[token]):
            return None
        return cost

    def __contains__(self, text: str) -> bool:
        return self.get(text) is not None

    def __iter__(self) -> Iterator[str]:
        for token, text in enumerate(self._tokens):
            if not math.isnan(self._costs[token]):
                yield text


class SentencePiece:
    """Text to ids and ids to bytes, for a vocabulary with scores.

    Raises `TextError` ``text.vocabulary``: there are no scores, or a byte token is none.
    """

    def __init__(self, vocabulary: Vocabulary) -> None:
        if vocabulary.scores is None:
            raise refuse("tokenizer.ggml.scores", "missing")
        self._vocabulary = vocabulary
        tokens, kinds = vocabulary.tokens, vocabulary.kinds
        self._costs = _Pieces(vocabulary)
        self._unused = {tokens[token] for token in np.flatnonzero(kinds == UNUSED).tolist()}
        self._fallback = self._byte_tokens()
        inside = [piece for piece in self._costs if piece.rfind(SPACE) > 0]
        before = {a for piece in inside for a, b in pairwise(piece) if b == SPACE}
        stay = "".join(map(re.escape, sorted(before | {SPACE})))
        self._cuts = re.compile(f"(?<=[^{stay}])(?={SPACE})")
        self._pairs: set[str] | None = None
        self._words = Words(self._work)

    def _byte_tokens(self) -> list[int | None]:
        """The id of each byte's token, by the byte."""
        found: list[int | None] = [None] * 256
        for token in (self._vocabulary.kinds == BYTE).nonzero()[0].tolist():
            found[self._byte(token)] = token
        return found

    def _byte(self, token: int) -> int:
        text = self._vocabulary.tokens[token]
        if not re.fullmatch("<0x[0-9A-Fa-f]{2}>", text):
            raise refuse("tokenizer.ggml.tokens", f"token {token}, {text[:20]!r}, is no byte")
        return int(text[3:5], 16)

    @property
    def shrinks(self) -> int:
        """As `ByteLevel`; 0 where any number of unknown characters are one token."""
        return 1 if self._fallback[0] is not None else 0

    def normal(self, text: str) -> str:
        """Text as user-defined tokens are looked for in it: a U+2581 is a blank."""
        return text.replace(SPACE, " ")

    def encode(self, text: str) -> Iterator[list[int]]:
        """The ids of plain text, as `ByteLevel`; blanks are taken as they are, none is added.

        Raises `TextError` ``text.unencodable``, ``text.too_long``.
        """
        words = map(self._words.ids, self._cuts.split(text.replace(" ", SPACE)))
        if self._fallback[0] is not None:
            return words
        return iter([self._one_unknown([token for ids in words for token in ids])])

    def token_bytes(self, token: int) -> bytes:
        """The bytes that a token stands for."""
        kind, text = self._vocabulary.kinds[token], self._vocabulary.tokens[token]
        if kind == BYTE:
            return bytes([self._byte(token)])
        if kind in (CONTROL, UNKNOWN, USER_DEFINED):
            return text.encode()
        return text.replace(SPACE, " ").encode()

    def _work(self, word: str) -> list[int]:
        parts = self._cut(word) if len(word) > _LONG else [word]
        ids: list[int] = []
        for part in parts:
            made: dict[str, tuple[str, str]] = {}
            for piece in merge(part, self._costs, made=made):
                self._give(piece, made, ids)
        return ids

    def _cut(self, word: str) -> list[str]:
        """A long word, cut between characters that stand side by side in no piece."""
        if self._pairs is None:
            self._pairs = {a + b for piece in self._costs for a, b in pairwise(piece)}
        parts, start = [], 0
        for i in range(1, len(word)):
            if word[i - 1 : i + 1] not in self._pairs:
                parts.append(word[start:i])
                start = i
        return [*parts, word[start:]]

    def _give(self, piece: str, made: dict[str, tuple[str, str]], ids: list[int]) -> None:
        """Append the ids of a merged piece; an unused one is taken apart again."""
        todo = [piece]
        while todo:
            piece = todo.pop()
            if piece in self._unused and piece in made:
                todo.extend(reversed(made[piece]))
            elif piece in self._costs:
                ids.append(self._vocabulary.ids[piece])
            else:
                ids.extend(self._bytes_of(piece))

    def _bytes_of(self, piece: str) -> list[int]:
        tokens = [token for byte in piece.encode() if (token := self._fallback[byte]) is not None]
        if len(tokens) == len(piece.encode()):
            return tokens
        if self._vocabulary.unknown is None:
            raise unencodable(piece, 0)
        return [self._vocabulary.unknown]

    def _one_unknown(self, ids: list[int]) -> list[int]:
        """Unknown characters in a row are one unknown token."""
        unknown = self._vocabulary.unknown
        return [t for i, t in enumerate(ids) if i == 0 or t != unknown or ids[i - 1] != unknown]
