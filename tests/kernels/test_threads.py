"""The pool and its barrier: no hang, no lost write, also with more threads than cores."""

from __future__ import annotations

import ctypes
import os
import threading
import time
from collections.abc import Iterator

import numpy as np
import pytest

from tests.kernels.native import aligned
from tests.kernels.rows import library, sets

# A thread that hangs in native code sees no signal: the watchdog must end the process.
HANGS = pytest.mark.timeout(60, method="thread")
TASK = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int32, ctypes.c_int32)


class Context(ctypes.Structure):
    """TaskContext of driver_rows.cpp."""

    _fields_ = (
        ("pool", ctypes.c_void_p), ("rounds", ctypes.c_int64), ("errors", ctypes.c_int64),
        ("mode", ctypes.c_int64), ("lines", ctypes.c_void_p),
    )  # fmt: skip


class Pool:
    """A pool whose workers are Python threads."""

    def __init__(self, threads: int) -> None:
        self.lib = library(sets()[0])
        self.lib.lw_pool_bytes.restype = ctypes.c_int64
        self.lib.lw_fp_enter.restype = ctypes.c_int64
        self.memory = aligned(self.lib.lw_pool_bytes())
        self.address = ctypes.c_void_p(self.memory.ctypes.data)
        self.lib.lw_pool_init(self.address, threads)
        self.workers = [
            threading.Thread(target=self.lib.lw_pool_worker, args=(self.address, t), daemon=True)
            for t in range(1, threads)
        ]
        for w in self.workers:
            w.start()

    def run(self, task: object, context: object, threads: int) -> None:
        self.lib.lw_pool_run(self.address, task, context, threads)

    def barriers(self, rounds: int, threads: int) -> int:
        """Runs the task of driver_rows.cpp; returns how many errors it saw."""
        lines = aligned(64 * max(threads, 1))
        c = Context(self.memory.ctypes.data, rounds, 0, 0, lines.ctypes.data)
        self.run(self.lib.lw_test_task, ctypes.byref(c), threads)
        return int(c.errors)

    def stop(self) -> None:
        self.lib.lw_pool_stop(self.address)
        for w in self.workers:
            w.join(10)
            assert not w.is_alive()


@pytest.fixture(params=[1, 2, 3, 4])
def pool(request: pytest.FixtureRequest) -> Iterator[Pool]:
    p = Pool(request.param)
    yield p
    p.stop()


@HANGS
def test_thousands_of_barriers(pool: Pool) -> None:
    threads = len(pool.workers) + 1
    rounds = 5000 if threads <= (os.cpu_count() or 1) else 500
    started = time.perf_counter()
    assert pool.barriers(rounds, threads) == 0
    each = (time.perf_counter() - started) / rounds / 2
    print(f"{threads} threads: {each * 1e9:.0f} ns a barrier")


@HANGS
def test_many_short_runs_of_any_width(pool: Pool) -> None:
    threads = len(pool.workers) + 1
    for i in range(600):
        assert pool.barriers(i % 3, 1 + i % threads) == 0


@HANGS
def test_sleepers_wake(pool: Pool) -> None:
    """Pauses long enough that every worker sleeps in the kernel before the next run."""
    threads = len(pool.workers) + 1
    for _ in range(20):
        time.sleep(0.005)
        assert pool.barriers(2, threads) == 0


@HANGS
def test_each_thread_runs_once(pool: Pool) -> None:
    threads = len(pool.workers) + 1
    seen: list[tuple[int, int]] = []
    task = TASK(lambda _context, t, width: seen.append((t, width)))
    for width in range(1, threads + 1):
        seen.clear()
        pool.run(task, None, width)
        assert sorted(seen) == [(t, width) for t in range(width)]
    seen.clear()
    pool.run(task, None, threads + 5)  # more than there are: all of them
    assert sorted(seen) == [(t, threads) for t in range(threads)]


@HANGS
def test_two_pools_at_once_on_too_few_cores() -> None:
    """Eight threads that all spin: the bounded spin must give cores away."""
    pools = [Pool(4), Pool(4)]
    errors: list[int] = []
    callers = [
        threading.Thread(target=lambda p=p: errors.append(p.barriers(300, 4))) for p in pools
    ]
    for c in callers:
        c.start()
    for c in callers:
        c.join(50)
    assert errors == [0, 0]
    for p in pools:
        p.stop()


def test_float_mode_is_set_inside_and_restored() -> None:
    pool = Pool(2)
    before = pool.lib.lw_fp_enter()
    try:
        if os.uname().machine == "x86_64":
            odd = 0x1F80 | 0x8040 | 0x6000  # flush to zero, denormals are zero, towards zero
            pool.lib.lw_fp_exit(ctypes.c_int64(odd))
            assert pool.barriers(1, 2) == 0
            assert pool.lib.lw_fp_enter() == odd
    finally:
        pool.lib.lw_fp_exit(ctypes.c_int64(before))
    assert np.float32(2.0**-126) * np.float32(0.5) != 0
    pool.stop()
