"""What the tensor layer's tests share: a runtime, recording in one line, running by name."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np

from lanewise import tensor as t
from lanewise.ir.values import DTYPES


@cache
def runtime(target: str = "cpu") -> t.Runtime:
    return t.Runtime(target, threads=1)


def compile(record: Callable[[t.Builder], object], target: str = "cpu", **options: Any) -> t.Plan:
    b = runtime(target).builder("test")
    record(b)
    return b.compile(**options)


def refusals(record: Callable[[t.Builder], object]) -> list[Any]:
    b = runtime().builder("test")
    record(b)
    return list(b.errors())


def outputs(plan: t.Plan) -> dict[str, np.ndarray]:
    """Arrays for every output of a plan, full of what no op gives: what is not written shows."""
    found = {}
    for port in plan.ports:
        if port.kind == "output":
            found[port.name] = np.empty(port.shape, DTYPES[port.dtype])
            found[port.name].view(np.uint8)[...] = 0xA5
    return found


def run(plan: t.Plan, **bindings: Any) -> dict[str, np.ndarray]:
    """Run on what is given and fresh outputs."""
    made = outputs(plan)
    plan.submit(bindings, **made).wait()
    return made


def f32(rng: np.random.Generator, *shape: int) -> np.ndarray:
    return rng.standard_normal(shape).astype(np.float32)


def u32(*values: int) -> np.ndarray:
    return np.array(values, np.uint32)


def products(n: int, times: int) -> Callable[[t.Builder], None]:
    """y = x multiplied by itself so many times, x [n, n]: work that takes a while."""
    def record(b: t.Builder) -> None:
        y = x = b.input("x", t.f32, (n, n))
        for _ in range(times):
            y = t.matmul(y, x)
        b.output("y", y)

    return record
