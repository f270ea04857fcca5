"""Random legal graphs, values for their roots, and what two graphs must share to be the same."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from hypothesis import strategies as st

from lanewise.ir.builder import GraphBuilder
from lanewise.ir.graph import ROOTS, Graph, Ref, Type
from lanewise.ir.ops.contract import quantised_matrix
from lanewise.ir.values import DTYPES

ROWS, WIDTH, HEADS, LAYERS = 3, 64, 2, 2
SCALAR = {"f32", "f16", "bf16", "f8_e4m3", "f8_e5m2"}
UNARY = ("neg", "abs", "square", "tanh", "sigmoid", "silu", "gelu", "relu", "erf", "softmax")
BINARY = ("add", "sub", "mul", "maximum", "minimum", "swiglu")


class Maker:
    """Grows one graph: `rows` are values f32 [ROWS, WIDTH], `cache` the versions in force."""

    def __init__(self, draw: Callable[[Any], Any]) -> None:
        self.draw = draw
        b = self.b = GraphBuilder("random")
        b.root("scalar", "rows", Type("u32", (1,)))
        self.s = b.root("scalar", "s", Type("f32", (1,)))
        self.rows = [b.root("input", n, Type("f32", (ROWS, WIDTH)), live="rows") for n in "xy"]
        self.gain = b.root("weight", "gain", Type("f32", (WIDTH,)))
        self.weights = [
            b.root("weight", f"w.{d}", Type(d, (WIDTH, WIDTH))) for d in ("f16", "q8_0", "q4_1")
        ]
        self.table = b.root("constant", "rope", Type("f32", (9, 8)))
        pages = b.root("input", "pages", Type("u32", (2, 1)))
        slots = b.root("input", "slots", Type("u32", (ROWS,)), live="rows")
        self.positions = b.root("input", "positions", Type("u32", (ROWS,)), live="rows")
        self.where = (pages, slots, self.positions)
        pool = Type("f16", (LAYERS, 128, HEADS, WIDTH // HEADS))
        k = b.root("state", "k", pool, layout="panels")
        v = b.root("state", "v", pool)
        self.cache = {(s, i): b.apply("layer", s, index=i) for s in (k, v) for i in range(LAYERS)}
        self.states = (k, v)
        self.outputs = 0

    def pick(self) -> Ref:
        return self.draw(st.sampled_from(self.rows))

    def step(self) -> None:
        kinds = (self.unary, self.binary, self.norm, self.product, self.quantised, self.heads,
                 self.write, self.attend, self.halves, self.gather, self.out)  # fmt: skip
        ref = self.draw(st.sampled_from(kinds))()
        if ref is not None:
            self.rows.append(ref)

    def unary(self) -> Ref:
        return self.b.apply(self.draw(st.sampled_from(UNARY)), self.pick())

    def binary(self) -> Ref:
        return self.b.apply(self.draw(st.sampled_from(BINARY)), self.pick(), self.pick())

    def norm(self) -> Ref:
        y = self.b.apply("rms_norm", self.pick(), self.gain, eps=1e-5)
        return self.b.apply("scale", y, self.s)

    def product(self) -> Ref:
        w = self.draw(st.sampled_from(self.weights))
        sums = self.draw(st.sampled_from(["f32", "f64"]))
        return self.b.apply("linear", self.pick(), w, sums=sums)

    def quantised(self) -> Ref:
        recipe = self.draw(st.sampled_from(["int8", "int8x2"]))
        x = self.b.apply("quantize", self.pick(), recipe=recipe)
        return self.b.apply("quant_linear", x, self.draw(st.sampled_from(self.weights[1:])))

    def split(self, x: Ref) -> Ref:
        return self.b.apply("reshape", x, shape=(ROWS, HEADS, WIDTH // HEADS))

    def heads(self) -> Ref:
        style = self.draw(st.sampled_from(["half", "interleaved"]))
        y = self.b.apply("rope", self.split(self.pick()), self.positions, self.table, style=style,
                         rotary=8)  # fmt: skip
        return self.b.apply("reshape", y, shape=(ROWS, WIDTH))

    def write(self) -> None:
        key = self.draw(st.sampled_from(sorted(self.cache)))
        self.cache[key] = self.b.apply(
            "kv_write", self.cache[key], self.split(self.pick()), *self.where
        )

    def attend(self) -> Ref:
        i = self.draw(st.integers(0, LAYERS - 1))
        k, v = (self.cache[(s, i)] for s in self.states)
        window = self.draw(st.sampled_from([0, 2]))
        y = self.b.apply("attention", self.split(self.pick()), k, v, *self.where, scale=0.2,
                         window=window)  # fmt: skip
        return self.b.apply("reshape", y, shape=(ROWS, WIDTH))

    def halves(self) -> Ref:
        dtype = self.draw(st.sampled_from(["f16", "bf16", "f8_e4m3", "f8_e5m2"]))
        y = self.b.apply("cast", self.pick(), dtype=dtype)
        y = y if dtype.startswith("f8") else self.b.apply("abs", y)
        return self.b.apply("cast", y, dtype="f32")

    def gather(self) -> Ref:
        return self.b.apply("gather_rows", self.pick(), self.b.apply("argmax", self.pick()))

    def out(self) -> None:
        self.b.output(f"o{self.outputs}", self.pick())
        self.outputs += 1

    def finish(self) -> Graph:
        self.out()
        self.b.output("last", self.rows[-1])
        for (state, i), ref in self.cache.items():
            self.b.output(f"state.{state[0]}.{i}", ref)
        return self.b.finish()


@st.composite
def graphs(draw: Callable[[Any], Any], most: int = 15) -> Graph:
    maker = Maker(draw)
    for _ in range(draw(st.integers(1, most))):
        maker.step()
    return maker.finish()


def bind(graph: Graph, rng: np.random.Generator) -> dict[str, Any]:
    """A value for every root but scalars that count."""
    values: dict[str, Any] = {}
    for _, node in graph.roots():
        type = node.types[0]
        if node.op == "scalar":
            if type.dtype == "f32":
                values[node.name] = np.float32(rng.standard_normal())
        elif type.dtype in SCALAR:
            values[node.name] = rng.standard_normal(type.shape).astype(DTYPES[type.dtype])
        elif type.dtype == "u32":
            values[node.name] = rng.integers(0, 5, type.shape, np.uint32)
        else:
            values[node.name] = quantised_matrix(rng, type.dtype, *type.shape)
    return values


def region_outputs(graph: Graph, nodes: Sequence[int]) -> tuple[Ref, ...]:
    """Results of the nodes that something else, or an output, reads."""
    inside = set(nodes)
    found: list[Ref] = []
    for i in sorted(inside):
        for k in range(len(graph.nodes[i].types)):
            outside = any(u not in inside for u in graph.uses.get((i, k), ()))
            if outside or (i, k) in graph.output_refs or not graph.uses.get((i, k)):
                found.append((i, k))
    return tuple(found)


def meaning(graph: Graph) -> list[tuple[str, Any]]:
    """The graph as trees from its outputs: equal for graphs that differ in order only."""
    ids: dict[Any, int] = {}
    keys: dict[Ref, int] = {}
    for i, node in enumerate(graph.nodes):
        for k in range(len(node.types)):
            operands = tuple(keys[r] for r in node.operands)
            key = (node.op, operands, node.attrs, node.types, node.name, node.body, k)
            keys[(i, k)] = ids.setdefault(key, len(ids))
    by_id = {v: k for k, v in ids.items()}

    def tree(ref: Ref) -> Any:
        seen: dict[int, int] = {}

        def walk(key: int) -> Any:
            if key in seen:
                return ("again", seen[key])
            seen[key] = len(seen)
            op, operands, *rest = by_id[key]
            return (op, tuple(walk(o) for o in operands), *rest)

        return walk(keys[ref])

    return [(name, tree(ref)) for name, ref in graph.outputs]


def inner_nodes(graph: Graph) -> list[int]:
    return [i for i, n in enumerate(graph.nodes) if n.op not in ROOTS]
