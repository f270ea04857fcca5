"""Runner: feeds token ids to the forms of a lane and knows what its cache holds.

Laws: the cache holds the keys and values of `held`, position by position; a request runs only
what is not a prefix of it, and whatever a form overwrites is first forgotten, so that an
interruption or an error at any point leaves the cache a true prefix.  How a prompt is cut into
chunks never changes a bit (law 2), so reuse needs no tolerance.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final, Protocol

import numpy as np
from numpy.typing import NDArray

from lanewise.errors import RunError, UsageError
from lanewise.lane.form import NOT_FINITE
from lanewise.lane.sampling import Sampling

DECODE: Final = "decode"
PREFILL: Final = "prefill"
LOGITS: Final = "logits"

Progress = Callable[[str, int, int, str], object]


class Engine(Protocol):
    """What runs forms: `runtime.session.Session`, or a fake in tests.  Views are writable, keep
    their place, and hold a form's inputs and outputs between runs; all engines of a lane write
    the same cache."""

    def input(self, form: str, name: str) -> NDArray[Any]: ...
    def output(self, form: str, name: str) -> NDArray[Any]: ...
    def run(self, form: str, scalars: Mapping[str, int]) -> None: ...


class _Ports:
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

    def choose(self, sampling: Sampling, draw: float) -> None:
        values = (
            sampling.temperature, sampling.top_k, sampling.top_p, sampling.min_p, draw,
        )
        for view, value in zip(self.options, values, strict=True):
            view[0] = value


class Runner:
    """One sequence over one engine.  Calls may come from any thread, one at a time runs."""

    def __init__(
        self,
        engine: Engine,
        *,
        context: int,
        vocab: int,
        max_chunk: int,
        logits_engine: Callable[[], Engine] | None = None,
        progress: Progress | None = None,
    ) -> None:
        self.context, self.vocab = context, vocab
        self.held: list[int] = []
        self._source: list[int] | None = None  # whose tokens `held` is, but for the last
        self._lock = threading.RLock()
        self._engine = engine
        self._logits_engine = logits_engine or (lambda: engine)
        self._logits: tuple[Engine, _Ports] | None = None
        self._progress = progress
        self._decode = _Ports(engine, DECODE, True)
        self._prefill = _Ports(engine, PREFILL, True) if max_chunk > 1 else self._decode
        self.chunk = max_chunk

    @property
    def chunk(self) -> int:
        """Rows of a prompt that run at once, 1 to the compiled max_chunk."""
        return self._chunk

    @chunk.setter
    def chunk(self, rows: int) -> None:
        most = self._prefill.capacity
        if not 1 <= rows <= most:
            raise UsageError(
                "usage.option", f"chunk is {rows}", place="chunk", remedy=f"give 1 to {most}"
            )
        self._chunk = rows

    def check(self, ids: Sequence[int]) -> list[int]:
        """The ids as a list of ints.  UsageError "usage.prompt" (none), "usage.token" (beyond the
        vocabulary), "usage.context" (more than there is room for)."""
        try:
            found = [int(i) for i in ids]
            exact = all(a == b for a, b in zip(found, ids, strict=True))
        except (TypeError, ValueError, OverflowError):
            found, exact = [], False
        if not exact:
            raise UsageError("usage.token", "the token ids are not integers")
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
            raise UsageError(
                "usage.context",
                f"the prompt has {len(found)} tokens, the context holds {self.context}",
                remedy=f"compile with context={len(found)} or more, or shorten the prompt",
            )
        return found

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
            at, end = self._common(ids), len(ids)
            told = end - at > 1
            del self.held[at:]
            self._source = None
            while at < end:
                stop = min(at + self._chunk, end)
                ports = self._decode if stop - at == 1 else self._prefill
                if stop == end:
                    ports.choose(sampling, draw)
                self._run(self._engine, ports, ids, at, stop, last=stop == end)
                at = stop
                if told and self._progress is not None:
                    self._progress("prompt", at, end, "")
            self._source = ids
            token = int(ports.next[0])
            if token == NOT_FINITE:
                self.forget()
                raise not_finite(end)
            return token

    def _run(
        self, engine: Engine, ports: _Ports, ids: Sequence[int], at: int, end: int, *, last: bool
    ) -> None:
        """One chunk; logits come out for its last row if it is the last chunk."""
        rows = end - at
        if rows == 1:
            ports.tokens[0], ports.positions[0] = ids[at], at
        else:
            ports.tokens[:rows] = ids[at:end]
            ports.positions[:rows] = np.arange(at, end)
        ports.out_rows[0] = rows - 1
        engine.run(ports.form, {"rows": rows, "outs": int(last)})
        self.held.extend(ids[at:end])

    def logits(
        self, ids: Sequence[int], chunk: int | None = None
    ) -> Iterator[tuple[int, NDArray[np.float32]]]:
        """(position, f32 [n, vocab] view) of every chunk of ids, in order; a view is good until
        the next.  `chunk` rows at once (default: as many as fit)."""
        with self._lock:
            if self._logits is None:
                engine = self._logits_engine()
                self._logits = engine, _Ports(engine, LOGITS, False)
            engine, ports = self._logits
            most = min(chunk or ports.capacity, ports.capacity)
            self.forget()
            for at in range(0, len(ids), most):
                end = min(at + most, len(ids))
                rows = end - at
                ports.tokens[:rows] = ids[at:end]
                ports.positions[:rows] = np.arange(at, end)
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


def not_finite(position: int) -> RunError:
    return RunError(
        "run.not_finite",
        f"the logits after {position} tokens hold a NaN or an infinity",
        remedy="the checkpoint's numbers are damaged, or out of range for the f16 cache: fetch it"
        " again, or try kv='f32'",
    )
