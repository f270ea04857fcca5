"""What the tensor layer itself costs: submissions of a small plan, and recording to program.

    python benchmarks/tensor.py

Prints microseconds of a submission (one binding changed each time; the target is 20 or less on a
quiet machine), and seconds of Python from the first op to the program's text for steps of 8 to 64
layers: the time must grow linearly (a 32-layer step: 3 s or less).
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace

import numpy as np

from examples.transformer import Config, step
from lanewise import tensor as t
from lanewise.pipeline import Options, compile_forms


def best(run: Callable[[int], object], count: int = 2000, rounds: int = 7) -> float:
    """The least seconds of one call, over rounds."""
    found = []
    for _ in range(rounds):
        begin = time.perf_counter()
        for i in range(count):
            run(i)
        found.append((time.perf_counter() - begin) / count)
    return min(found)


def submissions() -> None:
    rt = t.Runtime("cpu", threads=1)
    b = rt.builder()
    b.scalar("s")
    w = b.weight("w", t.f32, (64, 64))
    b.output("y", t.scale(t.linear(b.input("x", t.f32, (1, 64)), w), "s"))
    rng = np.random.default_rng(0)
    xs = [rng.standard_normal((1, 64)).astype(np.float32) for _ in range(2)]
    fixed = {"w": rng.standard_normal((64, 64)).astype(np.float32), "s": 1.0,
             "y": np.zeros((1, 64), np.float32)}  # fmt: skip
    with b.compile() as plan:
        run = best(lambda i: plan.run(fixed, x=xs[i & 1]))
        submit = best(lambda i: plan.submit(fixed, x=xs[i & 1]).wait())
        session = plan._all[0].engine.session
        bare = best(lambda i: session.run("main", {"s": 1.0}))
    print(f"run {run * 1e6:.1f} us, submit and wait {submit * 1e6:.1f} us, "
          f"of which the program itself {bare * 1e6:.1f} us")  # fmt: skip


def growth() -> None:
    rt = t.Runtime("cpu", threads=1)
    for layers in (8, 16, 32, 64):
        c = replace(Config(), layers=layers)
        begin = time.perf_counter()
        b = rt.builder()
        step(b, c, 1)
        recorded = time.perf_counter()
        graph = b.graph()
        b.identity()
        lowered = time.perf_counter()
        compile_forms({"main": graph}, Options())
        end = time.perf_counter()
        print(f"{layers:3} layers, {len(graph.nodes):4} nodes: record {recorded - begin:.3f} s, "
              f"lower {lowered - recorded:.3f} s, passes to text {end - lowered:.3f} s")


if __name__ == "__main__":
    submissions()
    growth()
