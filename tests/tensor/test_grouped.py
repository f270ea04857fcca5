"""Products by expert over packed matrices: float64, and each expert's own product bit for bit."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from lanewise import tensor as t
from lanewise.ir.builder import GraphBuilder
from lanewise.ir.graph import Type
from lanewise.ir.values import QuantArray
from lanewise.kernels.bodies import product_of
from lanewise.targets.cpu import CpuTarget, cpu_target
from tests.kernels.matrices import FORMATS, decoded, raw_matrix
from tests.native import DEFAULT, Native, same_bits
from tests.tensor.support import compile, f32, refusals, run, u32

E, N, K, T = 4, 70, 512, 11
COUNTS = (3, 0, 5, 1)
NUMPY = {"f32": np.float32, "f16": np.float16, "bf16": ml_dtypes.bfloat16}


def matrices(fmt: str, seed: int, n: int = N, k: int = K) -> tuple[Any, np.ndarray]:
    """(what a port of [E, n, k] binds, the numbers as gguf decodes them)."""
    rng = np.random.default_rng(seed)
    raw = [raw_matrix(fmt, n, k, rng) for _ in range(E)]
    wide = np.stack([decoded(fmt, r).reshape(n, k) for r in raw])
    held = np.stack(raw)
    return (held.view(NUMPY[fmt]) if fmt in NUMPY else held), wide


def segments(counts: tuple[int, ...], rows: int) -> Iterator[tuple[int, slice]]:
    at = 0
    for e, count in enumerate(counts):
        count = min(count, rows - at)
        yield e, slice(at, at + count)
        at += count


@pytest.mark.parametrize("fmt", FORMATS)
def test_near_float64(fmt: str) -> None:
    held, wide = matrices(fmt, 1)

    def record(b: t.Builder) -> None:
        x = b.input("x", t.f32, (T, K))
        b.output("y", t.grouped_linear(x, b.weight("w", fmt, (E, N, K)),
                                       b.input("counts", t.u32, (E,))))  # fmt: skip

    x = f32(np.random.default_rng(2), T, K)
    want = np.zeros((T, N))
    for e, rows in segments(COUNTS, T):
        want[rows] = x[rows].astype(np.float64) @ wide[e].T.astype(np.float64)
    size = np.abs(want).max()
    for activations, bound in (("f32", 1e-6), ("int8x2", 2e-4), ("int8", 3e-2)):
        with compile(record, activations=activations) as plan:
            y = run(plan, x=x, w=held, counts=u32(*COUNTS))["y"]
        assert np.abs(y - want).max() <= bound * size, activations
        assert y[9:].view(np.uint32).max() == 0
    with compile(record, "reference") as plan:
        y = run(plan, x=x, w=held, counts=u32(*COUNTS))["y"]
    assert np.abs(y - want).max() <= 1e-6 * size


@pytest.mark.parametrize("fmt", FORMATS)
@pytest.mark.parametrize("activations", ["int8x2", "int8", "f32"])
def test_each_expert_alone_has_the_same_bits(fmt: str, activations: str) -> None:
    """From one row, by the kernel of few rows, to many; an empty one between, counts cut."""
    held, _ = matrices(fmt, 3)
    rows = 40

    def grouped(b: t.Builder) -> None:
        w, counts = b.weight("w", fmt, (E, N, K)), b.input("counts", t.u32, (E,))
        make = t.grouped_linear if fmt in NUMPY else t.grouped_matmul
        b.output("y", make(b.input("x", t.f32, (rows, K)), w, counts))

    def alone(b: t.Builder) -> None:
        b.output("y", t.linear(b.input("x", t.f32, (rows, K)), b.weight("w", fmt, (N, K))))

    x = f32(np.random.default_rng(4), rows, K)
    with compile(alone, activations=activations) as plan:
        each = [run(plan, x=x, w=np.ascontiguousarray(m))["y"] for m in held]
    with compile(grouped, activations=activations) as plan:
        for counts in ((3, 0, 17, 1), (2**32 - 1, 5, 5, 5), (0, 0, 0, 0), (0, 30, 30, 1)):
            y = run(plan, x=x, w=held, counts=u32(*counts))["y"]
            last = 0
            for e, part in segments(counts, rows):
                assert same_bits(y[part], each[e][part]), (counts, e)
                last = part.stop
            assert (y[last:].view(np.uint32) == 0).all()


def experts(b: t.Builder, fmt: str = "q4_0") -> None:
    """Gate, up and down of a mixture, as checkpoints hold it."""
    x, counts = b.input("x", t.f32, (T, K)), b.input("counts", t.u32, (E,))
    gate, up = (b.weight(n, fmt, (E, N + 26, K)) for n in ("gate", "up"))
    down = b.weight("down", fmt, (E, K, N + 26))
    hidden = t.swiglu(t.grouped_linear(x, gate, counts), t.grouped_linear(x, up, counts))
    b.output("y", t.add(t.grouped_linear(hidden, down, counts), x))


@pytest.mark.parametrize("counts", [COUNTS, (0, 0, 1, 0), (9, 9, 9, 9)])
def test_stores_run_by_expert_too(counts: tuple[int, ...]) -> None:
    """Gate, up, swiglu and the quantisation are one launch; held back, the same bits; near
    float64."""
    values: dict[str, Any] = {}
    wide = {}
    for name, n, k in (("gate", N + 26, K), ("up", N + 26, K), ("down", K, N + 26)):
        values[name], wide[name] = matrices("q4_0", len(name), n, k)
    values |= {"x": f32(np.random.default_rng(5), T, K), "counts": u32(*counts)}
    made = []
    for options in ({}, {"hold": "all"}, {"naive": True}, {"hold": "gate_up"}):
        with compile(experts, **options) as plan:
            made.append(run(plan, **values)["y"])
            if not options:
                names = [s.op for s in plan.selections]
                assert len(names) == 3 and "swiglu quantize" in names[1], names
    assert all(same_bits(made[0], other) for other in made)
    want = values["x"].astype(np.float64)
    for e, part in segments(counts, T):
        x = values["x"][part].astype(np.float64)
        a, up = (x @ wide[n][e].T.astype(np.float64) for n in ("gate", "up"))
        with np.errstate(over="ignore"):
            want[part] += (a / (1 + np.exp(-a)) * up) @ wide["down"][e].T.astype(np.float64)
    assert np.abs(made[0] - want).max() <= 3e-4 * np.abs(want).max()


@pytest.mark.parametrize("fmt", ["q4_0", "q6_k", "bf16"])
def test_threads_and_instruction_sets_give_equal_bits(fmt: str) -> None:
    held, _ = matrices(fmt, 6)
    value = held if fmt in NUMPY else QuantArray(fmt, (E, N, K), held)
    b = GraphBuilder("grouped")
    x = b.root("input", "x", Type("f32", (T, K)))
    w, counts = b.root("weight", "w", Type(fmt, (E, N, K))), b.root("input", "c", Type("u32", (E,)))
    b.output("y", b.apply("grouped_linear", x, w, counts))
    graph = b.finish()
    values = {"x": f32(np.random.default_rng(7), T, K), "w": value, "c": u32(*COUNTS)}
    plain = CpuTarget("scalar", cpu_target().arch)
    made = [Native(graph, values, DEFAULT, threads, target).run(values)["y"]
            for threads, target in ((1, None), (3, None), (2, plain))]  # fmt: skip
    assert same_bits(made[0], made[1]) and same_bits(made[0], made[2])


def test_what_has_no_rows_is_not_read() -> None:
    def record(b: t.Builder) -> None:
        w, counts = b.weight("w", t.f16, (E, N, 64)), b.input("counts", t.u32, (E,))
        b.output("y", t.grouped_linear(b.input("x", t.f32, (T, 64)), w, counts))

    rng = np.random.default_rng(8)
    x, w = f32(rng, T, 64), f32(rng, E, N, 64).astype(np.float16)
    with compile(record) as plan:
        y = run(plan, x=x, w=w, counts=u32(*COUNTS))["y"]
        w[1], x[9:] = np.nan, np.nan
        again = w.copy()
        assert same_bits(run(plan, x=x, w=again, counts=u32(*COUNTS))["y"], y)


def test_live_rows_cut_the_counts() -> None:
    def record(b: t.Builder) -> None:
        b.scalar("n", "u32")
        w, counts = b.weight("w", "q8_0", (E, N, 64)), b.input("counts", t.u32, (E,))
        x = b.input("x", t.f32, (T, 64), live="n")
        b.output("y", t.grouped_linear(x, w, counts))

    held, _ = matrices("q8_0", 9, N, 64)
    x = f32(np.random.default_rng(9), T, 64)
    with compile(record) as plan:
        whole = run(plan, x=x, w=held, counts=u32(2, 0, 9, 0), n=T)["y"]
        assert same_bits(run(plan, x=x, w=held, counts=u32(2, 0, 9, 0), n=5)["y"][:5], whole[:5])


def test_int8_matrices_of_experts() -> None:
    """`quantized` of three axes: `quantize_int8` makes its rows, `grouped_matvec` takes it."""
    rng = np.random.default_rng(10)
    w, x = f32(rng, E, N, 64), f32(rng, T, 64)
    rows = t.quantize_int8(w)
    assert rows.shape == (E, N, 68) and (rows[2] == t.quantize_int8(w[2])).all()

    def record(b: t.Builder) -> None:
        b.output("y", t.grouped_matvec(b.input("x", t.f32, (T, 64)),
                                       t.quantized(b, "w", (E, N, 64)),
                                       b.input("counts", t.u32, (E,))))  # fmt: skip

    with compile(record) as plan:
        y = run(plan, x=x, w=rows, counts=u32(*COUNTS))["y"]
    for e, part in segments(COUNTS, T):
        want = x[part].astype(np.float64) @ w[e].T.astype(np.float64)
        budget = np.abs(x[part]) @ np.full((64, 1), np.abs(w[e]).max() / 127 * 0.57)
        assert (np.abs(y[part] - want) <= budget + 1e-3).all()


def test_refusals() -> None:
    def record(b: t.Builder) -> None:
        x, counts = b.input("x", t.f32, (T, 64)), b.input("counts", t.u32, (E,))
        t.grouped_linear(x, b.input("i", t.f32, (E, N, 64)), counts)
        t.grouped_matmul(x, t.int4(b, "m", 64, E * N), counts)  # type: ignore[arg-type]
        t.grouped_matmul(x, b.weight("flat", "q4_0", (N, 64)), counts)
        t.grouped_matmul(x, b.weight("narrow", "q4_0", (E, N, 32)), counts)
        t.grouped_linear(x, b.weight("few", "q4_0", (E - 1, N, 64)), counts)

    found = refusals(record)
    assert [e.code for e in found] == [
        "graph.weight", "graph.operand", "graph.rank", "graph.shape", "graph.shape"
    ]  # fmt: skip
    assert "grouped_matmul" in found[2].message and all(e.place.startswith(__file__)
                                                         for e in found)  # fmt: skip


def test_a_body_says_its_counts() -> None:
    b = GraphBuilder("g")
    x, w = b.root("input", "0", Type("f32", (T, K))), b.root("weight", "1", Type("f16", (E, N, K)))
    counts = b.root("input", "2", Type("u32", (E,)))
    b.output("y", b.apply("grouped_linear", x, w, counts))
    product = product_of(b.finish())
    assert not isinstance(product, str)
    assert (product.counts, product.experts, product.n, product.k) == (2, E, N, K)
