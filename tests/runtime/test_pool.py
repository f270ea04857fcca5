"""The pool: every thread once, turns between sessions, after a fork, at exit, limits."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from lanewise.errors import RunError
from lanewise.plan.program import Program
from lanewise.runtime import build, cpus, pool
from lanewise.runtime.library import Library
from lanewise.runtime.pool import ThreadPool
from lanewise.runtime.submitter import Submitter
from lanewise.targets.cpu import CpuTarget
from tests.together import together

# ctx: int32 counters[T], then a u32 that says how many threads are inside, then the most ever.
TEXT = """
#include <stdint.h>
#include "threads.h"
struct Ctx { LwPool* pool; int32_t* hits; int32_t* inside; int32_t* most; int64_t spin; };
extern "C" void lw_test_hit(Ctx* c, int32_t t, int32_t T) {
  int32_t now = __atomic_add_fetch(c->inside, 1, __ATOMIC_SEQ_CST);
  int32_t most = __atomic_load_n(c->most, __ATOMIC_SEQ_CST);
  while (now > most && !__atomic_compare_exchange_n(
      c->most, &most, now, 0, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST)) {}
  for (int64_t i = 0; i < c->spin; ++i) __asm__ volatile("" ::: "memory");
  lw_barrier(c->pool, t, T);
  c->hits[t] += T;
  lw_barrier(c->pool, t, T);
  __atomic_sub_fetch(c->inside, 1, __ATOMIC_SEQ_CST);
}
"""


class Counter:
    """The native context of TEXT."""

    def __init__(self, threads: ThreadPool, spin: int = 0) -> None:
        self.numbers = np.zeros(64, np.int32)
        at = self.numbers.ctypes.data
        words = [threads.address, at, at + 4 * 60, at + 4 * 61, spin]
        self.context = np.array(words, np.uint64)

    @property
    def address(self) -> int:
        return self.context.ctypes.data

    def hits(self, n: int) -> list[int]:
        return self.numbers[:n].tolist()

    @property
    def most(self) -> int:
        return int(self.numbers[61])


@pytest.fixture(scope="module")
def native(
    tmp_path_factory: pytest.TempPathFactory, target: CpuTarget
) -> Iterator[tuple[Library, int]]:
    with pytest.MonkeyPatch.context() as m:
        m.setenv("LANEWISE_CACHE_DIR", str(tmp_path_factory.mktemp("cache")))
        program = Program(TEXT, "pool", "cpu", (), (), (), (), (), 0, 0, 0)
        path = build.build(program, target)
        yield Library(build.runtime_library(target)), Library(path).address("lw_test_hit")


@pytest.mark.parametrize("threads", [1, 2, 3, 7])
def test_every_thread_once(native: tuple[Library, int], threads: int) -> None:
    library, fn = native
    workers = ThreadPool(library, threads)
    counter = Counter(workers)
    for _ in range(200):
        workers.run(fn, counter.address)
    assert counter.hits(threads + 1) == [200 * threads] * threads + [0]
    workers.run(fn, counter.address, 1)
    assert counter.hits(2)[0] == 200 * threads + 1
    workers.close()
    workers.close()
    with pytest.raises(RunError) as e:
        workers.run(fn, counter.address)
    assert e.value.code == "run.closed"


def test_runs_take_turns(native: tuple[Library, int]) -> None:
    library, fn = native
    workers = ThreadPool(library, 2)
    counter = Counter(workers, spin=20000)

    def many(_: int) -> None:
        for _ in range(50):
            workers.run(fn, counter.address)

    together(many, 4)
    assert counter.hits(3) == [400, 400, 0]
    assert counter.most <= 2
    workers.close()


def test_submitters_take_turns_with_runs_and_every_turn_ends(native: tuple[Library, int]) -> None:
    library, fn = native
    workers = ThreadPool(library, 2)
    workers.ready(2)
    counter = Counter(workers, spin=20000)

    def many(how: int) -> None:
        submitter = Submitter(workers)
        submitter.start(counter)
        for i in range(50):
            if how == 0:
                workers.run(fn, counter.address)
                continue
            turn = submitter.next
            submitter.post(fn, counter.address, 2)
            assert turn == i + 1
            while not submitter.wait(turn, 0.01):
                pass
            assert submitter.ended(turn) and submitter.ended(i) and not submitter.ended(turn + 1)
        submitter.leave()

    together(many, 4)
    assert counter.hits(3) == [400, 400, 0]
    assert counter.most <= 2
    submitters_left()
    workers.close()


def submitters_left() -> None:
    """Every submitter was told to leave, and does."""
    for thread in threading.enumerate():
        if thread.name == "lanewise-submit":
            thread.join(30)
            assert not thread.is_alive()


def test_what_was_posted_runs_before_a_submitter_leaves(native: tuple[Library, int]) -> None:
    library, fn = native
    workers = ThreadPool(library, 1)
    counter = Counter(workers, spin=3_000_000)
    for i in range(20):
        submitter = Submitter(workers)
        submitter.start(counter)
        if i % 2:
            time.sleep(0.005)  # asleep by now
        submitter.post(fn, counter.address, 1)
        submitter.leave()
        submitter.leave()
    submitters_left()
    assert counter.hits(1) == [20]
    workers.close()


def test_a_run_that_was_posted_before_the_pool_ended_runs_alone(
    native: tuple[Library, int],
) -> None:
    library, fn = native
    workers = ThreadPool(library, 2)
    counter = Counter(workers)
    workers.run(fn, counter.address)
    submitter = Submitter(workers)
    submitter.start(counter)
    workers.close()
    turn = submitter.next
    submitter.post(fn, counter.address, 2)
    while not submitter.wait(turn, 1):
        pass
    assert counter.hits(2) == [3, 2]  # two by two threads, then one by one
    submitter.leave()
    submitters_left()


def test_threads_end_with_the_pool(native: tuple[Library, int]) -> None:
    library, fn = native
    before = threading.active_count()
    workers = ThreadPool(library, 3)
    counter = Counter(workers)
    assert threading.active_count() == before  # none until a run needs them
    workers.run(fn, counter.address)
    assert threading.active_count() == before + 2
    del workers
    gc.collect()
    assert threading.active_count() == before


def test_threads_that_the_system_does_not_give(
    native: tuple[Library, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    library, fn = native
    workers, start, left = ThreadPool(library, 4), threading.Thread.start, [2]

    def few(thread: threading.Thread) -> None:
        left[0] -= 1
        if left[0] < 0:
            raise RuntimeError("can't start new thread")
        start(thread)

    counter = Counter(workers)
    monkeypatch.setattr(threading.Thread, "start", few)
    with pytest.raises(RunError, match=r"(?s)run.threads.*fewer threads"):
        workers.run(fn, counter.address)
    with pytest.raises(RunError, match=r"run.threads"):
        Submitter(workers).start()
    workers.run(fn, counter.address, 3)  # those that are there work
    monkeypatch.undo()
    workers.run(fn, counter.address)
    assert counter.hits(5) == [7, 7, 7, 4, 0]
    workers.close()


# Python 3.12 warns of what these tests are about.
@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_fork(native: tuple[Library, int]) -> None:
    library, fn = native
    workers = ThreadPool(library, 2)
    counter = Counter(workers)
    workers.run(fn, counter.address)
    child = os.fork()
    if child == 0:
        workers.run(fn, counter.address)
        os._exit(0 if counter.hits(2) == [4, 4] else 1)
    end = time.monotonic() + 20
    status = None
    while status is None and time.monotonic() < end:
        pid, ended = os.waitpid(child, os.WNOHANG)
        status = ended if pid else None
        time.sleep(0.01)
    if status is None:
        os.kill(child, 9)
        os.waitpid(child, 0)
    assert status == 0
    workers.run(fn, counter.address)
    assert counter.hits(2) == [4, 4]
    workers.close()


EXIT = """
import sys, warnings
warnings.simplefilter("ignore", DeprecationWarning)
from lanewise.runtime import build, pool
from lanewise.runtime.library import Library
from lanewise.targets.cpu import detect
text = 'extern "C" void lw_test_nothing(void*, int, int) {}'
from lanewise.plan.program import Program
program = Program(text, "id", "cpu", (), (), (), (), (), 0, 0, 0)
fn = Library(build.build(program, detect())).address("lw_test_nothing")
kept = pool.shared_pool()
assert pool.shared_pool() is kept
kept.run(fn, 0, 3)
if "fork" in sys.argv:
    import os
    if os.fork() == 0:
        kept.run(fn, 0, 3)
        sys.exit(0)
    assert os.wait()[1] == 0
