"""Threads of a decode step among busy neighbours: fewer while that is faster, all otherwise."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Mapping

import pytest

import lanewise as lw
from lanewise.errors import RunError
from lanewise.lane.crowd import PATIENCE, TRIAL, Crowd
from lanewise.lane.runner import Runner
from lanewise.lane.sampling import Sampling
from tests.lane.fakes import VOCAB, FakeEngine, expected_run
from tests.models.support import GOLDEN


def run(crowd: Crowd, steps: int, cost: Callable[[int], float]) -> list[int]:
    """The threads of each step, which takes what its number of threads costs."""
    used = []
    for _ in range(steps):
        used.append(crowd.threads)
        crowd.took(cost(crowd.threads))
    return used


def quiet(threads: int) -> float:
    return 0.010 / threads


def crowded(threads: int) -> float:
    return {1: 0.025, 2: 0.040, 4: 0.100}[threads]


def test_all_threads_while_nobody_is_in_the_way() -> None:
    assert set(run(Crowd(4), 5000, quiet)) == {4}
    assert set(run(Crowd(1), 100, lambda t: 0.1)) == {1}


def test_texts_that_grow_are_no_crowd() -> None:
    """A step that gets slower by a thousandth each time is the cache's length."""
    crowd, at = Crowd(2), 0.001
    for _ in range(4000):
        at *= 1.001
        assert crowd.threads == 2
        crowd.took(at)


@pytest.mark.parametrize("threads", [2, 4])
def test_a_crowd_and_its_end(threads: int) -> None:
    crowd = Crowd(threads)
    run(crowd, 100, quiet)
    used = run(crowd, 400, crowded)
    assert used.count(max(1, threads // 2)) > 0.75 * 400
    assert used[-PATIENCE // 2 :].count(threads) <= TRIAL
    assert set(run(crowd, 40 * PATIENCE, quiet)[-PATIENCE:]) == {threads}


def test_slow_for_another_reason() -> None:
    """Fewer threads do not help: they are tried, ever more seldom."""
    crowd = Crowd(2)
    run(crowd, 100, quiet)
    used = run(crowd, 4000, lambda threads: 0.05 / threads)
    tried = used.count(1)
    assert TRIAL <= tried <= 8 * TRIAL
    assert used[-1000:].count(1) <= TRIAL
    assert set(run(crowd, 500, quiet)[TRIAL:]) == {2}


def test_a_single_slow_step_is_nothing() -> None:
    crowd = Crowd(2)
    for i in range(2000):
        assert crowd.threads == 2
        crowd.took(0.012 if i % 50 == 7 else 0.005)


class Busy(FakeEngine):
    """Steps take what a crowd makes of them, from the hundredth on."""

    def __init__(self) -> None:
        super().__init__(context=1024, chunk=8)
        self.now, self.threads_of = 0.0, list[tuple[int, int]]()

    def run(self, form: str, scalars: Mapping[str, int]) -> None:
        super().run(form, scalars)
        self.threads_of.append((scalars["rows"], self.used))
        self.now += (crowded if len(self.threads_of) > 100 else quiet)(self.used)


def test_a_runner_among_others() -> None:
    engine = Busy()
    runner = Runner(
        engine, context=1024, vocab=VOCAB, max_chunk=8, clock=lambda: engine.now
    )
    ids = list(range(1, 20))
    for _ in range(300):
        ids.append(runner.next_token(ids, Sampling(temperature=0.0), 0.0))
    assert ids[19:] == expected_run(range(1, 20), 300)
    assert {t for rows, t in engine.threads_of if rows > 1} == {2}
    assert {t for _, t in engine.threads_of[:100]} == {2}
    assert [t for _, t in engine.threads_of].count(1) > 120
    runner.forget()
    runner.next_token(ids[:50], Sampling(temperature=0.0), 0.0)
    assert engine.threads_of[-1] == (2, 2)  # a prompt takes all again


def test_a_session_refuses_threads_that_it_has_not() -> None:
    with lw.compile(GOLDEN / "llama_tied.q8_0.gguf", threads=2) as lane:
        session = lane._runner._engine
        alone = lane.logits([1, 2, 3])
        for wrong in (0, 3):
            with pytest.raises(RunError, match="threads of 2") as caught:
                session.use(wrong)
            assert caught.value.code == "run.threads"
        session.use(1)
        assert (lane.logits([1, 2, 3]) == alone).all()


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_child_of_a_busy_parent_can_use_the_lane() -> None:
    """The fork falls into a step of another thread, which holds the lane's lock."""
    with lw.compile(GOLDEN / "llama_tied.q8_0.gguf", threads=2, speculate="off") as lane:
        ids = [1, 2, 3]
        want = lane.logits(ids)
        lock = lane._runner._lock
        lock.acquire()
        held = threading.Thread(target=lambda: lane.generate(ids, max_tokens=3).read())
        held.start()  # waits for the lock, as the child would
        child = os.fork()
        if child == 0:
            signal.alarm(20)
            os._exit(0 if _elsewhere(lambda: bool((lane.logits(ids) == want).all())) else 1)
        status = os.waitpid(child, 0)[1]
        lock.release()
        held.join()
    assert status == 0


def _elsewhere(call: Callable[[], bool]) -> bool:
    """The answer of a call on another thread: a lock that this one holds would let it in."""
    told: list[bool] = []
    thread = threading.Thread(target=lambda: told.append(call()), daemon=True)
    thread.start()
    thread.join(15)
    return told == [True]
