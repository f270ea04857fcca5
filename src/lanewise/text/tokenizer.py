"""Text to token ids and back, by the checkpoint's own vocabulary.

Laws: the ids are those that the checkpoint's own tokenizer gives; text is text: a control token's
name in it is plain characters unless the caller asks for special tokens, and even then not in
`shield`ed parts; user-defined tokens are always found; nothing is dropped.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from numbers import Integral
from typing import Any, Protocol

from lanewise.errors import TextError
from lanewise.text import pretokenizers, vocabulary
from lanewise.text.bytelevel import ByteLevel, library
from lanewise.text.spm import SentencePiece
from lanewise.text.vocabulary import CONTROL, UNKNOWN, USER_DEFINED, Vocabulary

MODELS = ("gpt2", "llama")


class _Model(Protocol):
    @property
    def shrinks(self) -> int: ...
    def normal(self, text: str) -> str: ...
    def encode(self, text: str) -> Iterator[list[int]]: ...
    def token_bytes(self, token: int) -> bytes: ...


class Tokenizer:
    """A checkpoint's tokenizer; made by `from_metadata`.

    ``vocab_size``; ``bos``, ``eos`` ids or None; ``eog`` the ids that end an answer; ``add_bos``
    whether a text begins with BOS; ``notes`` what had to be supposed of the checkpoint.
    """

    def __init__(self, words: Vocabulary, model: _Model, add_bos: bool, add_space: bool) -> None:
        self.vocab_size = len(words.tokens)
        self.bos, self.eos, self.eog = words.bos, words.eos, words.eog
        self.add_bos = add_bos and words.bos is not None
        self.notes = words.notes
        self._words, self._model, self._add_space = words, model, add_space
        self._longest = max(words.tokens.longest, 1)
        self._bytes: dict[int, bytes] = {}
        kinds = words.kinds
        self._specials = frozenset(((kinds == CONTROL) | (kinds == UNKNOWN)).nonzero()[0].tolist())
        defined = [int(i) for i in (kinds == USER_DEFINED).nonzero()[0] if words.tokens[i]]
        # A control token of one character could not be told from text, nor shielded.
        control = [i for i in sorted(self._specials) if len(words.tokens[i]) > 1]
        self._defined = _Finder({model.normal(words.tokens[i]): i for i in defined})
        self._controls = _Finder({words.tokens[i]: i for i in control}, words.swallowing)
        self._shielded = "".join(sorted({words.tokens[i][0] for i in control}))

    @classmethod
    def from_metadata(cls, meta: Mapping[str, Any]) -> Tokenizer:
        """The tokenizer that a checkpoint's metadata describes (GGUF keys to values).

        Raises `TextError`: ``text.model`` (a kind of vocabulary that we do not know),
        ``text.pretokenizer`` (likewise a rule of cutting words), ``text.vocabulary`` (damage).
        """
        words = vocabulary.read(meta)
        if words.model == "gpt2":
            notes = words.notes
            if not words.pre:
                notes += ("tokenizer.ggml.pre is missing: words are cut by the rule 'default'",)
            rule = pretokenizers.find(words.pre or "default")
            add_bos = rule.add_bos if words.add_bos is None else words.add_bos
            tokenizer = cls(words, ByteLevel(words, rule), add_bos, bool(words.add_space_prefix))
            tokenizer.notes = notes
            return tokenizer
        if words.model == "llama":
            return cls(
                words, SentencePiece(words), words.add_bos is not False,
                words.add_space_prefix is not False,
            )  # fmt: skip
        raise TextError(
            "text.model",
            f"a vocabulary of the kind {words.model[:40]!r} is not supported",
            place="tokenizer.ggml.model",
            remedy=f"known kinds: {', '.join(MODELS)}",
        )

    def encode(
        self, text: str, special: bool = False, add_bos: bool | None = None, shield: str = ""
    ) -> list[int]:
        """The ids of ``text``.

        ``special``: names of control tokens in the text are those tokens (as templates need), but
        for the marks of ``shield`` (see there), which are then removed.  ``add_bos`` None: as the
        checkpoint says, and not where special text begins with BOS already.

        Raises `TextError` ``text.type``, ``text.unicode`` (a lone surrogate),
        ``text.unencodable``, ``text.too_long``.
        """
        check_text(text)
        ids: list[int] = []
        for piece in self._controls.split(text) if special else [text]:
            if isinstance(piece, int):
                ids.append(piece)
            elif piece := piece.replace(shield, "") if shield else piece:
                ids += self._encode_plain(" " + piece if self._add_space else piece)
        begin = self.add_bos if add_bos is None else add_bos
        if begin and self.bos is None:
            raise TextError("text.bos", "this vocabulary has no BOS token to begin with",
                            remedy="leave add_bos out, or give False")  # fmt: skip
        if begin and not (add_bos is None and special and ids[:1] == [self.bos]):
            ids.insert(0, self.bos)  # type: ignore[arg-type]
        return ids

    def least(self, text: str) -> int:
        """A number of tokens that `encode` gives at least, known without encoding."""
        shrinks = self._model.shrinks if not text.isascii() else min(self._model.shrinks, 1)
        return -(-len(text) // (self._longest * shrinks)) if shrinks else 0

    def first(self, text: str, count: int) -> list[int] | None:
        """The first ``count`` ids that `encode` gives of any text that begins with ``text``; None
        where it takes more of the text to tell.

        Raises as `encode`.
        """
        check_text(text)
        ids = [self.bos] if self.add_bos and self.bos is not None else []
        pieces = self._defined.split(self._model.normal(" " + text if self._add_space else text))
        # At the end a name could begin that goes on, and make another of what is before it.
        undecided = self._defined.longest
        while pieces and undecided > 0:
            last = pieces.pop()
            left = 0 if isinstance(last, int) else len(last) - undecided
            undecided -= len(self._words.tokens[last] if isinstance(last, int) else last)
            if left > 0:
                pieces.append(last[:left])  # type: ignore[index]
        for part in self._parts(pieces):
            if len(ids) >= count:
                return ids[:count]
            ids += part
        return None

    def _parts(self, pieces: Iterable[str | int]) -> Iterator[list[int]]:
        for piece in pieces:
            if isinstance(piece, int):
                yield [piece]
            else:
                yield from self._model.encode(piece)

    def _encode_plain(self, text: str) -> list[int]:
        pieces = self._defined.split(self._model.normal(text))
        return [token for part in self._parts(pieces) for token in part]

    def shield(self, text: str, mark: str) -> str:
        """``text`` with ``mark`` put where it keeps the names of control tokens from being found.

        ``mark`` is a string that the text does not have; `encode` with ``shield=mark`` takes the
        marks out again.  Text that names no control token comes back as it is.
        """
        if self._controls.split(text) in ([], [text]):
            return text
        for first in self._shielded:
            text = text.replace(first, first + mark)
        return text

    def decode(
        self, ids: Iterable[int], skip_special: bool = False, continued: bool = False
    ) -> str:
        """The text of ``ids``; broken UTF-8 becomes U+FFFD.

        ``skip_special`` leaves control tokens out.  Where a vocabulary puts a blank before a text,
        it is taken off again, unless ``continued``: the ids go on from others.

        Raises `TextError` ``text.id``: an id that is no token's; ``text.type``: no sequence.
        """
        if not isinstance(ids, Iterable) or isinstance(ids, str | bytes):
            raise TextError("text.type", f"ids are {ids!r}: they must be a sequence of integers",
                            remedy="decode([5]); `encode` gives such a sequence")  # fmt: skip
        text = b"".join(
            self.token_bytes(token)
            for token in ids
            if not (skip_special and token in self._specials)
        ).decode("utf-8", "replace")
        return text[1:] if self.strips_blank and not continued and text[:1] == " " else text

    @property
    def strips_blank(self) -> bool:
        """Whether encoding puts a blank before a text, which decoding takes off."""
        return self._add_space

    def token_bytes(self, token: int) -> bytes:
        """The bytes of one token; a control token's are its name's.

        Raises `TextError` ``text.id``.
        """
        known = self._bytes.get(token)
        if known is None:
            self._check_id(token)
            known = self._bytes[token] = self._model.token_bytes(token)
        return known

    def is_special(self, token: int) -> bool:
        """Whether a token is no text: control and unknown tokens.

        Raises `TextError` ``text.id``.
        """
        self._check_id(token)
        return token in self._specials

    def text_of(self, token: int | None) -> str:
        """A token's own name in the vocabulary, "" for None (as templates want BOS and EOS)."""
        if token is None:
            return ""
        self._check_id(token)
        return self._words.tokens[token]

    def id_of(self, text: str) -> int | None:
        """The id of the token that is called ``text``, None if there is none."""
        return self._words.ids.get(text)

    def _check_id(self, token: int) -> None:
        whole = isinstance(token, Integral) and not isinstance(token, bool)
        if not whole or not 0 <= token < self.vocab_size:
            raise TextError(
                "text.id", f"{token!r} is not the id of one of {self.vocab_size} tokens",
                remedy=f"an integer from 0 to {self.vocab_size - 1}",
            )  # fmt: skip