print("end")
"""


@pytest.mark.parametrize("how", ["plain", "fork"])
def test_exit_does_not_hang(cache_dir: Path, how: str) -> None:
    env = dict(os.environ, PYTHONPATH=os.pathsep.join(sys.path))
    start = time.monotonic()
    done = subprocess.run(
        [sys.executable, "-c", EXIT, how], env=env, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0 and done.stdout.strip() == "end" and not done.stderr
    assert time.monotonic() - start < 20


def test_default_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LANEWISE_THREADS", "5")
    assert pool.default_threads() == 5
    monkeypatch.delenv("LANEWISE_THREADS")
    monkeypatch.setattr(cpus, "affinity", lambda: 8)
    monkeypatch.setattr(cpus, "cpu_quota", lambda: 1.5)
    assert pool.default_threads() == 2
    monkeypatch.setattr(cpus, "cpu_quota", lambda: None)
    assert pool.default_threads() == 8
    monkeypatch.setattr(cpus, "cpu_quota", lambda: 0.1)
    assert pool.default_threads() == 1
    with pytest.raises(RunError) as e:
        pool.check_threads(0)
    assert e.value.code == "run.threads"


def test_affinity_limits() -> None:
    mine = os.sched_getaffinity(0)
    try:
        os.sched_setaffinity(0, {min(mine)})
        assert cpus.available_cpus() == 1
    finally:
        os.sched_setaffinity(0, mine)


def test_cgroup_quota(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root, mine = tmp_path / "fs", tmp_path / "cgroup"
    monkeypatch.setattr(cpus, "CGROUP_ROOT", root)
    monkeypatch.setattr(cpus, "SELF_CGROUP", mine)
    assert cpus.cpu_quota() is None
    inner = root / "a" / "b"
    inner.mkdir(parents=True)
    mine.write_text("0::/a/b\n")
    (inner / "cpu.max").write_text("max 100000\n")
    assert cpus.cpu_quota() is None
    (root / "a" / "cpu.max").write_text("250000 100000\n")
    assert cpus.cpu_quota() == 2.5  # the parent's limit holds too
    (inner / "cpu.max").write_text("50000 100000\n")
    assert cpus.cpu_quota() == 0.5
    old = root / "cpu" / "x"
    old.mkdir(parents=True)
    mine.write_text("4:cpu,cpuacct:/x\n")
    (old / "cpu.cfs_quota_us").write_text("-1\n")
    (old / "cpu.cfs_period_us").write_text("100000\n")
    assert cpus.cpu_quota() is None
    (old / "cpu.cfs_quota_us").write_text("300000\n")
    assert cpus.cpu_quota() == 3.0
