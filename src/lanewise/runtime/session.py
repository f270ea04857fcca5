"""A program bound to memory: its arena, its buffers, its scalars; what runs its forms.

Laws: everything a run needs is allocated when the session is made, so that a run allocates
nothing; input and output views keep their place for the session's life and stay readable after
it; one run at a time (a second is refused, not queued); a scalar keeps its value until it is
given again, and none may be missing at the first run.
"""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lanewise.closing import Closing
from lanewise.dtypes import DTYPES
from lanewise.errors import RunError, UsageError
from lanewise.ir.graph import Type
from lanewise.plan.program import FormEntry, Program
from lanewise.runtime.feed import Feed
from lanewise.runtime.library import Library
from lanewise.runtime.memory import Block, require
from lanewise.runtime.pool import ThreadPool, check_threads, on_fork, shared_pool
from lanewise.runtime.submitter import Submitter

_LINE = 64
_PAGE = 4096


class LwContext(ctypes.Structure):
    """The native struct of the same name."""

    _fields_ = (
        ("arena", ctypes.c_void_p),
        ("priv", ctypes.c_void_p),
        ("priv_stride", ctypes.c_int64),
        ("scratch", ctypes.c_void_p),
        ("scratch_stride", ctypes.c_int64),
        ("buffers", ctypes.c_void_p),
        ("scalars", ctypes.c_void_p),
        ("pool", ctypes.c_void_p),
        ("ahead", ctypes.c_int32),
        ("units", ctypes.c_int32),
        ("chunk", ctypes.c_int32),
        ("pairs", ctypes.c_int32),
    )


