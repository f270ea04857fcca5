"""Around plans: a cache of them, buckets of lengths, and blocks of a cache shared by sequences.

Laws: nothing here evicts, truncates or rounds on its own: what does not fit is refused.  No
thread waits for a plan that cannot be made while it waits: that is refused too.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import Any

from lanewise.closing import Closing, OfThisProcess
from lanewise.errors import RunError, UsageError, call_site
from lanewise.runtime.pool import on_fork
from lanewise.tensor.arguments import plain
from lanewise.tensor.builder import Builder
from lanewise.tensor.handles import short
from lanewise.tensor.plan import Plan
from lanewise.tensor.runtime import Runtime


class _Making:
    """A plan that a thread compiles and that others may wait for."""

    def __init__(self, key: Hashable | None) -> None:
        self.key = key
        self.thread = threading.get_ident()
        self.ended = threading.Event()
        self.plan: Plan | None = None
        self.error: Exception | None = None


class _Waits:
    """Which thread waits for which plan, over all caches: one that would close a ring is
    refused."""

    def __init__(self) -> None:
        self.after_fork()
        on_fork(self)

    def after_fork(self) -> None:
        """In a child process nobody waits, and nobody holds the lock."""
        self._lock = threading.Lock()
        self._for: dict[int, _Making] = {}

    def wait(self, making: _Making) -> Plan | None:
        """The plan, once it is there; None if its thread gave up for reasons of its own.  Raises
        its thread's refusal, RunError ``run.deadlock``."""
        me = threading.get_ident()
        with self._lock:
            chain: list[_Making] = []
            after: _Making | None = making
            # what has ended is waited for by nobody, though a thread may not yet have woken
            while after is not None and not after.ended.is_set():
                chain.append(after)
                if after.thread == me:
                    raise _ring(chain)
                after = self._for.get(after.thread)
            self._for[me] = making
        try:
            making.ended.wait()
        finally:
            with self._lock:
                self._for.pop(me, None)
        if making.error is not None:
            raise making.error
        return making.plan


_WAITS = _Waits()


def _ring(chain: list[_Making]) -> RunError:
    first, *rest = (short(m.key) for m in chain)
    said = f"key {first} is being compiled by this thread, whose recording asks for it"
    if rest:
        said = f"key {first} is being compiled by a thread that waits for key "
        said += ", which another compiles that waits for key ".join(rest)
        said += ", which this thread compiles"
    return RunError("run.deadlock", f"{said}: they would wait for ever", place=call_site(),
                    remedy="compile one before the other, outside of its recording; ops that two "
                    "recordings share are a function that both call")  # fmt: skip


