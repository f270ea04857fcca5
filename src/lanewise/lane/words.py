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
                from lanewise.text.tokenizer import Tokenizer

                made = Tokenizer.from_metadata(self._metadata)
                if made.vocab_size > self._vocab:
                    raise ModelError(
                        "model.shape",
                        f"{made.vocab_size} tokens, but the embedding has {self._vocab} rows",
                        place="tokenizer.ggml.tokens",
                    )
                self._tokenizer = made
            return self._tokenizer

    @property
    def end_tokens(self) -> frozenset[int]:
        return frozenset(self.tokenizer.eog)

    def prompt(self, text: str) -> list[int]:
        return self.tokenizer.encode(text)

    def chat(self, messages: Sequence[Mapping[str, Any]]) -> list[int]:
        raise NotImplementedError

    def stream(self) -> TextStream:
        raise NotImplementedError
