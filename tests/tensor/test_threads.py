"""Many threads over one runtime, one cache and one pool of blocks, closing in any order: right
results or a refusal by name, and nothing that is left open."""

from __future__ import annotations

import os
import random
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable

import numpy as np
import pytest

from lanewise import tensor as t
from lanewise.errors import LanewiseError, RunError
from lanewise.tensor import cache as cache_module
from tests.tensor.support import f32
from tests.together import together

NAMED = {"run.busy", "run.closed", "run.open_plans"}


def record(n: int) -> Callable[[t.Builder], None]:
    def body(b: t.Builder) -> None:
        x = b.input("x", t.f32, (n,))
        b.output("y", x + b.input("z", t.f32, (n,)))

    return body


def one_round(seed: int, seen: Counter[str]) -> None:
    """Threads compile through a cache, submit, and close plans, cache and runtime as they like."""
    rt = t.Runtime("cpu", threads=1)
    cache = t.PlanCache(rt)

    def work(i: int) -> None:
        rng = np.random.default_rng((seed, i))
        for _ in range(6):
            n = int(rng.integers(1, 4))
            x, z, y = f32(rng, n), f32(rng, n), np.zeros(n, np.float32)
            fence = None
            try:
                plan = cache.compile(record(n), key=n if rng.integers(2) else None,
                                     max_in_flight=2)  # fmt: skip
                fence = plan.submit(x=x, z=z, y=y)
                if rng.integers(8) == 0:
                    plan.close()
                fence.wait(60)
                assert (y == x + z).all()
                seen["right"] += 1
            except LanewiseError as error:
                assert error.code in NAMED and error.remedy, error
                seen[error.code] += 1
                if fence is not None and fence.error is None:  # `close` was what was refused
                    fence.wait(60)
                    assert (y == x + z).all()
            if rng.integers(12) == 0:
                try:
                    random.choice((cache, rt)).close()
                except RunError as error:
                    assert error.code in NAMED, error
                    seen[error.code] += 1

    together(work, 4)
    cache.close()
    rt.close()  # nothing is left open
    with pytest.raises(RunError, match=r"run.closed"):
        cache.compile(record(1))


@pytest.mark.parametrize("rounds", [40, pytest.param(1000, marks=pytest.mark.slow)])
def test_threads_submit_compile_and_close_in_any_order(rounds):
    seen: Counter[str] = Counter()
    for seed in range(rounds):
        one_round(seed, seen)
    assert seen["right"] > rounds and {"run.closed", "run.busy"} < set(seen), seen


def outcome(call: Callable[[], object], into: dict[str, object], name: str) -> threading.Thread:
    """A thread that runs `call`, and puts what it gives or raises under `name`."""

    def body() -> None:
        try:
            into[name] = call()
        except BaseException as error:
            into[name] = error

    thread = threading.Thread(target=body, daemon=True)  # one that hangs fails, and no more
    thread.start()
    return thread


def ended(*threads: threading.Thread) -> None:
    for thread in threads:
        thread.join(30)
        assert not thread.is_alive()


def test_a_recording_that_asks_for_its_own_key_is_refused():
    with t.Runtime("reference") as rt, t.PlanCache(rt) as cache:
        got: dict[str, object] = {}

        def itself(b: t.Builder) -> None:
            cache.compile(record(3), key="s")
            record(2)(b)

        def other(b: t.Builder) -> None:
            assert cache.compile(record(3), key="inner") is cache.compile(record(3), key="inner")
            record(2)(b)

        ended(outcome(lambda: cache.compile(itself, key="s"), got, "itself"))
        error = got["itself"]
        assert isinstance(error, RunError) and error.code == "run.deadlock", error
        assert "key 's' is being compiled by this thread" in error.message
        assert error.place.startswith(__file__) and "before the other" in error.remedy
        ended(outcome(lambda: cache.compile(other, key="s"), got, "other"))
        assert isinstance(got["other"], t.Plan) and len(cache) == 2  # the remedy; no key is lost