class _Finder:
    """Finds the names of given tokens in a text: leftmost first, then longest.

    The library's automaton does it, in a tokenizer that has only these as added tokens; there may
    be thousands.  Id 0 is all other text.
    """

    def __init__(self, names: dict[str, int], swallowing: frozenset[int] = frozenset()) -> None:
        self._names, self._swallowing = names, swallowing
        self._ids = [-1, *names.values()]
        self._tokenizer: Any = None

    @property
    def longest(self) -> int:
        """Characters of the longest name."""
        return max(map(len, self._names), default=0)

    def _build(self) -> Any:
        from tokenizers import AddedToken, Tokenizer, models

        tokenizer = Tokenizer(models.WordLevel({"": 0}, unk_token=""))
        tokens = [
            AddedToken(name, normalized=False, rstrip=token in self._swallowing)
            for name, token in self._names.items()
        ]
        library(lambda: tokenizer.add_tokens(tokens), "text.vocabulary", "tokenizer.ggml.tokens")
        return tokenizer

    def split(self, text: str) -> list[str | int]:
        """The text in order: ids of the tokens found, and what lies between them."""
        if not text or not self._names:
            return [text] if text else []
        if self._tokenizer is None:
            self._tokenizer = self._build()
        found = library(
            lambda: self._tokenizer.encode(text, add_special_tokens=False), "text.encode", "text"
        )
        return [
            self._ids[number] if number else text[start:end]
            for number, (start, end) in zip(found.ids, found.offsets, strict=True)
        ]


def check_text(text: object, place: str = "") -> None:
    """Raises `TextError` ``text.type``, ``text.unicode``."""
    if not isinstance(text, str):
        raise TextError("text.type", f"not a string but {type(text).__name__}",
                        remedy="give text: bytes are decoded by bytes.decode()")  # fmt: skip
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise TextError(
            "text.unicode",
            f"character {error.start} is half of a surrogate pair, which UTF-8 does not have",
            place=place,
            remedy="decode the bytes of the text properly, or with errors='replace'",
        ) from None