class Session(Closing):
    """A program with memory, ready to run; a context manager.

    ``constants``: name -> its stored bytes, any dtype, C-contiguous and 64-aligned, as
    `runtime.weights.load_constants` gives them; they may be shared by sessions.  ``states``:
    name -> the caller's own arrays of that kind; a state not named is allocated as zeros.
    ``threads``: how many a run takes (default: the pool's).  ``lent``: every buffer that is not
    given is lent by the caller, who binds its address before a run.

    Raises RunError ``run.memory`` (before anything is allocated), ``run.buffer`` (an array that
    is missing, too small or misplaced), ``run.threads``.
    """

    def __init__(
        self,
        program: Program,
        library: Library,
        constants: Mapping[str, NDArray[Any]],
        *,
        states: Mapping[str, NDArray[Any]] | None = None,
        threads: int | None = None,
        pool: ThreadPool | None = None,
        lent: bool = False,
    ) -> None:
        self.program = program
        self._library = library  # keeps the code mapped
        self._pool = pool if pool is not None else shared_pool()
        self.threads = check_threads(self._pool.threads if threads is None else threads)
        self._used = self.threads
        given = _given(program, constants, states or {}, lent)
        self._given = list(given.values())  # keeps the caller's arrays alive
        buffers = () if lent else range(len(program.buffers))
        self._allocate([i for i in buffers if i not in given])
        for i, array in given.items():
            self._table[i] = array.ctypes.data
        self._scalars = np.zeros(max(1, len(program.scalars)), np.uint32)
        self._bind_scalars()
        self._context = LwContext(
            *self._work, self._table.ctypes.data, self._scalars.ctypes.data, self._pool.address
        )
        self._address = ctypes.addressof(self._context)
        self._entries = {f.name: (f, library.address(f.symbol)) for f in program.forms}
        self._calls = {name: address for name, (_, address) in self._entries.items()}
        self._lock = threading.Lock()
        on_fork(self)

    def _allocate(self, owned: list[int]) -> None:
        """States in a block of small pages (a short text touches little of a long cache), all
        else in one of huge pages: inputs, outputs, arena, each thread's private and scratch."""
        program = self.program
        states = [i for i in owned if program.buffers[i].kind == "state"]
        others = [i for i in owned if program.buffers[i].kind != "state"]
        cached, cache_size = _lay_out((i, program.buffers[i].nbytes) for i in states)
        ports, size = _lay_out((i, program.buffers[i].nbytes) for i in others)
        arena = _up(program.arena_bytes, _PAGE)
        private = _up(program.private_bytes, _PAGE)
        scratch = _up(program.scratch_bytes, _PAGE)
        total = size + arena + self.threads * (private + scratch)
        require(cache_size + total, "a session (caches and work space)")
        self._blocks = [Block(cache_size, check=False, huge=False), Block(total, check=False)]
        self._places = {i: (0, at) for i, at in cached.items()}
        self._places |= {i: (1, at) for i, at in ports.items()}
        self._table = np.zeros(max(1, len(program.buffers)), np.uint64)
        for i, (block, at) in self._places.items():
            self._table[i] = self._blocks[block].address + at
        at = self._blocks[1].address + size
        each = at + arena
        self._work = (at, each, private, each + self.threads * private, scratch)

    def _bind_scalars(self) -> None:
        # Memory views check the range of what is stored, and are quicker than arrays.
        words = self._scalars.data
        reals = self._scalars.view(np.float32).data
        self._slots: dict[str, tuple[Any, int]] = {
            name: (reals if kind == "f32" else words, i)
            for i, (name, kind) in enumerate(self.program.scalars)
        }
        self._missing = set(self._slots)

    def after_fork(self) -> None:
        """In a child process nobody runs any more."""
        self._lock = threading.Lock()

    def form(self, name: str) -> FormEntry:
        """A form's entry.  Raises UsageError ``usage.form``."""
        return self._entry(name)[0]

    def _entry(self, name: str) -> tuple[FormEntry, int]:
        found = self._entries.get(name)
        if found is None:
            raise UsageError(
                "usage.form", f"the program has no form {name!r}",
                remedy=f"one of: {', '.join(self._entries) or 'none'}",
            )  # fmt: skip
        return found

    def input(self, form: str, name: str) -> NDArray[Any]:
        """The writable view of a form's input, in its logical shape.

        Raises UsageError ``usage.form``, ``usage.port``, RunError ``run.closed``.
        """
        return self._port(form, name, self.form(form).inputs)

    def output(self, form: str, name: str) -> NDArray[Any]:
        """The view of a form's output, filled by each run; as `input`."""
        return self._port(form, name, self.form(form).outputs)

    def _port(self, form: str, name: str, ports: tuple[tuple[str, int], ...]) -> NDArray[Any]:
        for known, index in ports:
            if known == name:
                return self._view(index)
        raise UsageError(
            "usage.port", f"there is no {name!r}", place=f"form {form}",
            remedy=f"one of: {', '.join(n for n, _ in ports) or 'none'}",
        )  # fmt: skip

    def state(self, name: str) -> NDArray[Any]:
        """The view of a state by name.  Raises UsageError ``usage.port``, RunError
        ``run.closed``."""
        states = [(b.name, i) for i, b in enumerate(self.program.buffers) if b.kind == "state"]
        return self._port("(all)", name, tuple(states))

    def bind(self, index: int, address: int) -> None:
        """Let a buffer (its index in the program) be at an address from the next run on.

        The caller keeps the memory alive, large enough and, for constants, 64-aligned; not while
        a run is in flight.
        """
        self._table[index] = address

    def _view(self, index: int) -> NDArray[Any]:
        self._open()
        buffer = self.program.buffers[index]
        place = self._places.get(index)
        if place is None:
            address = int(self._table[index])
            raw = next(a for a in self._given if a.ctypes.data == address)
            raw = raw.reshape(-1).view(np.uint8)[: buffer.nbytes]
        else:
            block, at = place
            raw = self._blocks[block].bytes[at : at + buffer.nbytes]
        return shaped(raw, buffer.type)

    def _open(self) -> None:
        if not self._blocks:
            raise RunError("run.closed", "the session was closed", remedy="make a new one")

    def run(self, form: str, scalars: Mapping[str, int | float] | None = None) -> None:
        """Run a form to its end on this session's threads.

        ``scalars``: name -> number; one not given keeps its value.  Raises RunError
        ``run.closed``, ``run.busy`` (another run is in flight), ``run.scalar`` (a number that
        is missing or out of range), UsageError ``usage.form``, ``usage.scalar``.
        """
        address = self._calls.get(form) or self._entry(form)[1]
        lock = self._lock
        if not lock.acquire(False):
            raise _busy(form)
        try:
            self._begin(form, scalars)
            self._pool.run(address, self._address, self._used)
        finally:
            lock.release()

    def feed(
        self, form: str, scalars: Mapping[str, int | float], feed: Feed, draws: Sequence[float]
    ) -> int:
        """Run a form once for every draw, each run fed by the one before, until one ends it; how
        often it ran.  `feed` is of this form's own views.  Raises as `run`."""
        address = self._calls.get(form) or self._entry(form)[1]
        if not self._lock.acquire(False):
            raise _busy(form)
        try:
            self._begin(form, scalars)
            return self._pool.feed(address, self._address, self._used, feed.begin(draws))
        finally:
            self._lock.release()

    def post(
        self, submitter: Submitter, form: str, scalars: Mapping[str, int | float] | None = None
    ) -> None:
        """Have a submitter run a form as its next turn, and return at once; raises as `run`.

        The caller sees to it that no other run of this session is in flight until it has ended.
        """
        address = self._calls.get(form) or self._entry(form)[1]
        self._begin(form, scalars)
        self._pool.ready(self._used)
        submitter.post(address, self._address, self._used)

    def submitter(self) -> Submitter:
        """A submitter of this session's pool."""
        return Submitter(self._pool)

    def _begin(self, form: str, scalars: Mapping[str, int | float] | None) -> None:
        if not self._blocks:
            self._open()
        if scalars:
            self._set(scalars)
        if self._missing:
            raise RunError(
                "run.scalar", f"no value for {', '.join(sorted(self._missing))}",
                place=f"form {form}", remedy="give every scalar at the first run",
            )  # fmt: skip

    def _set(self, scalars: Mapping[str, int | float]) -> None:
        slots = self._slots
        for name, value in scalars.items():
            slot = slots.get(name)
            if slot is None:
                raise UsageError(
                    "usage.scalar", f"the program has no scalar {name!r}",
                    remedy=f"one of: {', '.join(slots) or 'none'}",
                )  # fmt: skip
            try:
                slot[0][slot[1]] = value
            except (TypeError, ValueError, OverflowError) as e:
                raise RunError(
                    "run.scalar", f"{value!r} is no value for {name!r}",
                    remedy="a number within its type (u32 or f32)",
                ) from e  # fmt: skip
        if self._missing:
            self._missing.difference_update(scalars)

    def use(self, threads: int) -> None:
        """Run on so many of the session's threads, from the next run on; no bit changes.  Raises
        RunError ``run.threads`` outside of 1 to `threads`."""
        if not 1 <= threads <= self.threads:
            raise RunError(
                "run.threads", f"{threads} threads of {self.threads}",
                remedy=f"use 1 to {self.threads}",
            )  # fmt: skip
        self._used = threads

    def tune(self, ahead: int, units: int, chunk: int) -> None:
        """Let products run by other figures (LwTuning of matmul.h; 0: the kernel's own) from the
        next run on; no bit of a result depends on them."""
        context = self._context
        context.ahead, context.units, context.chunk = ahead, units, chunk

    @property
    def nbytes(self) -> int:
        """Bytes of memory that the session allocated (constants are not among them)."""
        return sum(block.nbytes for block in self._blocks)

    def close(self) -> None:
        """Give the memory back (views that are still held keep theirs); may be called again.

        Raises RunError ``run.busy`` while a run is in flight.
        """
        if not self._lock.acquire(False):
            raise RunError("run.busy", "a run is in flight", remedy="close after it has ended")
        try:
            blocks, self._blocks = self._blocks, []
            self._given.clear()
            for block in blocks:
                block.close()
        finally:
            self._lock.release()


