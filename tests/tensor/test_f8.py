"""8-bit floats: stored, cast, moved and gathered as ml_dtypes has them, on both targets; products
take them as weights; no op computes in them, and each refusal says which cast does."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

from lanewise import tensor as t
from lanewise.errors import RunError
from tests.kernels.test_vec import narrowing
from tests.tensor.support import compile, f32, refusals, run, runtime

KINDS = {"f8_e4m3": ml_dtypes.float8_e4m3fn, "f8_e5m2": ml_dtypes.float8_e5m2}
NAMES = pytest.mark.parametrize("name", KINDS)


def same(a: np.ndarray, b: np.ndarray) -> bool:
    """Equal bits, every NaN being equal."""
    assert a.dtype == b.dtype and a.shape == b.shape
    wide = a.astype(np.float32), b.astype(np.float32)
    nan = np.isnan(wide[0])
    bits = f"u{a.dtype.itemsize}"
    return bool((nan == np.isnan(wide[1])).all() and (a.view(bits) == b.view(bits))[~nan].all())


@NAMES
def test_every_code_casts_to_every_float_and_back(name: str) -> None:
    codes = np.arange(256, dtype=np.uint8).view(KINDS[name])
    kinds = {"f32": np.float32, "f16": np.float16, "bf16": ml_dtypes.bfloat16, **KINDS}

    def record(b: t.Builder) -> None:
        x = b.input("x", name, (256,))
        for kind in kinds:
            y = t.cast(x, kind)
            b.output(kind, t.contiguous(y) if kind == name else y)
            b.output(f"{kind}.back", t.cast(t.cast(t.cast(x, kind), "f32"), name))

    with compile(record) as plan, np.errstate(all="ignore"):
        made = run(plan, x=codes)
        for kind, numpy in kinds.items():
            assert same(made[kind], codes.astype(np.float32).astype(numpy)), kind
        for kind in ("f32", "f16", "bf16"):  # each holds every code
            assert same(made[f"{kind}.back"], codes), kind


@NAMES
def test_floats_round_once_to_nearest_even(name: str) -> None:
    x = narrowing(KINDS[name])
    with np.errstate(all="ignore"):
        half, brain = x.astype(np.float16), x.astype(ml_dtypes.bfloat16)

    def record(b: t.Builder) -> None:
        for port, kind in (("x", "f32"), ("half", "f16"), ("brain", "bf16")):
            b.output(f"{port}.small", t.cast(b.input(port, kind, (len(x),)), name))

    with compile(record) as plan, np.errstate(all="ignore"):
        made = run(plan, x=x, half=half, brain=brain)
        for port, value in (("x", x), ("half", half), ("brain", brain)):
            assert same(made[f"{port}.small"], value.astype(np.float32).astype(KINDS[name])), port


@NAMES
def test_views_gathers_and_chains_move_them(name: str) -> None:
    """Views, rows by index, constants, and casts in the midst of arithmetic."""
    rng = np.random.default_rng(3)
    kind = KINDS[name]
    x, table = f32(rng, 3, 5, 7).astype(kind), f32(rng, 9, 20).astype(kind)
    held = f32(rng, 4, 3).astype(kind)
    ids = np.array([8, 0, 9, 3, 0xFFFFFFFF], np.uint32)

    def record(b: t.Builder) -> None:
        v, tab = b.input("x", name, x.shape), b.weight("table", name, table.shape)
        b.output("permuted", t.contiguous(t.permute(v, 2, 0, 1)))
        b.output("part", t.contiguous(t.slice(v, 1, 1, 4)))
        b.output("flat", t.contiguous(t.transpose(t.reshape(v, (15, 7)))))
        b.output("wide", t.contiguous(t.broadcast(t.slice(v, 0, 0, 1), (2, 5, 7))))
        b.output("rows", t.gather_rows(tab, b.input("ids", t.u32, (5,))))
        b.output("chain", t.cast(t.silu(t.cast(t.permute(v, 2, 0, 1), "f32")), name))
        b.output("held", t.cast(b.constant(held), "f32"))
        b.output("sum", t.reduce_sum(t.cast(tab, "f32")))

    with compile(record) as plan:
        made = run(plan, x=x, table=table, ids=ids)
    with compile(record, target="reference") as plan:
        other = run(plan, x=x, table=table, ids=ids)
    assert same(made["permuted"], np.ascontiguousarray(x.transpose(2, 0, 1)))
    assert same(made["part"], np.ascontiguousarray(x[:, 1:4]))
    assert same(made["flat"], np.ascontiguousarray(x.reshape(15, 7).T))
    assert same(made["wide"], np.ascontiguousarray(np.broadcast_to(x[:1], (2, 5, 7))))
    rows = np.zeros((5, 20), kind)
    rows[[0, 1, 3]] = table[[8, 0, 3]]
    assert same(made["rows"], rows)
    assert same(made["held"], held.astype(np.float32))
    for port, value in made.items():
        if value.dtype == kind:
            assert same(value, other[port]), port
        assert np.allclose(value.astype(np.float32), other[port].astype(np.float32), rtol=1e-5)


@NAMES
@pytest.mark.parametrize("activations", ["int8x2", "f32"])
def test_products_widen_their_weights_exactly(name: str, activations: str) -> None:
    """The bits of the same products with the widened matrix; and a gather of a packed matrix."""
    rng = np.random.default_rng(5)
    kind = KINDS[name]
    w = {
        "w": f32(rng, 37, 530), "table": f32(rng, 19, 530), "right": f32(rng, 530, 9),
        "experts": f32(rng, 3, 21, 530), "turned": f32(rng, 3, 530, 21),
        "batch": f32(rng, 2, 30, 5),
    }  # fmt: skip
    w = {n: v.astype(kind) for n, v in w.items()}
    x, lead = f32(rng, 6, 530), f32(rng, 2, 3, 30)
    inputs = {"x": x, "lead": lead, "bias": f32(rng, 37), "counts": np.array([4, 0, 1], np.uint32),
              "ids": np.array([18, 19, 2], np.uint32)}  # fmt: skip

    def record(b: t.Builder, dtype: str) -> None:
        v = {n: b.weight(n, dtype, value.shape) for n, value in w.items()}
        y, counts = b.input("x", t.f32, x.shape), b.input("counts", t.u32, (3,))
        b.output("linear", t.linear(y, v["w"], b.weight("bias", t.f32, (37,))))
        b.output("gated", t.silu(t.linear(y, v["table"])))
        b.output("rows", t.cast(t.gather_rows(v["table"], b.input("ids", t.u32, (3,))), "f32"))
        b.output("matmul", t.matmul(y, v["right"]))
        b.output("batch.y", t.matmul(b.input("lead", t.f32, lead.shape), v["batch"]))
        b.output("grouped", t.grouped_linear(y, v["experts"], counts))
        b.output("turned.y", t.grouped_matmul(y, v["turned"], counts))

    made = {}
    for dtype in (name, "f32"):
        given = {n: v.astype(np.float32) if dtype == "f32" else v for n, v in w.items()}
        with compile(lambda b, d=dtype: record(b, d), activations=activations) as plan:
            made[dtype] = run(plan, **given, **inputs)
    for port, value in made[name].items():
        assert same(value, made["f32"][port]), port
    exact = x.astype(np.float64) @ w["w"].astype(np.float64).T + inputs["bias"]
    assert np.abs(made[name]["linear"] - exact).max() < 1e-3


@NAMES
def test_stores_of_products_cast_and_read_them(name: str) -> None:
    """Fused or held: a cast at the end of a store, an operand that is widened in it."""
    rng = np.random.default_rng(6)
    kind = KINDS[name]
    given = {"x": f32(rng, 5, 70), "w": f32(rng, 45, 70), "more": f32(rng, 5, 45).astype(kind)}

    def record(b: t.Builder) -> None:
        product = t.linear(b.input("x", t.f32, (5, 70)), b.weight("w", t.f32, (45, 70)))
        b.output("plain", t.contiguous(product))
        b.output("stored", t.cast(product, name))
        more = t.cast(b.input("more", name, (5, 45)), "f32")
        b.output("sum", t.cast(t.silu(product) + more, name))

    def alone(b: t.Builder) -> None:
        product = t.linear(b.input("x", t.f32, (5, 70)), b.weight("w", t.f32, (45, 70)))
        more = t.cast(b.input("more", name, (5, 45)), "f32")
        b.output("sum", t.cast(t.silu(product) + more, name))

    made = []
    for hold in ((), ("all",)):
        with compile(record, hold=hold) as plan, compile(alone, hold=hold) as other:
            made.append(run(plan, **given))
            assert same(run(other, **given)["sum"], made[-1]["sum"])
    assert all(same(made[0][port], made[1][port]) for port in made[0])
    with np.errstate(all="ignore"):
        assert same(made[0]["stored"], made[0]["plain"].astype(kind))


@NAMES
def test_quantisers_take_arrays_of_them(name: str) -> None:
    w = f32(np.random.default_rng(1), 3, 64).astype(KINDS[name])
    assert (t.quantize_int8(w) == t.quantize_int8(w.astype(np.float32))).all()


@NAMES
def test_no_op_computes_in_them(name: str) -> None:
    def record(b: t.Builder) -> None:
        x = b.input("x", name, (4, 8))
        t.add(x, x)
        t.silu(x)
        t.rms_norm(x, b.weight("gain", t.f32, (8,)), 1e-5)
        t.matmul(x, b.input("w", t.f32, (8, 3)))
        t.reduce_max(x)
        b.state("s", name, (4, 8))

    found = refusals(record)
    assert [e.code for e in found] == ["graph.dtype"] * 6
    *ops, state = found
    for error in ops:
        assert "'f32')" in error.remedy and error.remedy.startswith("cast("), error
    assert f"has dtype {name!r}" in state.message
    assert "bf16" in state.remedy and "f8" not in state.remedy


@NAMES
def test_arrays_that_are_not_of_it_are_refused_with_what_makes_them(name: str) -> None:
    kind = np.dtype(KINDS[name])

    def record(b: t.Builder) -> None:
        b.output("y", t.cast(b.input("x", name, (4,)), "f32"))

    with compile(record) as plan:
        y = np.zeros(4, np.float32)
        for x, remedy in ((np.zeros(4, np.float32), f"x.astype('{kind.name}')"),
                          (np.zeros(4, np.uint8), f"x.view(ml_dtypes.{kind.name})")):  # fmt: skip
            with pytest.raises(RunError) as caught:
                plan.run(x=x, y=y)
            assert caught.value.code == "run.dtype" and remedy in caught.value.remedy
            names: dict[str, Any] = {"x": x, "ml_dtypes": ml_dtypes}
            plan.run(x=eval(caught.value.remedy, names), y=y)
        with runtime().buffer(name, (4,)) as buffer:
            buffer.array[...] = 1.5
            plan.run(x=buffer, y=y)
        assert (y == 1.5).all()
