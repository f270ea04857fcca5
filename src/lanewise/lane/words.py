"""Words: what a lane needs of a checkpoint's text side, each part loaded when it is first used.

A tokenizer takes a while to build from a big vocabulary; a bench, or ids given as ids, never do.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from typing import Any

from lanewise.errors import ModelError
from lanewise.lane.generate import TextStream


class Words:
    """Tokenizer, chat template and text streams of one checkpoint; `vocab` rows of embedding."""

    def __init__(self, metadata: Mapping[str, Any], vocab: int) -> None:
        self._metadata, self._vocab = metadata, vocab
        self._lock = threading.Lock()
        self._tokenizer: Any = None
        self._template: Any = None

    @property
    def tokenizer(self) -> Any:
        """`text.tokenizer.Tokenizer`; ModelError "model.shape" if it has tokens without a row of
        the embedding, TextError "text.*" if it cannot be built."""
        with self._lock:
            if self._tokenizer is None:
                from lanewise.runtime.memory import trim
                from lanewise.text.tokenizer import Tokenizer

                made = Tokenizer.from_metadata(self._metadata)
                if made.vocab_size > self._vocab:
                    raise ModelError(
                        "model.shape",
                        f"{made.vocab_size} tokens, but the embedding has {self._vocab} rows",
                        place="tokenizer.ggml.tokens",
                        remedy="the file is damaged or was converted wrongly: fetch it again",
                    )
                self._tokenizer = made
                trim()
            return self._tokenizer

    @property
    def template(self) -> Any:
        """`text.template.ChatTemplate`."""
        tokenizer = self.tokenizer
        with self._lock:
            if self._template is None:
                from lanewise.text.template import ChatTemplate

                self._template = ChatTemplate.from_metadata(self._metadata, tokenizer)
            return self._template

    @property
    def notes(self) -> tuple[str, ...]:
        return (*self.tokenizer.notes, *self.template.notes)

    @property
    def end_tokens(self) -> frozenset[int]:
        return frozenset(self.tokenizer.eog)

    def prompt(self, text: str) -> list[int]:
        return self.tokenizer.encode(text)

    def least(self, asked: str | Sequence[Mapping[str, Any]]) -> int:
        """A number of tokens that `prompt` or `chat` give at least, known at once: of a
        conversation, those of the longest thing that the user said (templates drop others)."""
        if isinstance(asked, str):
            return self.tokenizer.least(asked)
        if not isinstance(asked, Sequence):
            return 0
        users = [m for m in asked if isinstance(m, Mapping) and m.get("role") == "user"]
        said = [text for m in users if isinstance(text := m.get("content"), str)]
        # Templates cut white space off the ends.
        return max((self.tokenizer.least(text.strip()) for text in said), default=0)

    def chat(self, messages: Sequence[Mapping[str, Any]]) -> list[int]:
        """The ids of a conversation by the checkpoint's template; TextError "text.*"."""
        return self.template.encode(self.tokenizer, messages)

    def stream(self, *, continued: bool) -> TextStream:
        """The text of tokens as they come; `continued`: they go on from other text."""
        from lanewise.text.stream import Detokeniser

        tokenizer = self.tokenizer
        return _Known(Detokeniser(tokenizer, continued=continued), tokenizer.vocab_size)


class _Known:
    """Drops ids that only the embedding knows: some checkpoints pad it with rows for no token."""

    def __init__(self, stream: TextStream, vocab: int) -> None:
        self._stream, self._vocab = stream, vocab
        self.flush = stream.flush

    def push(self, token: int) -> str:
        return self._stream.push(token) if token < self._vocab else ""
