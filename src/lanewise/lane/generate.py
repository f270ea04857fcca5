"""Generation: an iterator of pieces of text, with what became of it.

Laws: a piece is whole characters; text that could be the start of a stop string is held back
until it is not; whatever ends a generation (end token, stop string, length, context, Ctrl-C, an
error) leaves `text` and `ids` as what was written.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from lanewise.closing import OfThisProcess
from lanewise.lane.runner import Runner
from lanewise.lane.sampling import Sampling, Stream, option_error
from lanewise.lane.speculate import NO_DRAFTS, Drafting, Speculator
from lanewise.text.stream import StopMatcher


class TextStream(Protocol):
    """Token ids to text, whole characters at a time (`text.stream.Detokeniser`)."""

    def push(self, token: int) -> str: ...
    def flush(self) -> str: ...


@dataclass(slots=True)
class Timings:
    """Seconds and tokens.  `reused` tokens of the prompt were in the cache already; `prompt_s`
    runs until the first token is known, `generate_s` from there to the last.  Of `drafted` tokens,
    guessed and checked, `accepted` were right."""

    prompt_tokens: int = 0
    reused: int = 0
    prompt_s: float = 0.0
    first_token_s: float = 0.0
    tokens: int = 0
    generate_s: float = 0.0
    drafted: int = 0
    accepted: int = 0

    @property
    def prompt_rate(self) -> float:
        """Prompt tokens a second, of those that were computed."""
        count = self.prompt_tokens - self.reused
        return count / self.prompt_s if self.prompt_s > 0 else 0.0

    @property
    def rate(self) -> float:
        """Tokens a second after the first."""
        return (self.tokens - 1) / self.generate_s if self.generate_s > 0 else 0.0


def check_stops(stop: str | Sequence[str] | None) -> tuple[str, ...]:
    """Stop strings as a tuple; UsageError "usage.option" if one is empty or no string."""
    try:
        given = (stop,) if isinstance(stop, str) else tuple(stop or ())
    except TypeError:
        given = ("",)
    if not all(isinstance(s, str) and s for s in given):
        raise option_error("stop", stop, "a string, or several; none may be empty")
    return given


class Generation(OfThisProcess):
    """Pieces of text, as they come: iterate, or call `read` for all of it.

    finish_reason: "" while it runs, then "stop" (end token or stop string), "length" (max_tokens),
    "context" (full), "interrupted" (KeyboardInterrupt, which is raised on), "error" (raised on)
    or "closed".  Generations of one lane may be interleaved: each takes the cache back at the
    price of running its tokens again."""

    def __init__(
        self,
        runner: Runner,
        prompt: list[int],
        stream: TextStream,
        sampling: Sampling,
        *,
        end_tokens: frozenset[int] = frozenset(),
        max_tokens: int | None = None,
        stop: tuple[str, ...] = (),
        drafting: Drafting = NO_DRAFTS,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self.finish_reason = ""
        self.text = ""
        self.sampling = sampling
        self.timings = Timings(prompt_tokens=len(prompt))
        self._runner, self._stream, self._clock = runner, stream, clock
        self._all, self._prompt = list(prompt), len(prompt)
        self._end_tokens, self._stops = end_tokens, StopMatcher(stop)
        room = runner.context - len(prompt) + 1  # the last token needs no room
        self._most = room if max_tokens is None else min(max_tokens, room)
        self._full = "context" if max_tokens is None or room < max_tokens else "length"
        self._draws = Stream(sampling.seed)
        self._first = 0.0
        self._forced = drafting.forced
        self._ahead = Speculator(self._all, drafting, runner.pace) if drafting.most else None
        self._pending: list[int] = []  # tokens that are known and not yet written

    @property
    def ids(self) -> list[int]:
        """The generated token ids, an end token included."""
        return self._all[self._prompt :]

    @property
    def prompt_ids(self) -> list[int]:
        return self._all[: self._prompt]

    @property
    def seed(self) -> int:
        """The seed in use; the same seed and options give the same text."""
        return self.sampling.seed

    def __repr__(self) -> str:
        state = self.finish_reason or "not ended"
        return f"<Generation of {len(self.ids)} tokens, {state}: {self.text[:60]!r}>"

    def __iter__(self) -> Generation:
        return self

    def __next__(self) -> str:
        """The next piece, never empty."""
        while not self.finish_reason:
            try:
                piece = self._step()
            except BaseException as error:
                interrupted = isinstance(error, KeyboardInterrupt)
                self.text += self._rest()
                self.finish_reason = "interrupted" if interrupted else "error"
                raise
            if piece:
                self.text += piece
                return piece
        raise StopIteration

    def read(self) -> str:
        """Run to the end; the whole text."""
        for _ in self:
            pass
        return self.text

    def close(self) -> None:
        """End it here."""
        self.finish_reason = self.finish_reason or "closed"

    def _step(self) -> str:
        """One token; the text that it completes (often none)."""
        count = len(self._all) - self._prompt
        if count >= self._most:
            self.finish_reason = self._full
            return self._rest()
        token = self._timed(count)
        self._all.append(token)
        if token in self._end_tokens:
            self.finish_reason = "stop"
            return self._rest()
        piece = self._stops.push(self._stream.push(token))
        if self._stops.stopped is not None:
            self.finish_reason = "stop"
        elif count + 1 >= self._most:
            self.finish_reason = self._full
            return piece + self._rest()
        return piece

    def _timed(self, count: int) -> int:
        began = self._clock()
        if count == 0:
            self.timings.reused = self._runner.reused(self._all)
        token = self._pending.pop(0) if self._pending else self._next(count)
        now = self._clock()
        t = self.timings
        if count == 0:
            self._first = now
            t.prompt_s = t.first_token_s = now - began
        t.tokens, t.generate_s = count + 1, now - self._first
        return token

    def _next(self, count: int) -> int:
        """The next token; those that come with it are pending."""
        room = self._most - count - 1
        draft = self._ahead.propose(room) if self._ahead is not None and count else []
        if not draft and count and (self._ahead is None or self._ahead.rests()):
            draws = [
                self._draws.draw(count + i) for i in range(min(room + 1, self._runner.at_once))
            ]
            token, *self._pending = self._runner.write(
                self._all, self.sampling, draws, self._end_tokens
            )
            return token
        draws = [self._draws.draw(count + i) for i in range(len(draft) + 1)]
        found = draft and self._runner.next_tokens(
            self._all, draft, self.sampling, draws, wait=self._forced
        )
        if not found:
            return self._runner.next_token(self._all, self.sampling, draws[0])
        token, *self._pending = found
        self.timings.drafted += len(draft)
        self.timings.accepted += len(self._pending)
        return token

    def _rest(self) -> str:
        """Text still held back at the end; a stop string in it ends the text there."""
        return self._stops.push(self._stream.flush()) + self._stops.flush()
