"""What a barrier between a step's threads costs, and how many a token of a model passes.

    python benchmarks/barrier.py [MODEL ...] [--threads 2,4] [--rounds 20] [--json]

The loop is native and runs on the pool that steps run on: nanoseconds of one barrier with no work
between two (the median of the rounds, each the least of --samples short loops, and the least of
all), and microseconds of a run of the pool that does nothing, called from Python as a step is.
For each model: launches and barriers of a decode step by its plan, those of one of its equal
layers, and what the barriers cost a token.
"""

from __future__ import annotations

import argparse
import ctypes
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "src")]

from benchmarks import forms, telling  # noqa: E402

if TYPE_CHECKING:
    from lanewise.plan.plan import Plan
    from lanewise.runtime.pool import ThreadPool


class _Bench(ctypes.Structure):
    _fields_ = (
        ("pool", ctypes.c_void_p), ("rounds", ctypes.c_int64), ("passed", ctypes.c_int64),
    )  # fmt: skip


class Loops:
    """The native loops on a pool of `threads` threads."""

    def __init__(self, pool: ThreadPool, threads: int) -> None:
        from lanewise.runtime.build import Unit, build_units
        from lanewise.runtime.library import Library
        from lanewise.targets.cpu import cpu_target

        text = (ROOT / "benchmarks" / "barrier.cpp").read_bytes()
        unit = Unit("barrier.cpp", text, export=True)
        self._library = Library(build_units([unit], cpu_target()))
        self._pool, self.threads = pool, threads
        self._bench = _Bench(pool.address, 0, 0)

    def barriers(self, count: int) -> float:
        """Seconds of `count` barriers, with a run of the pool around them."""
        self._bench.rounds, self._bench.passed = count, 0
        took = self._run("bench_barriers")
        if self._bench.passed != (count if self.threads > 1 else 0):
            raise RuntimeError(f"{self._bench.passed} barriers passed, not {count}")
        return took

    def nothing(self) -> float:
        """Seconds of an empty run."""
        return self._run("bench_nothing")

    def _run(self, name: str) -> float:
        address = self._library.address(name)
        began = time.perf_counter()
        self._pool.run(address, ctypes.addressof(self._bench), self.threads)
        return time.perf_counter() - began


def cost(
    barriers: Callable[[int], float],
    nothing: Callable[[], float],
    count: int,
    rounds: int,
    samples: int,
) -> dict[str, float]:
    """Nanoseconds of a barrier: what `count` of them take beyond an empty run, by turns."""
    each, empty = list[float](), list[float]()
    for _ in range(rounds):
        idle = min(nothing() for _ in range(samples))
        took = min(barriers(count) for _ in range(samples))
        each.append(max(0.0, took - idle) / count * 1e9)
        empty.append(idle * 1e6)
    return {
        "ns": round(statistics.median(each), 1), "least_ns": round(min(each), 1),
        "run_us": round(statistics.median(empty), 2),
    }  # fmt: skip


def layer(plan: Plan) -> tuple[int, int]:
    """(launches, barriers) of the layer that a plan repeats most; all of it if it repeats none."""
    from lanewise.plan.repeats import repeats
    from lanewise.plan.report import table

    told = ("kernel", "mode", "computes", "barrier")
    found = repeats([tuple(row[k] for k in told) for row in table(plan)])
    run = max(found, key=lambda r: r.length * r.count if r.count > 1 else 0)
    if run.count == 1:
        return len(plan.launches), sum(plan.barriers)
    return run.length, sum(plan.barriers[run.begin : run.begin + run.length])


def planned(model: str, ns: float) -> dict[str, Any]:
    """A model's decode step: its launches and barriers, and what these cost at `ns` each."""
    found = forms.opening(model, None)
    try:
        plan = found._forms(found.cuts)[1]["decode"].plan
        total, (launches, barriers) = sum(plan.barriers), layer(plan)
    finally:
        found.checkpoint.close()
    return {
        "model": Path(model).name, "launches": len(plan.launches), "barriers": total,
        "layers": found.spec.layers, "layer_launches": launches, "layer_barriers": barriers,
        "us": round(total * ns / 1e3, 2),
    }  # fmt: skip


def main(words: Sequence[str] | None = None) -> None:
    from lanewise.runtime.pool import shared_pool

    p = telling.parser(__doc__)
    p.add_argument("models", nargs="*")
    p.add_argument("--threads", type=telling.counts, help="default: as many as a step takes")
    p.add_argument("--barriers", type=int, default=2000, help="in one loop")
    p.add_argument("--rounds", type=int, default=20)
    p.add_argument("--samples", type=int, default=10)
    args: argparse.Namespace = p.parse_args(words)
    pool = shared_pool()
    counts = args.threads or [pool.threads]
    rows = []
    for threads in counts:
        loops = Loops(pool, threads)
        found = cost(loops.barriers, loops.nothing, args.barriers, args.rounds, args.samples)
        rows.append({"threads": threads, **found})
    models = [planned(model, rows[-1]["ns"]) for model in args.models]
    notes = [
        f"{m['model']}: {m['launches']} launches, {m['barriers']} barriers a token; a layer (of "
        f"{m['layers']}): {m['layer_launches']} launches, {m['layer_barriers']} barriers; "
        f"{m['us']:.1f} us of barriers a token at {counts[-1]} threads"
        for m in models
    ]
    cells = [[str(r["threads"]), f"{r['ns']:.0f}", f"{r['least_ns']:.0f}", f"{r['run_us']:.1f}"]
             for r in rows]  # fmt: skip
    head = ["threads", "ns a barrier", "least", "us an empty run"]
    telling.tell(args, {"rows": rows, "models": models}, head, cells, notes)


if __name__ == "__main__":
    main()
