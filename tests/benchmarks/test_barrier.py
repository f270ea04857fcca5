"""The cost of barriers: the loops pass as many as they say, and a plan's are counted right."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from benchmarks import barrier
from lanewise.runtime.build import runtime_library
from lanewise.runtime.library import Library
from lanewise.runtime.pool import ThreadPool
from lanewise.targets.cpu import cpu_target
from tests.models.support import GOLDEN

MODEL = str(GOLDEN / "llama_tied.q8_0.gguf")


@pytest.fixture(scope="module")
def pool() -> Iterator[ThreadPool]:
    made = ThreadPool(Library(runtime_library(cpu_target())), 2)
    yield made
    made.close()


@pytest.mark.parametrize("threads", [1, 2, 3])
def test_loops_pass_every_barrier(pool: ThreadPool, threads: int) -> None:
    loops = barrier.Loops(pool, threads)
    assert loops.barriers(50) > 0 and loops.nothing() > 0
    assert loops._bench.passed == (50 if threads > 1 else 0)


def test_a_loop_that_skips_is_seen(pool: ThreadPool, monkeypatch: pytest.MonkeyPatch) -> None:
    loops = barrier.Loops(pool, 2)
    monkeypatch.setattr(loops, "_run", lambda name: 1.0)
    with pytest.raises(RuntimeError, match="0 barriers"):
        loops.barriers(50)


def test_cost_of_given_times() -> None:
    took = iter([9e-6, 5e-6, 8e-6, 3e-6, 4e-6, 6e-6])
    idle = iter([1e-6, 2e-6, 1e-6, 3e-6, 2e-6, 2e-6])
    found = barrier.cost(lambda count: next(took), lambda: next(idle), 100, 3, 2)
    # Rounds: (5 - 1), (3 - 1), (4 - 2) microseconds over 100 barriers.
    assert found == {"ns": 20.0, "least_ns": 20.0, "run_us": 1.0}


def test_barriers_of_a_tiny_model(capsys: pytest.CaptureFixture[str]) -> None:
    barrier.main([MODEL, "--threads", "1,2", "--barriers", "20", "--rounds", "1", "--json"])
    told = json.loads(capsys.readouterr().out)
    assert [r["threads"] for r in told["rows"]] == [1, 2]
    (found,) = told["models"]
    import lanewise as lw

    with lw.compile(MODEL) as lane:
        plan = lane.forms["decode"].plan
        text = plan.explain()
    # `explain` draws a rule for every barrier, and shows equal layers once.
    assert found["launches"] == len(plan.launches) and found["barriers"] == sum(plan.barriers)
    assert f"{found['launches']} launches, {found['barriers']} barriers" in text
    assert found["layers"] == 2
    assert 0 < found["layer_barriers"] <= found["barriers"] / 2
    assert found["us"] == round(found["barriers"] * told["rows"][1]["ns"] / 1e3, 2)


@pytest.mark.model
def test_barriers_of_a_layer(smollm2_path: object) -> None:
    found = barrier.planned(str(smollm2_path), 100.0)
    rest = found["barriers"] - found["layers"] * found["layer_barriers"]
    assert found["layers"] == 30 and 0 <= rest < 6
    assert found["us"] == round(found["barriers"] / 10, 2)
