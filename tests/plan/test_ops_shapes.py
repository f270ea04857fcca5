"""Target ops over shapes that nobody chose: odd sizes, broadcasts, ranks, strides of views, live
rows below capacity; against the interpreter, within the bound of the op's row."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from lanewise.ir.builder import GraphBuilder
from lanewise.ir.graph import Graph, Ref, Type
from lanewise.ir.interp import interpret
from lanewise.ir.opdef import opdef
from lanewise.pipeline import Options
from tests.native import Native
from tests.plan.test_ops_on_target import close

QUIET = settings(max_examples=6, deadline=None, derandomize=True,
                 suppress_health_check=list(HealthCheck))  # fmt: skip
UNARY = ("neg", "abs", "square", "exp", "tanh", "sigmoid", "silu", "relu", "gelu", "gelu_erf",
         "erf", "sqrt", "rsqrt", "log")  # fmt: skip
BINARY = ("add", "sub", "mul", "div", "maximum", "minimum", "swiglu")
ROW_OPS = ("rms_norm", "layer_norm", "softmax", "reduce_sum", "reduce_max", "argmax")
VIEWS = ("permute", "transpose", "slice", "broadcast", "contiguous")


class Many:
    """One graph of many independent ops, so that an example costs one compile."""

    def __init__(self) -> None:
        self.b = GraphBuilder("many")
        self.ops: dict[str, str] = {}
        self.roots = 0

    def root(self, dtype: str, shape: tuple[int, ...], kind: str = "input", **attrs: Any) -> Ref:
        self.roots += 1
        return self.b.root(kind, f"r{self.roots}", Type(dtype, shape), **attrs)

    def add(self, op: str, *refs: Ref, **attrs: Any) -> None:
        name = f"o{len(self.ops)}"
        self.b.output(name, self.b.apply(op, *refs, **attrs))
        self.ops[name] = op

    def check(self, live: dict[str, int] | None = None) -> None:
        graph = self.b.finish()
        values = random_values(graph)
        want = interpret(graph, values, live)
        have = Native(graph, values, Options(activations="f32"), threads=2).run(values, live)
        for name, op in self.ops.items():
            n = (live or {}).get(graph.live[dict(graph.outputs)[name]], None)
            a, b = have[name][:n], np.asarray(want[name])[:n]
            assert close(opdef(op), a, b), f"{op} {name} {a.shape}: {a} != {b}"


def random_values(graph: Graph) -> dict[str, Any]:
    from tests.ir.graphs import bind

    return bind(graph, np.random.default_rng(11))


def shapes(least: int = 1, most: int = 4) -> st.SearchStrategy[tuple[int, ...]]:
    side = st.sampled_from([1, 2, 3, 5, 7, 16, 17, 31, 33])
    return st.lists(side, min_size=least, max_size=most).map(tuple).filter(
        lambda s: int(np.prod(s)) <= 4000
    )


@QUIET
@given(shapes(), st.data())
def test_elementwise_and_broadcasts(shape: tuple[int, ...], data: st.DataObject) -> None:
    many = Many()
    dtype = data.draw(st.sampled_from(["f32", "f16", "bf16"]))
    for op in UNARY:
        many.add(op, many.root(dtype, shape))
    for op in BINARY:
        other = shape
        if op != "swiglu":
            keep = data.draw(st.lists(st.booleans(), min_size=len(shape), max_size=len(shape)))
            other = tuple(d if k else 1 for d, k in zip(shape, keep, strict=True))
            other = other[data.draw(st.integers(0, len(shape) - 1)) :]
        pair = [many.root(dtype, shape), many.root(dtype, other)]
        many.add(op, *(pair if data.draw(st.booleans()) or op == "swiglu" else pair[::-1]))
    many.check()


@QUIET
@given(st.integers(1, 9), st.sampled_from([1, 2, 3, 31, 32, 33, 63, 100, 511, 513, 1030]),
       st.integers(1, 9))  # fmt: skip
def test_row_ops_and_live_rows(rows: int, width: int, live: int) -> None:
    many = Many()
    many.b.root("scalar", "n", Type("u32", (1,)))
    for op in ROW_OPS:
        x = many.root("f32", (rows, width), live="n")
        if op == "rms_norm":
            many.add(op, x, many.root("f32", (width,)), eps=1e-6)
        elif op == "layer_norm":
            gain, bias = (many.root("f32", (width,)) for _ in range(2))
            many.add(op, x, gain, bias, eps=1e-6)
        else:
            many.add(op, x)
    many.check({"n": min(live, rows)})


@QUIET
@given(shapes(2, 4), st.data())
def test_views_made_real(shape: tuple[int, ...], data: st.DataObject) -> None:
    many = Many()
    dtype = data.draw(st.sampled_from(["f32", "f16", "f8_e4m3"]))
    axes = data.draw(st.permutations(range(len(shape))))
    many.add("permute", many.root(dtype, shape), axes=tuple(axes))
    a, b = data.draw(st.tuples(*[st.integers(0, len(shape) - 1)] * 2))
    many.add("transpose", many.root(dtype, shape), axes=(a, b))
    starts = tuple(data.draw(st.integers(0, d - 1)) for d in shape)
    stops = tuple(data.draw(st.integers(s + 1, d)) for s, d in zip(starts, shape, strict=True))
    many.add("slice", many.root(dtype, shape), starts=starts, stops=stops)
    ones = tuple(1 if data.draw(st.booleans()) else d for d in shape)
    many.add("broadcast", many.root(dtype, ones), shape=(2, *shape))
    many.add("contiguous", many.root(dtype, shape))
    many.check()


@QUIET
@given(st.integers(1, 40), st.sampled_from([1, 7, 32, 33, 511, 600]), st.integers(1, 50),
       st.sampled_from(["f32", "f16", "bf16", "f8_e4m3", "f8_e5m2"]))  # fmt: skip
def test_products_of_odd_sizes(rows: int, k: int, n: int, dtype: str) -> None:
    many = Many()
    x = many.root("f32", (rows, k))
    many.add("linear", x, many.root(dtype, (n, k), "weight"))
    many.add("linear", x, many.root(dtype, (n, k), "weight"), many.root("f32", (n,)))
    many.add("matmul", x, many.root(dtype, (k, n)))
    ids = many.root("u32", (rows,))
    many.add("gather_rows", many.root(dtype, (n, k), "weight"), ids)
    many.check()


def test_long_arrays_are_shared_out_whatever_their_shape() -> None:
    """One row of many elements is pieces, not one thread's work; the last piece is shorter."""
    many = Many()
    for shape in ((1, 10_007), (3, 5, 1000), (20_000,), (8192,)):
        x, one = many.root("f32", shape), many.root("f32", (1,))
        y = many.b.apply("mul", many.b.apply("add", x, one), x)
        many.b.output(f"o{len(many.ops)}", many.b.apply("tanh", y))
        many.ops[f"o{len(many.ops)}"] = "tanh"
        many.add("silu", many.root("bf16", shape))
    many.check()
