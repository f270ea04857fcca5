"""Text as it is generated: whole characters only, and nothing past a stop string.

Laws: what a stream gave, joined, is what decoding all ids at once gives; a stop is found at the
same place however the text was cut into pieces; what might be the start of a stop, or is half a
character, is held back until it is known.
"""

from __future__ import annotations

import codecs
from collections.abc import Sequence
from typing import Protocol

from lanewise.errors import UsageError


class Decodes(Protocol):
    """What a stream needs of a tokenizer."""

    @property
    def strips_blank(self) -> bool: ...
    def token_bytes(self, token: int) -> bytes: ...
    def is_special(self, token: int) -> bool: ...


class Detokeniser:
    """Ids one at a time to text: ``push`` each, then ``flush``.

    All that they gave, joined, equals ``tokenizer.decode(ids, skip_special, continued)``.
    """

    def __init__(
        self, tokenizer: Decodes, skip_special: bool = True, continued: bool = False
    ) -> None:
        self._tokenizer, self._skip_special = tokenizer, skip_special
        self._utf8 = codecs.getincrementaldecoder("utf-8")("replace")
        self._strip = tokenizer.strips_blank and not continued

    def push(self, token: int) -> str:
        """The whole characters that are known now, often none.

        Raises `TextError` ``text.id``: no such token; the stream is as it was.
        """
        if self._tokenizer.is_special(token) and self._skip_special:
            return ""
        return self._stripped(self._utf8.decode(self._tokenizer.token_bytes(token)))

    def flush(self) -> str:
        """What is left at the end: U+FFFD for half a character, else nothing."""
        return self._stripped(self._utf8.decode(b"", final=True))

    def _stripped(self, text: str) -> str:
        if self._strip and text:
            self._strip = False
            return text.removeprefix(" ")
        return text


class StopMatcher:
    """Lets text through up to the first stop string to be complete; a stop is never given out.

    ``stopped`` is the stop that was found, or None.  Each stop keeps the length of its longest
    start that the text ends with (Knuth, Morris and Pratt), so a character costs constant time.

    Raises `UsageError` ``usage.stop``: a stop that is empty or no string.
    """

    def __init__(self, stops: Sequence[str] = ()) -> None:
        stops = [stops] if isinstance(stops, str) else list(dict.fromkeys(stops))
        if not all(isinstance(stop, str) and stop for stop in stops):
            raise UsageError("usage.stop", "a stop string must be a string and not be empty",
                             remedy="leave it out, or name some text")  # fmt: skip
        self._stops = sorted(stops, key=len, reverse=True)  # of two that end at once, the longer
        self._borders = [_borders(stop) for stop in self._stops]
        self._matched = [0] * len(stops)
        self._held = ""
        self.stopped: str | None = None

    def push(self, text: str) -> str:
        """The text that cannot be part of a stop any more; "" from the stop on."""
        if self.stopped is not None or not self._stops:
            return "" if self._stops else text
        self._held += text
        first = len(self._held) - len(text)
        for at in range(first, len(self._held)):
            stop = self._step(self._held[at])
            if stop is not None:
                self.stopped = stop
                given, self._held = self._held[: at + 1 - len(stop)], ""
                return given
        keep = len(self._held) - max(self._matched)
        given, self._held = self._held[:keep], self._held[keep:]
        return given

    def flush(self) -> str:
        """At the end of the text: what was held back, as no stop came of it."""
        given, self._held = self._held, ""
        self._matched = [0] * len(self._stops)
        return given

    def _step(self, character: str) -> str | None:
        """Go on by one character; the stop that it completes, if any."""
        for i, stop in enumerate(self._stops):
            matched, borders = self._matched[i], self._borders[i]
            while matched and stop[matched] != character:
                matched = borders[matched]
            matched += stop[matched] == character
            if matched == len(stop):
                return stop
            self._matched[i] = matched
        return None


def _borders(stop: str) -> list[int]:
    """For each length of a start of ``stop``: its longest proper start that is its end too."""
    borders = [0, 0]
    for i in range(1, len(stop)):
        length = borders[i]
        while length and stop[length] != stop[i]:
            length = borders[length]
        borders.append(length + (stop[length] == stop[i]))
    return borders