def _busy(form: str) -> RunError:
    return RunError(
        "run.busy", "another run of this session is in flight", place=f"form {form}",
        remedy="wait for it, or use a session for each thread",
    )  # fmt: skip


def shaped(raw: NDArray[np.uint8], type: Type) -> NDArray[Any]:
    """Bytes as an array of a type; what no NumPy dtype describes (a format) stays bytes."""
    row = DTYPES.get(type.dtype)
    if row is None:
        return raw
    return raw[: type.size * row.itemsize].view(row.numpy).reshape(type.shape)


def _up(nbytes: int, to: int) -> int:
    return -(-nbytes // to) * to


def _lay_out(sizes: Iterable[tuple[int, int]]) -> tuple[dict[int, int], int]:
    """(index -> offset, total); every buffer on lines of its own, large ones on pages."""
    places: dict[int, int] = {}
    at = 0
    for index, nbytes in sizes:
        at = _up(at, _PAGE if nbytes >= _PAGE else _LINE)
        places[index] = at
        at += nbytes
    return places, _up(at, _PAGE)


def _given(
    program: Program, constants: Mapping[str, NDArray[Any]], states: Mapping[str, NDArray[Any]],
    lent: bool = False,
) -> dict[int, NDArray[Any]]:
    """Index -> array, for every constant and for the states that the caller brings."""
    found: dict[int, NDArray[Any]] = {}
    for i, buffer in enumerate(program.buffers):
        array = {"constant": constants, "state": states}.get(buffer.kind, {}).get(buffer.name)
        wrong = ""
        if array is None:
            if lent or buffer.kind != "constant":
                continue
            wrong = "it is missing"
        elif not array.flags.c_contiguous:
            wrong = "it is not C-contiguous"
        elif array.nbytes < buffer.nbytes:
            wrong = f"it has {array.nbytes} bytes, {buffer.nbytes} are needed"
        elif buffer.nbytes and array.ctypes.data % _LINE:
            wrong = "it does not start at a multiple of 64 bytes"
        elif buffer.kind == "state" and not array.flags.writeable:
            wrong = "it is read-only"
        if wrong or array is None:
            raise RunError(
                "run.buffer", wrong, place=f"{buffer.kind} {buffer.name}",
                remedy="pass the array that the program's manifest asks for",
            )  # fmt: skip
        found[i] = array
    unknown = set(states) - {b.name for b in program.buffers if b.kind == "state"}
    if unknown:
        raise UsageError(
            "usage.port", f"the program has no state {', '.join(sorted(unknown))}",
            remedy="name states as the program does",
        )  # fmt: skip
    return found
