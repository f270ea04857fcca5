"""Around plans: a cache of them, buckets of lengths, and blocks of a cache shared by sequences.

Laws: nothing here evicts, truncates or rounds on its own: what does not fit is refused.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable, Iterable, Sequence
from concurrent.futures import Future
from typing import Any

from lanewise.closing import Closing
from lanewise.errors import RunError, UsageError
from lanewise.tensor.builder import Builder
from lanewise.tensor.plan import Plan
from lanewise.tensor.runtime import Runtime


class PlanCache(Closing):
    """Plans by what they were compiled from; safe from many threads; a context manager.

    It never evicts: plans are closed with the cache.  Built programs are also kept on disk, so
    that a second process compiles nothing.
    """

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._plans: dict[Any, Future[Plan]] = {}
        self._lock = threading.Lock()
        self._closed = False

    def compile(
        self, record: Callable[[Builder], object], key: Hashable | None = None, *,
        label: str = "", **options: Any,
    ) -> Plan:  # fmt: skip
        """The plan of what ``record(builder)`` records, compiled once.

        Without ``key`` the callback records on every call, since the graph's identity is the key;
        with one a hit costs a look-up.  Options as `Runtime.compile`; all but the label are part
        of the key.  A recording that is refused is not kept.
        """
        chosen = tuple(sorted((k, v) for k, v in options.items()))
        builder: Builder | None = None
        if key is None:
            builder = self._record(record)
            whole: Any = (str(builder.identity()), self._runtime.description, chosen)
        else:
            whole = ("key", key, self._runtime.description, chosen)
        with self._lock:
            if self._closed:
                raise RunError("run.closed", "the plan cache was closed", remedy="make a new one")
            found = self._plans.get(whole)
            mine = found is None
            if found is None:
                found = self._plans[whole] = Future()
        if mine:
            try:
                builder = builder or self._record(record)
                found.set_result(self._runtime.compile(builder, label=label, **options))
            except BaseException as error:
                with self._lock:
                    self._plans.pop(whole, None)
                found.set_exception(error)
        return found.result()

    def _record(self, record: Callable[[Builder], object]) -> Builder:
        builder = self._runtime.builder()
        record(builder)
        return builder

    def __len__(self) -> int:
        return len(self._plans)

    def close(self) -> None:
        """Close every plan; may be called again.  Raises RunError ``run.busy`` (and stays open)
        while one has a submission in flight."""
        with self._lock:
            for whole, future in list(self._plans.items()):
                if future.done() and future.exception() is None:
                    future.result().close()
                del self._plans[whole]
            self._closed = True


class Buckets:
    """A sorted set of lengths to compile for; immutable.

    Raises UsageError ``usage.buckets``: none, one that is not positive, one twice.
    """

    __slots__ = ("_sizes",)

    def __init__(self, sizes: Iterable[int]) -> None:
        given = list(sizes)
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
        for size in self._sizes:
            if n <= size:
                return size
        raise _buckets(f"{n} tokens do not fit: the largest size is {self._sizes[-1]}")


def _buckets(what: str) -> UsageError:
    return UsageError("usage.buckets", what, remedy="give distinct positive sizes")


class BlockPool:
    """Blocks of `positions` tokens of one cache, handed out to sequences; safe from many threads.

    A sequence holds a list of block ids (its row of the page table).  Blocks have reference
    counts, so that sequences may share a prefix.  Nothing is evicted: a pool that is empty
    refuses.  Raises UsageError ``usage.pool`` for sizes that are not positive.
    """

    def __init__(self, blocks: int, positions: int = 64) -> None:
        for name, value in (("blocks", blocks), ("positions", positions)):
            if not isinstance(value, int) or isinstance(value, bool) or value <= 0:
                raise UsageError("usage.pool", f"{name} is {value!r}", remedy="a positive integer")
        self.blocks = blocks
        self.positions = positions
        self._free = list(range(blocks - 1, -1, -1))
        self._counts = [0] * blocks
        self._lock = threading.Lock()

    @property
    def free_blocks(self) -> int:
        return len(self._free)

    def grow(self, pages: Sequence[int] | None, n: int) -> list[int]:
        """The pages of a sequence of n positions: the given ones, in place, and new ones.

        Raises RunError ``run.pool_empty`` (nothing is taken), UsageError ``usage.pool`` for pages
        that are not held, or a count that is negative.
        """
        held = list(pages or ())
        if n < 0:
            raise UsageError("usage.pool", f"{n} positions", remedy="0 or more")
        with self._lock:
            self._held(held)
            need = -(-n // self.positions) - len(held)
            if need > len(self._free):
                raise RunError(
                    "run.pool_empty", f"{need} blocks are needed, {len(self._free)} are free",
                    remedy="free a sequence's pages, or make a larger pool",
                )  # fmt: skip
            for _ in range(need):
                page = self._free.pop()
                self._counts[page] = 1
                held.append(page)
        return held

    def share(self, pages: Sequence[int]) -> list[int]:
        """The same pages for another sequence: each counts one holder more."""
        with self._lock:
            self._held(pages)
            for page in pages:
                self._counts[page] += 1
        return list(pages)

    def free(self, pages: Sequence[int]) -> None:
        """Give a sequence's pages back, all or none.  Raises UsageError ``usage.pool`` for a page
        that is not held, or that is given twice."""
        with self._lock:
            self._held(pages)
            for page in pages:
                self._counts[page] -= 1
                if self._counts[page] == 0:
                    self._free.append(page)

    def _held(self, pages: Sequence[int]) -> None:
        if len(set(pages)) != len(pages):
            raise UsageError("usage.pool", "a page is given twice", remedy="give each page once")
        for page in pages:
            good = isinstance(page, int) and 0 <= page < self.blocks and self._counts[page] > 0
            if not good:
                raise UsageError("usage.pool", f"page {page} is not held",
                                 remedy="free a page once, and only what grow gave")