class PlanCache(Closing):
    """Plans by what they were compiled from; safe from many threads; a context manager.

    It never evicts: plans are closed with the cache.  Built programs are also kept on disk, so
    that a second process compiles nothing.
    """

    def __init__(self, runtime: Runtime) -> None:
        if not isinstance(runtime, Runtime):
            raise _option(f"runtime is {short(runtime)}", 'a runtime: PlanCache(Runtime("cpu"))')
        self._runtime = runtime
        self._plans: dict[Any, Plan] = {}
        self._compiling: dict[Any, _Making] = {}
        self._lock = threading.Lock()
        self._closed = False
        on_fork(self)

    def after_fork(self) -> None:
        """In a child process nobody goes on with what threads of the parent were compiling."""
        self._lock = threading.Lock()
        self._compiling = {}

    def compile(
        self, record: Callable[[Builder], object], key: Hashable | None = None, *,
        label: str = "", **options: Any,
    ) -> Plan:  # fmt: skip
        """The plan of what ``record(builder)`` records, compiled once.

        Without ``key`` the callback records on every call, since the graph's identity is the key;
        with one a hit costs a look-up.  Options as `Runtime.compile`; all but the label are part
        of the key.  A recording that is refused is not kept.
        """
        if not callable(record):
            raise _option(f"record is {short(record)}", "a function of a builder")
        chosen = self._runtime.options(**options)
        builder: Builder | None = None
        if key is None:
            builder = self._record(record)
            whole: Any = (str(builder.identity()), self._runtime.description, chosen)
        else:
            whole = ("key", key, self._runtime.description, chosen)
            if not _hashable(key):
                raise _option(f"key is {short(key)}, which has no hash", "a tuple, or a string")
        mine = _Making(key)
        try:
            plan = self._known(whole, mine)
            if plan is not None:
                return plan
            builder = builder or self._record(record)
            plan = self._runtime.compile(builder, label=label, **options)
            with self._lock:
                kept = not self._closed
                if kept:
                    self._plans[whole] = plan
            if not kept:  # closed by another thread, while this one compiled
                plan.close()
                raise self._was_closed()
            mine.plan = plan
            return plan
        except Exception as error:
            mine.error = error
            raise
        finally:  # without a plan and an error, this thread was interrupted
            with self._lock:
                if self._compiling.get(whole) is mine:
                    del self._compiling[whole]
            mine.ended.set()

    def _known(self, whole: Any, mine: _Making) -> Plan | None:
        """The plan that is there or that another thread compiles; None if that is this one's to
        do, which others see by `mine`."""
        while True:
            with self._lock:
                if self._closed:
                    raise self._was_closed()
                known = self._plans.get(whole)
                if known is not None:
                    return known
                making = self._compiling.setdefault(whole, mine)
            if making is mine:
                return None
            plan = _WAITS.wait(making)
            if plan is not None:
                return plan

    def _was_closed(self) -> RunError:
        return RunError("run.closed", "the plan cache was closed", place=call_site(),
                        remedy="make a new one")  # fmt: skip

    def _record(self, record: Callable[[Builder], object]) -> Builder:
        builder = self._runtime.builder()
        record(builder)
        return builder

    def __len__(self) -> int:
        with self._lock:
            return len({*self._plans, *self._compiling})

    def close(self) -> None:
        """Close every plan; may be called again.  Raises RunError ``run.busy`` (and stays open)
        while one has a submission in flight.  What other threads still compile is closed when it
        is done, and they are refused."""
        with self._lock:
            for whole, plan in list(self._plans.items()):
                plan.close()
                del self._plans[whole]
            # only now is it sure to close: what is being compiled must find its place until then
            self._closed = True


def _hashable(key: object) -> bool:
    try:
        hash(key)
    except TypeError:
        return False
    return True


def _option(what: str, remedy: str) -> UsageError:
    return UsageError("usage.option", what, place=call_site(), remedy=remedy)


class Buckets:
    """A sorted set of lengths to compile for; immutable.

    Raises UsageError ``usage.buckets``: none, one that is not positive, one twice.
    """

    __slots__ = ("_sizes",)

    def __init__(self, sizes: Iterable[int]) -> None:
        try:
            given = [plain(s) for s in sizes]
        except TypeError:
            raise _buckets(f"sizes is {sizes!r}", "a list of sizes: Buckets([64, 256])") from None
        wrong = [s for s in given if not isinstance(s, int) or isinstance(s, bool) or s <= 0]
        twice = sorted({s for s in given if given.count(s) > 1} - set(wrong))
        if not given:
            raise _buckets("there is no size")
        if wrong:
            raise _buckets(f"{wrong[0]!r} is no positive integer")
        if twice:
            raise _buckets(f"{twice[0]} is given twice")
        object.__setattr__(self, "_sizes", tuple(sorted(given)))

    def __setattr__(self, name: str, value: Any) -> None:
        raise AttributeError("buckets do not change")

    @property
    def sizes(self) -> tuple[int, ...]:
        """The sizes, ascending."""
        return self._sizes

    def for_(self, n: int) -> int:
        """The smallest size that holds n tokens.  Raises UsageError ``usage.buckets`` if none
        does: a prompt is never cut."""
        if type(plain(n)) is not int or n < 0:
            raise _buckets(f"{n!r} tokens", "an integer from 0")
        for size in self._sizes:
            if n <= size:
                return size
        raise _buckets(f"{n} tokens do not fit: the largest size is {self._sizes[-1]}",
                       "a larger bucket, or the prompt in pieces")  # fmt: skip