@pytest.mark.parametrize("caches", [1, 2, 3])
def test_recordings_that_ask_for_each_other_on_threads_are_refused(caches):
    """Three threads in a ring, over one cache or several."""
    with t.Runtime("reference") as rt:
        all_ = [t.PlanCache(rt) for _ in range(caches)]
        gate, got = threading.Barrier(3), dict[str, object]()

        def crossed(i: int) -> object:
            def body(b: t.Builder) -> None:
                gate.wait(30)
                j = (i + 1) % 3
                all_[j % caches].compile(record(2), key=j)
                record(3)(b)

            return all_[i % caches].compile(body, key=i)

        ended(*[outcome(lambda i=i: crossed(i), got, str(i)) for i in range(3)])
        for error in got.values():
            assert isinstance(error, RunError) and error.code == "run.deadlock", got
            assert error.message.count("waits for key") == 2 and error.remedy
        for cache in all_:  # nothing is left that the next would wait for
            assert len(cache) == 0
            ended(outcome(lambda cache=cache: cache.compile(record(2), key=0), got, "again"))
            assert isinstance(got["again"], t.Plan)
            cache.close()


@pytest.mark.parametrize("interrupt", [KeyboardInterrupt, SystemExit])
def test_a_thread_that_is_interrupted_leaves_the_plan_to_those_that_wait(interrupt):
    with t.Runtime("reference") as rt, t.PlanCache(rt) as cache:
        inside, go, got = threading.Event(), threading.Event(), dict[str, object]()
        calls: list[int] = []

        def stopped(b: t.Builder) -> None:
            inside.set()
            assert go.wait(30)
            raise interrupt

        def whole(b: t.Builder) -> None:
            calls.append(1)
            record(2)(b)

        first = outcome(lambda: cache.compile(stopped, key="k"), got, "first")
        assert inside.wait(30)
        waiters = [outcome(lambda: cache.compile(whole, key="k"), got, name) for name in ("a", "b")]
        while len(cache_module._WAITS._for) < 2:
            time.sleep(0.001)
        go.set()
        ended(first, *waiters)
        assert isinstance(got["first"], interrupt)
        assert isinstance(got["a"], t.Plan) and got["a"] is got["b"] and len(calls) == 1
        assert not cache_module._WAITS._for


def test_a_cache_that_closes_while_a_thread_compiles_leaves_nothing_open():
    with t.Runtime("cpu", threads=1) as rt:
        cache, inside, go = t.PlanCache(rt), threading.Event(), threading.Event()
        refused: list[LanewiseError] = []

        def slow(b: t.Builder) -> None:
            record(2)(b)
            inside.set()
            assert go.wait(30)

        def work() -> None:
            with pytest.raises(RunError) as caught:
                cache.compile(slow, key="slow")
            refused.append(caught.value)

        thread = threading.Thread(target=work)
        thread.start()
        assert inside.wait(30)
        cache.close()
        go.set()
        thread.join(60)
        assert [e.code for e in refused] == ["run.closed"] and len(cache) == 0


def test_a_cache_that_could_not_close_keeps_what_a_thread_compiles_meanwhile():
    with t.Runtime("reference") as rt, t.PlanCache(rt) as cache:
        inside, go, ran = threading.Event(), threading.Event(), threading.Event()
        made: list[t.Plan] = []

        def slow(b: t.Builder) -> None:
            record(2)(b)
            inside.set()
            assert go.wait(30)

        thread = threading.Thread(target=lambda: made.append(cache.compile(slow, key="slow")))
        thread.start()
        assert inside.wait(30)
        busy = cache.compile(record(3), key="busy")
        run = busy._all[0].engine.run
        busy._all[0].engine.run = lambda numbers: (ran.wait(30), run(numbers))
        x, y = np.ones(3, np.float32), np.zeros(3, np.float32)
        fence = busy.submit(x=x, z=x, y=y)
        with pytest.raises(RunError, match=r"run.busy"):
            cache.close()
        go.set()
        thread.join(60)
        assert len(cache) == 2 and cache.compile(slow, key="slow") is made[0]
        ran.set()
        fence.wait(60)
        assert (y == 2).all()
    with pytest.raises(RunError, match=r"run.closed"):  # the cache closed both, and then rt could
        made[0].run(x=x[:2], z=x[:2], y=y[:2])


FIRST = """
import sys, threading
from lanewise import tensor as t
sys.setswitchinterval(1e-6)
rt, gate, said = t.Runtime("reference"), threading.Barrier(6), []
def work():
    gate.wait(30)
    try:
        b = rt.builder("g")
        b.output("y", t.exp(b.input("x", t.f32, (4, 8))))
        b.compile().close()
        said.append("well")
    except Exception as error:
        said.append(f"{type(error).__name__}: {error}")
threads = [threading.Thread(target=work) for _ in range(6)]
for thread in threads: thread.start()
for thread in threads: thread.join()
print(said)
"""


