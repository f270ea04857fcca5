"""The pool of threads: Python threads that stay in native code, one pool for a whole process.

Laws: workers are daemons inside `lw_pool_worker` (the GIL is released there), started when a run
first needs them; runs of all sessions take turns (in native code: `LwPool.turn`), so that no more
threads work at once than one run asked for; by default a run takes as many as this process has
CPUs; a fork's child starts its own; at exit they are told to leave, and a pool that is stuck does
not keep the process.
"""

from __future__ import annotations

import os
import threading
import time
import weakref
from typing import Any

from lanewise.errors import RunError
from lanewise.runtime.cpus import available_cpus
from lanewise.runtime.library import Library
from lanewise.runtime.memory import Block
from lanewise.settings import MAX_THREADS

_EXIT_S = 2.0


class _Native:
    """What outlives a ThreadPool object until its last worker has left."""

    def __init__(self, library: Library) -> None:
        self.library = library
        self.init = library.function("lw_pool_init", "vpi")
        self.work = library.function("lw_pool_worker", "vpi")
        self.run = library.function("lw_pool_run", "vpppi")
        self.feed = library.function("lw_pool_feed", "ipppip")
        self.leave = library.function("lw_pool_stop", "ip")
        self.memory = Block(library.function("lw_pool_bytes", "l")(), "a pool", check=False)
        self.address = self.memory.address
        self.reset()
        _FORKED.add(self)

    def reset(self) -> None:
        self.init(self.address, MAX_THREADS)
        self.lock = threading.Lock()
        self.workers: list[threading.Thread] = []
        self.stopped = False

    after_fork = reset

    def grow(self, threads: int) -> None:
        """Start the workers 1 .. threads-1 that are missing."""
        with self.lock:
            while len(self.workers) < threads - 1 and not self.stopped:
                t = len(self.workers) + 1
                worker = threading.Thread(
                    target=_work, args=(self.work, self.address, t, self.memory),
                    name=f"lanewise-{t}", daemon=True,
                )  # fmt: skip
                start_thread(worker)
                self.workers.append(worker)

    def stop(self) -> None:
        """Let the workers leave; not while one is at work for a run that does not end."""
        with self.lock:
            if self.stopped:
                return
            end = time.monotonic() + _EXIT_S
            while not self.leave(self.address):
                if time.monotonic() > end:
                    return
                time.sleep(0.002)
            self.stopped = True
        for worker in self.workers:
            worker.join(_EXIT_S)


def start_thread(thread: threading.Thread) -> None:
    """Raises RunError ``run.threads`` where the system gives no more."""
    try:
        thread.start()
    except RuntimeError as error:
        raise RunError(
            "run.threads", f"no thread could be started ({error}): {threading.active_count()} run",
            remedy="use fewer threads, or raise the limits of memory and processes (ulimit -v, -u)",
        ) from error  # fmt: skip


def _work(work: Any, address: int, t: int, memory: Block) -> None:
    # `memory` is held as long as the worker may look at it.
    work(address, t)


class ThreadPool:
    """Threads that run native functions together.

    ``threads``: how many a run takes unless it says otherwise (default: `default_threads`).
    Raises RunError ``run.threads`` for a number that is not in 1 .. 1022.
    """

    def __init__(self, library: Library, threads: int | None = None) -> None:
        self.threads = check_threads(default_threads() if threads is None else threads)
        self._native = _Native(library)
        # At collection and at exit alike.
        self._finalizer = weakref.finalize(self, self._native.stop)

    @property
    def address(self) -> int:
        """Where the native LwPool is; the same for the pool's whole life, also after a fork."""
        return self._native.address

    def run(self, fn: int, ctx: int, threads: int | None = None) -> None:
        """Call ``fn(ctx, t, T)`` on T threads, the caller's among them, and wait for all.

        Raises RunError ``run.closed`` after `close`, ``run.threads``.
        """
        native = self._native
        count = self.threads if threads is None else threads
        self.ready(count)
        native.run(native.address, fn, ctx, count)

    def feed(self, fn: int, ctx: int, threads: int, feed: int) -> int:
        """As `run`, again and again (`runtime.feed`, at an address); how often."""
        self.ready(threads)
        return int(self._native.feed(self._native.address, fn, ctx, threads, feed))

    def ready(self, threads: int) -> None:
        """Have the workers of a run.  Raises RunError ``run.closed`` after `close`,
        ``run.threads``."""
        native = self._native
        if native.stopped:
            raise RunError("run.closed", "the thread pool was closed", remedy="make a new one")
        if len(native.workers) < threads - 1:
            native.grow(check_threads(threads))

    @property
    def library(self) -> Library:
        """What it runs in."""
        return self._native.library

    def close(self) -> None:
        """Stop the workers and wait for them; may be called again."""
        self._finalizer()


def default_threads() -> int:
    """The setting ``threads`` (LANEWISE_THREADS), else the CPUs that this process may use."""
    from lanewise import settings

    return int(settings.get("threads")) or min(available_cpus(), MAX_THREADS)


def check_threads(threads: int) -> int:
    """The number itself.  Raises RunError ``run.threads``."""
    if not 1 <= threads <= MAX_THREADS:
        raise RunError(
            "run.threads", f"{threads} threads", remedy=f"a number from 1 to {MAX_THREADS}"
        )
    return threads


_shared: ThreadPool | None = None
_shared_lock = threading.Lock()


def shared_pool(library: Library | None = None) -> ThreadPool:
    """The process's one pool; ``library`` (default: the machine's runtime library, built if it
    must be) is what it is made from the first time."""
    global _shared
    with _shared_lock:
        if _shared is None:
            if library is None:
                from lanewise.runtime.build import runtime_library
                from lanewise.targets.cpu import cpu_target

                library = Library(runtime_library(cpu_target()))
            _shared = ThreadPool(library)
        return _shared


# Objects whose `after_fork` a child process calls before anything else runs in it.
_FORKED: weakref.WeakSet[Any] = weakref.WeakSet()


def on_fork(thing: Any) -> None:
    """Have ``thing.after_fork()`` called in every child process, as long as it is alive."""
    _FORKED.add(thing)


def _after_fork() -> None:
    global _shared_lock
    _shared_lock = threading.Lock()
    for thing in list(_FORKED):
        thing.after_fork()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
