"""A scripted engine: a cache that is checked, and a next token that only the true history gives.

The token after a history h is (7 * sum(h) + 3 * len(h)) % V, computed from what the *cache* holds
at positions 0 to the row's: a runner that skips, misplaces or forgets a token gets it wrong.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from lanewise.lane.form import NOT_FINITE
from lanewise.runtime.feed import Feed

VOCAB = 40
NONE = 0xFFFFFFFF


def expected_next(history: Sequence[int]) -> int:
    return (7 * sum(history) + 3 * len(history)) % VOCAB


def expected_run(prompt: Sequence[int], count: int) -> list[int]:
    ids = list(prompt)
    for _ in range(count):
        ids.append(expected_next(ids))
    return ids[len(prompt) :]


class FakeEngine:
    """Forms decode (1 row), prefill (`chunk` rows), logits (`chunk` rows), verify (8 rows)."""

    def __init__(self, context: int, chunk: int = 8) -> None:
        self.cache = np.full(context, NONE, np.int64)
        self.runs: list[tuple[str, int, int]] = []  # form, rows, outs
        self.options: list[tuple[float, ...]] = []
        self.poison_after = -1  # history length whose logits are not finite
        self.fail_after = -1  # runs until KeyboardInterrupt
        self._ports: dict[tuple[str, str], np.ndarray[Any, Any]] = {}
        forms = (("decode", 1, 1), ("prefill", chunk, 1), ("logits", chunk, chunk))
        self.next_after = expected_next  # what a history goes on with
        self.drawn: dict[int, float] = {}  # history length -> the draw that it was sampled with
        for form, rows, outs in (*forms, ("verify", 8, 8)):
            for name in ("tokens", "slots", "positions"):
                self._ports[form, name] = np.full(rows, 9, np.uint32)
            self._ports[form, "pages"] = np.zeros((1, -(-context // 64)), np.uint32)
            self._ports[form, "out_rows"] = np.zeros(outs, np.uint32)
            for name in ("temperature", "top_p", "min_p", "draws"):
                self._ports[form, name] = np.zeros(outs, np.float32)
            self._ports[form, "top_k"] = np.zeros(outs, np.uint32)
            self._ports[form, "logits"] = np.zeros((outs, VOCAB), np.float32)
            self._ports[form, "next"] = np.zeros(outs, np.uint32)

    def input(self, form: str, name: str) -> np.ndarray[Any, Any]:
        return self._ports[form, name]

    output = input

    threads = 2

    def use(self, threads: int) -> None:
        assert 1 <= threads <= self.threads
        self.used = threads

    def run(self, form: str, scalars: Mapping[str, int]) -> None:
        rows, outs = scalars["rows"], scalars["outs"]
        if len(self.runs) == self.fail_after:
            raise KeyboardInterrupt
        self.runs.append((form, rows, outs))
        port = {n: self._ports[form, n] for f, n in self._ports if f == form}
        assert rows <= len(port["tokens"]) and not port["slots"][:rows].any()
        assert list(port["pages"][0]) == list(range(port["pages"].shape[1]))
        self.cache[port["positions"][:rows]] = port["tokens"][:rows]
        for o in range(outs):
            end = int(port["positions"][port["out_rows"][o]]) + 1
            history = self.cache[:end]
            assert (history != NONE).all(), "a position was never written"
            token = self.next_after([int(t) for t in history])
            self.drawn[end] = float(port["draws"][o])
            port["logits"][o] = 0
            port["logits"][o, token] = np.nan if end == self.poison_after else 1
            port["next"][o] = NOT_FINITE if end == self.poison_after else token
        if outs and form != "logits":
            names = ("temperature", "top_k", "top_p", "min_p", "draws")
            self.options.append(tuple(float(port[n][0]) for n in names))

    def feed(
        self, form: str, scalars: Mapping[str, int], feed: Feed, draws: Sequence[float]
    ) -> int:
        for i, draw in enumerate(draws):
            if i:
                feed.token[0] = feed.out[i - 1]
                feed.position[0] += 1
            feed.draw[0] = draw
            self.run(form, scalars)
            feed.out[i] = feed.next[0]
            if feed.out[i] in feed.ends:
                return i + 1
        return len(draws)


class FakeText:
    """One token, one piece: 0 to 25 are letters; 26 to 35 are the bytes of "é" and "€" and
    others by halves, so that characters come in parts; 39 ends the text."""

    def __init__(self, end: Sequence[int] = (39,)) -> None:
        self.end_tokens = frozenset(end)
        self.tokenizer = self

    def encode(self, text: str, special: bool = False) -> list[int]:
        return [ord(c) - 97 for c in text]

    def decode(self, ids: Sequence[int]) -> str:
        return b"".join(_bytes(i) for i in ids).decode("utf-8", "replace")

    prompt = encode

    def least(self, asked: str | Sequence[Mapping[str, Any]]) -> int:
        """Tokens of up to a hundred letters are possible, for all that is known."""
        size = len(asked) if isinstance(asked, str) else sum(len(m["content"]) for m in asked)
        return -(-size // 100)

    notes = ()

    def chat(self, messages: Sequence[Mapping[str, Any]]) -> list[int]:
        return [t for m in messages for t in self.encode(m["content"])]

    def stream(self, *, continued: bool = False) -> FakeStream:
        return FakeStream()


def _bytes(token: int) -> bytes:
    return b"\xc3" if token == 26 else b"\xa9" if token == 27 else bytes([97 + token % 26])


class FakeStream:
    def __init__(self) -> None:
        self._bytes = b""

    def push(self, token: int) -> str:
        self._bytes += _bytes(token)
        try:
            text = self._bytes.decode()
        except UnicodeDecodeError:
            return ""
        self._bytes = b""
        return text

    def flush(self) -> str:
        rest, self._bytes = self._bytes, b""
        return rest.decode("utf-8", "replace")
