"""Runner: feeds token ids to the forms of a lane and knows what its cache holds.

Laws: the cache holds the keys and values of `held`, position by position; a request runs only
what is not a prefix of it, and whatever a form overwrites is first forgotten, so that an
interruption or an error at any point leaves the cache a true prefix.  How a prompt is cut into
chunks never changes a bit (law 2), so reuse needs no tolerance.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final, Protocol

import numpy as np
from numpy.typing import NDArray

from lanewise.errors import RunError, UsageError
from lanewise.lane.crowd import Crowd
from lanewise.lane.form import NOT_FINITE
from lanewise.lane.sampling import Sampling, check_count
from lanewise.lane.speculate import VERIFY, Pace
from lanewise.runtime.feed import Feed
from lanewise.runtime.pool import on_fork

DECODE: Final = "decode"
PREFILL: Final = "prefill"
LOGITS: Final = "logits"
AT_ONCE: Final = 8  # tokens that one call may write ...
AT_ONCE_S: Final = 0.016  # ... in so many seconds: a frame of a screen, a keystroke

Progress = Callable[[str, int, int, str], object]


class Engine(Protocol):
    """What runs forms: `runtime.session.Session`, or a fake in tests.  Views are writable, keep
    their place, and hold a form's inputs and outputs between runs; all engines of a lane write
    the same cache."""

    def input(self, form: str, name: str) -> NDArray[Any]: ...
    def output(self, form: str, name: str) -> NDArray[Any]: ...
    def run(self, form: str, scalars: Mapping[str, int]) -> None: ...
    def feed(
        self, form: str, scalars: Mapping[str, int], feed: Feed, draws: Sequence[float]
    ) -> int: ...
    @property
    def threads(self) -> int: ...
    def use(self, threads: int) -> None:
        """Run on 1 to `threads` of them."""
        ...


class Ports:
    """The views of one form, taken once."""

    def __init__(self, engine: Engine, form: str, sampler: bool) -> None:
        self.form = form
        take = engine.input
        self.tokens, self.positions = take(form, "tokens"), take(form, "positions")
        self.out_rows = take(form, "out_rows")
        self.logits = engine.output(form, "logits")
        take(form, "slots")[:] = 0
        pages = take(form, "pages")
        pages[0] = np.arange(pages.shape[1])
        if sampler:
            self.options = tuple(
                take(form, n) for n in ("temperature", "top_k", "top_p", "min_p", "draws")
            )
            self.next = engine.output(form, "next")

    @property
    def capacity(self) -> int:
        return len(self.tokens)

    def feed_of(self, most: int) -> Feed:
        """What one step of one row hands to the next."""
        return Feed(self.tokens, self.positions, self.options[-1], self.next, most)

    def feed(self, ids: Sequence[int], at: int) -> None:
        """The next len(ids) tokens of the first sequence, from position `at` on."""
        rows = len(ids)
        if rows == 1:
            self.tokens[0], self.positions[0] = ids[0], at
        else:
            self.tokens[:rows] = ids
            self.positions[:rows] = np.arange(at, at + rows)

    def choose(self, sampling: Sampling, draws: Sequence[float]) -> None:
        """The options of the first len(draws) rows of the output."""
        values = (
            sampling.temperature,
            sampling.top_k,
            sampling.top_p,
            sampling.min_p,
            draws,
        )
        for view, value in zip(self.options, values, strict=True):
            view[: len(draws)] = value


class Runner:
    """One sequence over one engine.  Calls may come from any thread, one at a time runs."""

    def __init__(
        self,
        engine: Engine,
        *,
        context: int,
        vocab: int,
        max_chunk: int,
        trained: int | None = None,
        logits_engine: Callable[[], Engine] | None = None,
        verify_engine: Callable[[bool], Engine | None] = lambda wait: None,
        progress: Progress | None = None,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self.context, self.vocab = context, vocab
        self.pace = Pace()
        self._trained = trained or context  # what the model could hold at most
        self.held: list[int] = []
        self.closed = False
        self._source: list[int] | None = None  # whose tokens `held` is, but for the last
        self._lock = threading.RLock()
        self._engine = engine
        self._logits_engine = logits_engine or (lambda: engine)
        self._logits: tuple[Engine, Ports] | None = None
        self._verify_engine = verify_engine
        self._verify: tuple[Engine, Ports] | None = None
        self._clock = clock
        self._crowd = Crowd(engine.threads)
        self._progress = progress
        self._decode = Ports(engine, DECODE, True)
        self._feed = self._decode.feed_of(AT_ONCE)
        self._ends: frozenset[int] | None = None  # those that the feed knows
        self._prefill = Ports(engine, PREFILL, True) if max_chunk > 1 else self._decode
        self.chunk = max_chunk
        on_fork(self)

    def after_fork(self) -> None:
        """In a child process nobody holds the lock, and a step may have been under way."""
        self._lock = threading.RLock()
        self.forget()

    @property
    def chunk(self) -> int:
        """Rows of a prompt that run at once, 1 to the compiled max_chunk."""
        return self._chunk

    @chunk.setter
    def chunk(self, rows: int) -> None:
        self._chunk = check_count("chunk", rows, 1, self._prefill.capacity)

    def check_open(self) -> None:
        """UsageError "usage.closed" after `close`."""
        if self.closed:
            raise UsageError("usage.closed", "the lane is closed", remedy="compile it again")

    def close(self, give_back: Callable[[], object]) -> None:
        """End it with `give_back`, once, after the step under way (a thread that goes on
        generating is refused its next); if that raises, it is open again."""
        if self.closed:
            return
        self.closed = True
        try:
            with self._lock:
                give_back()
        except BaseException:
            self.closed = False
            raise

    def check(self, ids: Sequence[int], answer: int = 0) -> list[int]:
        """The ids as a list of ints.  UsageError "usage.prompt" (none), "usage.token" (beyond the
        vocabulary), "usage.context" (more than there is room for; its remedy leaves room for
        `answer` tokens)."""
        try:
            # Bytes are text of some encoding, not ids, though they iterate as numbers.
            found = [int(i) for i in (ids if not isinstance(ids, bytes | bytearray) else ("",))]
            exact = all(a == b for a, b in zip(found, ids, strict=True))
        except (TypeError, ValueError, OverflowError):
            found, exact = [], False
        if not exact:
            remedy = f"ids are 0 to {self.vocab - 1}"
            if isinstance(ids, str):
                remedy = f"tokenizer.encode(text) gives them: {remedy}"
            elif isinstance(ids, list | tuple) and ids and isinstance(ids[0], Mapping):
                remedy = "messages are for `chat`"
            raise UsageError("usage.token", "the token ids are not integers", remedy=remedy)
        if not found:
            raise UsageError(
                "usage.prompt", "the prompt holds no token", remedy="give at least one token"
            )
        if min(found) < 0 or max(found) >= self.vocab:
            wrong = next(i for i in found if not 0 <= i < self.vocab)
            raise UsageError(
                "usage.token", f"there is no token {wrong}", remedy=f"ids are 0 to {self.vocab - 1}"
            )
        if len(found) > self.context:
            raise self._too_long(len(found), answer)
        return found

    def check_least(self, count: int) -> None:
        """UsageError "usage.context" for a prompt of which is only known that it has at least
        `count` tokens, where those are too many."""
        if count > self.context:
            most = (
                f", or give a larger context: the model's is {self._trained} (-c {self._trained})"
            )
            raise _too_long(f"at least {count}", self.context, most * (count <= self._trained))

    def _too_long(self, count: int, answer: int) -> UsageError:
        wanted = min(count + answer, self._trained)
        more = f", or give a context of {wanted} (-c {wanted})" if count <= self._trained else ""
        return _too_long(f"{count}", self.context, more)

    def reused(self, ids: Sequence[int]) -> int:
        """How many leading tokens of ids would not be computed again."""
        with self._lock:
            return self._common(ids)

    def _common(self, ids: Sequence[int]) -> int:
        """The common prefix of ids and the cache, short of the last (whose logits are wanted)."""
        most = min(len(self.held), len(ids) - 1)
        if ids is self._source and len(self.held) == most:
            return most  # its own continuation: no need to compare
        if self.held[:most] == list(ids[:most]):
            return most
        return next(i for i in range(most) if self.held[i] != ids[i])

    def next_token(self, ids: list[int], sampling: Sampling, draw: float) -> int:
        """The token after ids (1 to `context` of them, checked).  A caller that appends what it
        gets to the same list and asks again pays one decode step.

        Raises RunError "run.not_finite" if the logits hold a NaN or an infinity."""
        with self._lock:
            self.check_open()
            at, end = self._common(ids), len(ids)
            told = end - at > 1
            del self.held[at:]
            self._source = None
            while at < end:
                stop = min(at + self._chunk, end)
                ports = self._decode if stop - at == 1 else self._prefill
                if stop == end:
                    ports.choose(sampling, (draw,))
                began = self._clock()
                self._run(self._engine, ports, ids, at, stop, last=stop == end)
                if not told:
                    took = self._clock() - began
                    self.pace.took(1, took)
                    self._crowd.took(took)
                at = stop
                if told and self._progress is not None:
                    self._progress("prompt", at, end, "")
            self._source = ids
            token = int(ports.next[0])
            if token == NOT_FINITE:
                self.forget()
                raise not_finite(end)
            return token

    @property
    def at_once(self) -> int:
        """How many tokens `write` should be asked for, so that they come as fast as they are
        read: 1 to 8."""
        step = self.pace.step_s
        return max(1, min(AT_ONCE, int(AT_ONCE_S / step))) if step > 0 else 1

    def write(
        self, ids: list[int], sampling: Sampling, draws: Sequence[float], ends: frozenset[int]
    ) -> list[int]:
        """The tokens after ids, one for each of the draws (at most 8), what as many calls of
        `next_token` would give; the first of `ends` among them is the last.  ids and they but
        for the last fit the context together.  Raises as `next_token`."""
        with self._lock:
            self.check_open()
            at = len(ids) - 1
            if len(draws) == 1 or self._common(ids) != at:
                return [self.next_token(ids, sampling, draws[0])]
            del self.held[at:]
            self._source = None
            if ends != self._ends:
                self._feed.set_ends((NOT_FINITE, *sorted(ends)))
                self._ends = ends
            ports, engine = self._decode, self._engine
            ports.choose(sampling, draws[:1])
            ports.feed(ids[at:], at)
            ports.out_rows[0] = 0
            engine.use(self._crowd.threads)
            began = self._clock()
            count = engine.feed(DECODE, {"rows": 1, "outs": 1}, self._feed, draws)
            took = (self._clock() - began) / count
            for _ in range(count):
                self.pace.took(1, took)
                self._crowd.took(took)
            tokens = self._feed.out[:count].tolist()
            self.held += [ids[at], *tokens[:-1]]
            if tokens[-1] == NOT_FINITE:
                if count == 1:
                    self.forget()
                    raise not_finite(len(ids))
                return tokens[:-1]  # and the next call meets it
            self._source = ids
            return tokens

    def next_tokens(
        self,
        ids: list[int],
        draft: Sequence[int],
        sampling: Sampling,
        draws: Sequence[float],
        *,
        wait: bool = False,
    ) -> list[int] | None:
        """The tokens after ids, 1 to len(draft) + 1 of them: what as many calls of `next_token`
        would give, each with its own of the len(draft) + 1 draws, as far as they agree with the
        draft, and the one after.  ids and draft fit the context together.

        None if that is no matter of one run: the cache lacks more of ids than the last, or the
        form that checks is still being made (`wait` for it)."""
        with self._lock:
            self.check_open()
            at = len(ids) - 1
            ready = self._verifier(wait) if self._common(ids) == at else None
            if ready is None:
                return None
            engine, ports = ready
            del self.held[at:]
            self._source = None
            rows = [ids[at], *draft]
            ports.choose(sampling, draws)
            ports.feed(rows, at)
            began = self._clock()
            engine.run(VERIFY, {"rows": len(rows), "outs": len(rows)})
            self.pace.took(len(rows), self._clock() - began)
            tokens = _accepted(ports.next[: len(rows)].tolist(), draft)
            self.held.extend(rows[: max(1, len(tokens))])
            if not tokens:
                self.forget()
                raise not_finite(len(ids))
            self._source = ids
            return tokens

    def _verifier(self, wait: bool) -> tuple[Engine, Ports] | None:
        if self._verify is None:
            engine = self._verify_engine(wait)
            if engine is None:
                return None
            self._verify = engine, Ports(engine, VERIFY, True)
            ports = self._verify[1]
            ports.out_rows[:] = np.arange(len(ports.out_rows))
        return self._verify

    def _run(
        self, engine: Engine, ports: Ports, ids: Sequence[int], at: int, end: int, *, last: bool
    ) -> None:
        """One chunk; logits come out for its last row if it is the last chunk."""
        rows = end - at
        ports.feed(ids[at:end], at)
        ports.out_rows[0] = rows - 1
        engine.use(self._crowd.threads if rows == 1 else self._crowd.full)
        engine.run(ports.form, {"rows": rows, "outs": int(last)})
        self.held.extend(ids[at:end])

    def logits(
        self, ids: Sequence[int], chunk: int | None = None
    ) -> Iterator[tuple[int, NDArray[np.float32]]]:
        """(position, f32 [n, vocab] view) of every chunk of ids, in order; a view is good until
        the next.  `chunk` rows at once (default: as many as fit)."""
        with self._lock:
            self.check_open()
            if self._logits is None:
                engine = self._logits_engine()
                self._logits = engine, Ports(engine, LOGITS, False)
            engine, ports = self._logits
            most = min(chunk or ports.capacity, ports.capacity)
            self.forget()
            for at in range(0, len(ids), most):
                end = min(at + most, len(ids))
                rows = end - at
                ports.feed(ids[at:end], at)
                ports.out_rows[:rows] = np.arange(rows)
                engine.run(ports.form, {"rows": rows, "outs": rows})
                found = ports.logits[:rows]
                if not np.isfinite(found).all():
                    self.forget()
                    raise not_finite(end)
                self.held.extend(ids[at:end])
                yield at, found

    def forget(self) -> None:
        """Empty the cache."""
        with self._lock:
            self.held.clear()
            self._source = None


def _accepted(found: Sequence[int], draft: Sequence[int]) -> list[int]:
    """The tokens found that plain decoding would have come to: row r + 1 counts if row r gave the
    draft's token r.  A row that is not finite is left for a plain step to meet."""
    tokens: list[int] = []
    for row, token in enumerate(found):
        if token == NOT_FINITE:
            break
        tokens.append(token)
        if row < len(draft) and token != draft[row]:
            break
    return tokens


def not_finite(position: int) -> RunError:
    return RunError(
        "run.not_finite",
        f"the logits after {position} tokens hold a NaN or an infinity",
        remedy="the checkpoint's numbers are damaged, or out of range for the f16 cache: fetch it"
        " again, or try an f32 cache (kv f32)",
    )


def _too_long(count: str, context: int, more: str) -> UsageError:
    return UsageError(
        "usage.context", f"the prompt has {count} tokens, the context holds {context}",
        remedy=f"shorten the prompt{more}",
    )  # fmt: skip