def test_the_first_use_of_a_process_may_be_by_many_threads():
    for _ in range(4):
        done = subprocess.run([sys.executable, "-c", FIRST], capture_output=True, text=True,
                              timeout=120, env={**os.environ, "PYTHONPATH": os.pathsep.join(
                                  sys.path)})  # fmt: skip
        assert done.stdout.strip() == str(["well"] * 6), done.stdout + done.stderr


def test_a_runtime_that_closes_while_a_thread_compiles():
    rt, inside, go = t.Runtime("cpu", threads=1), threading.Event(), threading.Event()
    b = rt.builder()
    record(2)(b)
    identity = b.identity
    b.identity = lambda: (inside.set(), go.wait(30), identity())[2]  # type: ignore[method-assign]
    codes: list[str] = []

    def work() -> None:
        with pytest.raises(RunError) as caught:
            b.compile()
        codes.append(caught.value.code)

    thread = threading.Thread(target=work)
    thread.start()
    assert inside.wait(30)
    rt.close()
    go.set()
    thread.join(60)
    assert codes == ["run.closed"]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_child_process_compiles_what_a_thread_of_its_parent_was_compiling():
    """And takes no lock that a thread of the parent holds: of the cache of plans, the runtime and
    the pool of blocks."""
    code = """
import os, signal, threading, numpy as np
from lanewise import tensor as t
rt = t.Runtime("cpu", threads=1)
plans, pool = t.PlanCache(rt), t.BlockPool(4)
inside, go = threading.Barrier(3), threading.Event()
def record(b):
    b.output("y", t.exp(b.input("x", t.f32, (64,))))
def slow(b):
    inside.wait()
    go.wait()
    record(b)
def locked():
    with plans._lock, rt._lock, pool._lock:
        inside.wait()
        go.wait()
kept = plans.compile(record, key="kept")
compiling = threading.Thread(target=lambda: plans.compile(slow, key="k"))
compiling.start()
while not plans._compiling:
    pass
threads = [compiling, threading.Thread(target=locked)]
threads[1].start()
inside.wait()
child = os.fork()
if child == 0:
    signal.alarm(30)
    assert plans.compile(record, key="kept") is kept
    plan = plans.compile(record, key="k")
    x, y = np.zeros(64, np.float32), np.zeros(64, np.float32)
    plan.run(x=x, y=y)
    assert len(plans) == 2 and plans.compile(record, key="k") is plan
    assert pool.grow(None, 65) == [0, 1]
    plans.close()
    rt.close()
    os._exit(0 if (y == 1).all() else 3)
status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
go.set()
for thread in threads:
    thread.join()
assert plans.compile(record, key="kept") is kept and len(plans) == 2
plans.close()
rt.close()
print(status)
"""
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", code], capture_output=True,
                          text=True, timeout=120, env=env)  # fmt: skip
    assert done.stdout.strip() == "0", done.stderr


def test_many_may_wait_for_one_submission():
    with t.Runtime("cpu", threads=1) as rt:
        b = rt.builder()
        record(3)(b)
        with b.compile() as plan:
            x = np.ones(3, np.float32)
            for _ in range(50):
                y = np.zeros(3, np.float32)
                fence = plan.submit(x=x, z=x, y=y)

                def wait(i: int, fence: t.Fence = fence, y: np.ndarray = y) -> None:
                    fence.wait(30 if i else None)
                    assert fence.done and (y == 2).all()
                    fence.wait(0)

                together(wait, 3)


def test_a_pool_shared_by_threads_hands_no_block_out_twice():
    pool = t.BlockPool(40, 4)
    owner: dict[int, int] = {}

    def work(i: int) -> None:
        rng, held = random.Random(i), list[int]()
        for _ in range(300):
            try:
                more = pool.grow(held, 4 * (len(held) + rng.randint(0, 3)))
            except RunError as error:
                assert error.code == "run.pool_empty"
                more = held
            for page in more[len(held) :]:
                assert owner.setdefault(page, i) == i
            held = more
            if rng.random() < 0.4 and held:
                extra = pool.share(held)
                for page in held:
                    del owner[page]
                pool.free(held)
                pool.free(extra)
                held = []
        for page in held:
            del owner[page]
        pool.free(held)

    together(work, 4)
    assert pool.free_blocks == 40 and not owner
