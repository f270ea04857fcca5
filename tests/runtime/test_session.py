"""Sessions: memory as the manifest says, views, scalars, one run at a time, closing, speed."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator

import numpy as np
import pytest

from lanewise.errors import RunError, UsageError
from lanewise.ir.graph import Type
from lanewise.plan.program import Buffer, Constant, FormEntry, Program
from lanewise.runtime import build
from lanewise.runtime.library import Library
from lanewise.runtime.pool import ThreadPool
from lanewise.runtime.session import Session
from lanewise.targets.cpu import CpuTarget

# out[i] = in[i] * w[i] * factor for i < rows, 0 after; total += rows; checks memory on the way.
TEXT = """
#include <stdint.h>
#include "threads.h"
struct LwContext {
  uint8_t* arena; uint8_t* priv; int64_t priv_stride; uint8_t* scratch; int64_t scratch_stride;
  uint8_t* const* buffers; const uint32_t* scalars; LwPool* pool;
};
static void fill(uint8_t* p, int64_t n, int v) {
  for (int64_t i = 0; i < n; ++i) p[i] = (uint8_t)v;
}
static void step(LwContext* c, int32_t t, int32_t T, int in, int out, int64_t n) {
  const float* w = (const float*)c->buffers[0];
  float* total = (float*)c->buffers[1];
  const float* x = (const float*)c->buffers[in];
  float* y = (float*)c->buffers[out];
  float factor; __builtin_memcpy(&factor, &c->scalars[1], 4);
  uint32_t rows = c->scalars[0];
  float* mid = (float*)c->arena;
  lw_range r = lw_split(n, t, T);
  for (int64_t i = r.begin; i < r.end; ++i) mid[i] = i < rows ? x[i] * w[i % 4] : 0.0f;
  fill(c->priv + t * c->priv_stride, 100, t);
  fill(c->scratch + t * c->scratch_stride, 5000, t);
  lw_barrier(c->pool, t, T);
  if (t == 0) {
    for (int64_t i = 0; i < n; ++i) y[i] = mid[i] * factor;
    total[0] += (float)rows;
    total[1] = (float)T;
    for (int32_t u = 0; u < T; ++u)  // nobody wrote into another's slice
      if (c->priv[u * c->priv_stride + 99] != u || c->scratch[u * c->scratch_stride + 4999] != u)
        total[2] = -1.0f;
  }
}
extern "C" void lw_one(LwContext* c, int32_t t, int32_t T) { step(c, t, T, 2, 3, 1); }
extern "C" void lw_many(LwContext* c, int32_t t, int32_t T) { step(c, t, T, 4, 5, 1000); }
extern "C" void lw_slow(LwContext* c, int32_t t, int32_t T) {
  if (t == 0) for (int64_t i = 0; i < 400000000; ++i) __asm__ volatile("" ::: "memory");
}
"""
F4 = Type("f32", (4,))
PROGRAM = Program(
    text=TEXT,
    identity="test",
    target="cpu",
    objects=(),
    buffers=(
        Buffer("w", "constant", 16, F4),
        Buffer("total", "state", 16, F4),
        Buffer("one.x", "input", 4, Type("f32", (1,))),
        Buffer("one.y", "output", 4, Type("f32", (1, 1))),
        Buffer("many.x", "input", 4000, Type("f32", (1000,))),
        Buffer("many.y", "output", 4000, Type("f32", (10, 100))),
    ),
    constants=(Constant("w", F4, "raw", 16),),
    forms=(
        FormEntry("one", "lw_one", 1, (("x", 2),), (("y", 3),)),
        FormEntry("many", "lw_many", 1000, (("x", 4),), (("y", 5),)),
        FormEntry("slow", "lw_slow", 1, (), ()),
    ),
    scalars=(("rows", "u32"), ("factor", "f32")),
    arena_bytes=4000,
    private_bytes=100,
    scratch_bytes=5000,
)


def aligned(values: list[float]) -> np.ndarray:
    raw = np.zeros(len(values) * 4 + 64, np.uint8)
    start = -raw.ctypes.data % 64
    found = raw[start : start + len(values) * 4].view(np.float32)
    found[:] = values
    return found


W = aligned([1.0, 2.0, 3.0, 4.0])


@pytest.fixture(scope="module")
def made(
    tmp_path_factory: pytest.TempPathFactory, target: CpuTarget
) -> Iterator[tuple[Library, ThreadPool]]:
    """The program and a pool, compiled once for all tests here."""
    with pytest.MonkeyPatch.context() as m:
        m.setenv("LANEWISE_CACHE_DIR", str(tmp_path_factory.mktemp("cache")))
        pool = ThreadPool(Library(build.runtime_library(target)), 2)
        yield Library(build.build(PROGRAM, target)), pool
        pool.close()


@pytest.fixture
def library(made: tuple[Library, ThreadPool]) -> Library:
    return made[0]


@pytest.fixture
def pool(made: tuple[Library, ThreadPool]) -> ThreadPool:
    return made[1]


@pytest.mark.parametrize("threads", [1, 2, 3, 5])
def test_forms(library: Library, pool: ThreadPool, threads: int) -> None:
    with Session(PROGRAM, library, {"w": W}, threads=threads, pool=pool) as session:
        x, y = session.input("many", "x"), session.output("many", "y")
        assert x.shape == (1000,) and y.shape == (10, 100) and y.dtype == np.float32
        assert x.ctypes.data % 64 == 0
        x[:] = np.arange(1000)
        session.run("many", {"rows": 700, "factor": 0.5})
        expected = np.arange(1000) * np.tile([1.0, 2.0, 3.0, 4.0], 250) * 0.5
        expected[700:] = 0
        assert np.array_equal(y.ravel(), expected)
        session.input("one", "x")[0] = 3.0
        session.run("one", {"rows": 1})  # the factor is kept
        assert session.output("one", "y").tolist() == [[1.5]]
        assert session.state("total").tolist() == [701.0, threads, 0.0, 0.0]
        assert np.array_equal(y.ravel(), expected)  # forms have their own outputs


def test_own_states(library: Library, pool: ThreadPool) -> None:
    total = aligned([5.0, 0.0, 0.0, 0.0])
    with Session(PROGRAM, library, {"w": W}, states={"total": total}, pool=pool) as session:
        session.run("one", {"rows": 1, "factor": 1.0})
        assert total[0] == 6.0
        session.state("total")[0] = 1.0
        assert total[0] == 1.0


def test_refusals(library: Library, pool: ThreadPool) -> None:
    def refused(code: str, **arguments: object) -> None:
        with pytest.raises((RunError, UsageError)) as e:
            Session(PROGRAM, library, **{"constants": {"w": W}, "pool": pool, **arguments})
        assert e.value.code == code and e.value.remedy

    refused("run.buffer", constants={})
    refused("run.buffer", constants={"w": W[:3]})
    refused("run.buffer", constants={"w": np.repeat(W, 2)[::2]})
    refused("run.buffer", constants={"w": aligned([0.0] * 5)[1:]})
    refused("usage.port", states={"other": W})
    refused("run.threads", threads=0)


def test_scalars(library: Library, pool: ThreadPool) -> None:
    with Session(PROGRAM, library, {"w": W}, pool=pool) as session:
        for scalars, code in (
            ({}, "run.scalar"),
            ({"rows": 1}, "run.scalar"),
            ({"rows": -1, "factor": 1.0}, "run.scalar"),
            ({"rows": 1 << 32, "factor": 1.0}, "run.scalar"),
            ({"rows": 1.5, "factor": 1.0}, "run.scalar"),
            ({"rowz": 1}, "usage.scalar"),
        ):
            with pytest.raises((RunError, UsageError)) as e:
                session.run("one", scalars)
            assert e.value.code == code
        with pytest.raises(UsageError) as u:
            session.run("two", {})
        assert u.value.code == "usage.form" and "one, many" in u.value.remedy
        with pytest.raises(UsageError) as u:
            session.input("one", "y")
        assert u.value.code == "usage.port"
        session.run("one", {"rows": np.uint32(1), "factor": np.float32(2)})


def test_one_run_at_a_time(library: Library, pool: ThreadPool) -> None:
    session = Session(PROGRAM, library, {"w": W}, pool=pool)
    session.run("one", {"rows": 1, "factor": 1.0})
    slow = threading.Thread(target=session.run, args=("slow",))
    slow.start()
    time.sleep(0.03)
    for call in (lambda: session.run("one"), session.close):
        with pytest.raises(RunError) as e:
            call()
        assert e.value.code == "run.busy"
    slow.join()
    session.run("one")
    session.close()


def test_closed(library: Library, pool: ThreadPool) -> None:
    session = Session(PROGRAM, library, {"w": W}, pool=pool)
    assert session.nbytes > 9000
    y = session.output("one", "y")
    session.input("one", "x")[0] = 8.0
    session.run("one", {"rows": 1, "factor": 1.0})
    session.close()
    session.close()
    assert y.tolist() == [[8.0]] and session.nbytes == 0
    for call in (lambda: session.run("one"), lambda: session.input("one", "x")):
        with pytest.raises(RunError) as e:
            call()
        assert e.value.code == "run.closed"


# Python 3.12 warns of what these tests are about.
@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_fork_while_a_run_is_in_flight(library: Library, pool: ThreadPool) -> None:
    session = Session(PROGRAM, library, {"w": W}, pool=pool)
    session.run("one", {"rows": 1, "factor": 1.0})
    slow = threading.Thread(target=session.run, args=("slow",))
    slow.start()
    time.sleep(0.03)
    child = os.fork()
    if child == 0:
        try:
            session.run("one", {"rows": 1})
            os._exit(0 if session.state("total")[0] == 2.0 else 1)
        except BaseException:
            os._exit(2)
    assert os.waitpid(child, 0)[1] == 0
    slow.join()
    assert session.state("total")[0] == 1.0
    session.close()


def test_overhead(library: Library, pool: ThreadPool) -> None:
    session = Session(PROGRAM, library, {"w": W}, threads=1, pool=pool)
    scalars = {"rows": 1, "factor": 1.0}
    session.run("one", scalars)
    best = 1.0
    for _ in range(20):
        start = time.perf_counter()
        for _ in range(100):
            session.run("one", scalars)
        best = min(best, (time.perf_counter() - start) / 100)
    print(f"{best * 1e6:.2f} us a run")
    assert best < 20e-6
    session.close()
