"""A submitter: a thread in native code that runs what is posted to it while its poster goes on.

Laws: one submission at a time, each with a turn to ask for; the thread spins for a short time after
one, then sleeps; what a run uses (`keep`) lives as long as the thread, and the thread until it was
told to leave and has ended what was posted.  A fork's child makes its own.
"""

from __future__ import annotations

import threading
from typing import Any

from lanewise.runtime.memory import Block
from lanewise.runtime.pool import ThreadPool, start_thread

_TURNS = 0x7FFFFFFF


class Submitter:
    """One submission in flight of a pool's runs."""

    def __init__(self, pool: ThreadPool) -> None:
        library = pool.library
        self._memory = Block(library.function("lw_submit_bytes", "l")(), "a thread", check=False)
        self._address = address = self._memory.address
        library.function("lw_submit_init", "vpp")(address, pool.address)
        self._work = library.function("lw_submit_worker", "vp")
        self._post = library.function("lw_submit_post", "vpppi")
        self._ended = library.function("lw_submit_ended", "ipu")
        self._wait = library.function("lw_submit_wait", "ipul")
        self._leave = library.function("lw_submit_leave", "vp")
        self._word = self._memory.view("u4", (1,)).data  # of what was posted: see threads.h
        self._pool = pool

    def start(self, *keep: Any) -> None:
        """Start the thread; `keep` is kept alive for what it runs."""
        start_thread(threading.Thread(
            target=_work, args=(self._work, self._address, self._memory, self._pool, keep),
            name="lanewise-submit", daemon=True,
        ))  # fmt: skip

    @property
    def next(self) -> int:
        """The turn that the next `post` begins."""
        return ((self._word[0] >> 1) + 1) & _TURNS

    def post(self, fn: int, ctx: int, threads: int) -> None:
        """Run ``fn(ctx, t, T)`` on T threads as turn `next`.  What was posted before has ended."""
        self._post(self._address, fn, ctx, threads)

    def posted(self, turn: int) -> bool:
        """Was it posted (or was that broken off before)?"""
        return turn != self.next

    def ended(self, turn: int) -> bool:
        """Has a turn ended?"""
        return bool(self._ended(self._address, turn))

    def wait(self, turn: int, seconds: float) -> bool:
        """Wait so long at most, or less; True if the turn has ended."""
        return bool(self._wait(self._address, turn, int(seconds * 1e9)))

    def leave(self) -> None:
        """Let the thread end after what was posted; may be called again."""
        self._leave(self._address)


def _work(work: Any, address: int, *keep: Any) -> None:
    work(address)