def _buckets(what: str, remedy: str = "give distinct positive sizes") -> UsageError:
    return UsageError("usage.buckets", what, place=call_site(), remedy=remedy)


class BlockPool(OfThisProcess):
    """Blocks of `positions` tokens of one cache, handed out to sequences; safe from many threads.

    A sequence holds a list of block ids (its row of the page table).  Blocks have reference
    counts, so that sequences may share a prefix.  Nothing is evicted: a pool that is empty
    refuses.  Raises UsageError ``usage.pool`` for sizes that are not positive.
    """

    def __init__(self, blocks: int, positions: int = 64) -> None:
        blocks, positions = plain(blocks), plain(positions)
        for name, value in (("blocks", blocks), ("positions", positions)):
            if not isinstance(value, int) or isinstance(value, bool) or value <= 0:
                raise _pool(f"{name} is {value!r}", "a positive integer")
        self.blocks = blocks
        self.positions = positions
        self._free = list(range(blocks - 1, -1, -1))
        self._counts = [0] * blocks
        self.after_fork()
        on_fork(self)

    def after_fork(self) -> None:
        """In a child process nobody holds the lock."""
        self._lock = threading.Lock()

    @property
    def free_blocks(self) -> int:
        return len(self._free)

    def grow(self, pages: Sequence[int] | None, n: int) -> list[int]:
        """The pages of a sequence of n positions: the given ones, in place, and new ones.

        Raises RunError ``run.pool_empty`` (nothing is taken), UsageError ``usage.pool`` for pages
        that are not held, or a count that is negative.
        """
        held, n = _pages(pages), plain(n)
        if type(n) is not int or n < 0:
            raise _pool(f"{n!r} positions", "an integer from 0")
        with self._lock:
            self._held(held)
            need = -(-n // self.positions) - len(held)
            if need > len(self._free):
                raise RunError(
                    "run.pool_empty", f"{need} blocks are needed, {len(self._free)} are free",
                    place=call_site(), remedy="free a sequence's pages, or make a larger pool",
                )  # fmt: skip
            for _ in range(need):
                page = self._free.pop()
                self._counts[page] = 1
                held.append(page)
        return held

    def share(self, pages: Sequence[int]) -> list[int]:
        """The same pages for another sequence: each counts one holder more."""
        held = _pages(pages)
        with self._lock:
            self._held(held)
            for page in held:
                self._counts[page] += 1
        return held

    def free(self, pages: Sequence[int]) -> None:
        """Give a sequence's pages back, all or none.  Raises UsageError ``usage.pool`` for a page
        that is not held, or that is given twice."""
        held = _pages(pages)
        with self._lock:
            self._held(held)
            for page in held:
                self._counts[page] -= 1
                if self._counts[page] == 0:
                    self._free.append(page)

    def _held(self, pages: list[Any]) -> None:
        for page in pages:
            good = type(page) is int and 0 <= page < self.blocks and self._counts[page] > 0
            if not good:
                raise _pool(f"page {page!r} is not held",
                            "free a page once, and only what grow gave")  # fmt: skip
        if len(set(pages)) != len(pages):
            raise _pool("a page is given twice", "give each page once")


def _pages(pages: Any) -> list[Any]:
    """A sequence's pages as a list of Python's integers (a row of a page table is as good)."""
    if pages is None:
        return []
    try:
        return [plain(page) for page in pages]
    except TypeError:
        raise _pool(f"pages are {pages!r}", "the list that grow gave") from None


def _pool(what: str, remedy: str) -> UsageError:
    return UsageError("usage.pool", what, place=call_site(), remedy=remedy)
