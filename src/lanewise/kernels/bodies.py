"""What a kernel must know of a body: its product, its store, its rows and columns.

A *body* is the graph that one launch computes; a node that is not fused is a body of one op.
Its roots are named "0", "1", ... in the order of the node's operands.

A *store* (epilogue) sees one row of a finished tile at a time: `columns` of it from column c0 on.
Ops that look beyond one element fix the *granule*, the columns that must come together: 32 to
quantise, the head width for a rope, a head's norm or a cache write.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

from lanewise.ir.graph import ROOTS, Graph, Node, Ref
from lanewise.ir.opdef import opdef
from lanewise.ir.ops.rules import is_format
from lanewise.ir.rewrite import extract_body
from lanewise.kernels.layout import PANEL

MAX_GRANULE: Final = 256
PRODUCTS: Final = ("linear", "quant_linear", "grouped_linear", "quant_grouped_linear")
GROUPED: Final = ("grouped_linear", "quant_grouped_linear")  # a matrix of several, by row
PICKS: Final = ("sample_rows", "argmax")


def body_of(graph: Graph, index: int) -> tuple[tuple[Ref, ...], Graph]:
    """(operands, body) of a node: its own if fused, else the graph of the one op."""
    node = graph.nodes[index]
    if node.op == "fused":
        assert node.body is not None
        return node.operands, node.body
    return extract_body(graph, (index,), tuple((index, k) for k in range(len(node.types))))


@dataclass(frozen=True)
class Product:
    """The product of a body.  x, w, w1, bias are indices of roots; `tiles` the refs whose values
    are the finished tiles; `rest` the nodes of the store, in order; `pick` a sampling node;
    `counts` the root that says how many rows each of `experts` matrices takes."""

    act: str  # int8x2, int8, f32, f64
    fmt: str  # the weight's dtype or format
    rows: int
    n: int
    k: int
    x: int
    w: int
    w1: int | None
    bias: int | None
    tiles: tuple[Ref, ...]
    rest: tuple[int, ...]
    granule: int
    pick: int | None
    counts: int | None = None
    experts: int = 1

    @property
    def kernel(self) -> str:
        return f"matmul_{self.fmt}_{self.act}"


@lru_cache(maxsize=4096)
def product_of(body: Graph) -> Product | str:
    """The product of a body, or why no product kernel runs it."""
    found = [i for i, n in enumerate(body.nodes) if n.op in PRODUCTS]
    if not 1 <= len(found) <= 2:
        return f"{len(found)} products in one body"
    node = body.nodes[found[0]]
    x, w, bias = node.operands[0], node.operands[1], node.operands[2:]
    counts, bias = (bias[0], ()) if node.op in GROUPED else (None, bias)
    if any(body.node(r).op not in ROOTS for i in found for r in body.nodes[i].operands):
        return "a product of computed weights or inputs"
    if len(found) == 2 and (bias or _what(body.nodes[found[1]]) != _what(node)):
        return "two products that differ"
    xt, wt = body.type(x), body.type(w)
    rows, n = node.types[0].shape
    act = xt.dtype if node.op.startswith("quant") else str(node.attr("sums"))
    if is_format(wt.dtype) and act == "f32":
        return f"{wt.dtype} weights by f32 activations in f32 sums"
    rest = tuple(
        i for i, m in enumerate(body.nodes)
        if i not in found and m.op not in ROOTS and m.op not in PICKS
    )
    picks = [i for i, m in enumerate(body.nodes) if m.op in PICKS]
    granule = _granule(body, rest, n, bool(picks))
    if isinstance(granule, str):
        return granule
    return Product(
        act, wt.dtype, rows, n, wt.shape[-1], x[0], w[0],
        body.nodes[found[1]].operands[1][0] if len(found) == 2 else None,
        bias[0][0] if bias else None,
        tuple((i, 0) for i in found), rest, granule, picks[0] if picks else None,
        None if counts is None else counts[0], 1 if counts is None else wt.shape[0],
    )  # fmt: skip


def _what(node: Node) -> tuple[object, ...]:
    """What two products of one store must share: the op, its numbers, how rows are counted."""
    return node.op, node.attrs, node.operands[2:]


def _granule(body: Graph, rest: tuple[int, ...], n: int, picks: bool) -> int | str:
    """Columns that the store needs together, or the reason why it cannot be a store."""
    need = [32] if not picks else [64]
    for i in rest:
        node = body.nodes[i]
        if node.op == "quantize":
            need.append(32)
        elif node.op in ("rms_norm", "rope", "kv_write"):
            shape = body.type(node.operands[1 if node.op == "kv_write" else 0]).shape
            if len(shape) != 3:
                return f"{node.op} over whole rows in a product's store"
            need.append(shape[2])
        elif node.op == "reshape":
            continue
        elif opdef(node.op).form != "elementwise":
            return f"{node.op} in a product's store"
        elif not _store_chain(body, node, n):
            return f"{node.op} broadcasts in a way that a store does not follow"
    granule = math.lcm(PANEL, *need)
    if granule > MAX_GRANULE:
        return f"a store of {granule} columns (at most {MAX_GRANULE})"
    return granule


def _store_chain(body: Graph, node: Node, n: int) -> bool:
    rows = node.types[0].shape[0]
    if node.types[0].shape != (rows, n):
        return False
    allowed = ((rows, n), (n,), (1, n), (rows, 1), (1,), (1, 1))
    return all(body.type(r).shape in allowed for r in node.operands)


@dataclass(frozen=True)
class Rows:
    """A row-wise body: `count` rows of `width` columns; `per_live` rows for each live one (0:
    rows are not counted).  `flat` elements in all, if shape does not matter: rows are then
    pieces of them, the last one shorter."""

    count: int
    width: int
    per_live: int
    flat: int = 0


@lru_cache(maxsize=4096)
def rows_of(body: Graph) -> Rows | str:
    """Rows and columns of a body whose every op is row-wise, or why it is not."""
    inner = [n for n in body.nodes if n.op not in ROOTS]
    lead: Node | None = None
    heads = False
    for node in inner:
        if node.op not in ROW_OPS and opdef(node.op).form != "elementwise":
            return f"{node.op} is not row-wise"
        if node.op in ("rope", "kv_write"):
            heads = True
        lead = lead or node
    if lead is None:
        return "nothing to compute"
    total = _flat(body, inner)
    if total:
        return Rows(-(-total // FLAT), FLAT, 0, total)
    typed = body.type(lead.operands[1 if lead.op == "kv_write" else 0])
    shape = typed.shape if lead.op in ROW_OPS else lead.types[0].shape
    if heads:
        return Rows(shape[0], math.prod(shape[1:]), 1)
    lead_shape, width = shape[:-1], shape[-1]
    count = math.prod(lead_shape)
    return Rows(count, width, count // lead_shape[0] if lead_shape else 0)


FLAT: Final = 4096  # elements of a piece: its values stay in the L1 cache


def _flat(body: Graph, inner: list[Node]) -> int:
    """Elements of a body that is elementwise over operands of one size or one number, with no
    rows to count; else 0."""
    size = inner[0].types[0].size
    plain = all(
        opdef(n.op).form == "elementwise" and n.types[0].size == size for n in inner
    ) and all(
        n.types[0].size in (1, size) for _, n in body.roots()
    )
    ragged = any(body.live[(i, 0)] for i, _ in body.roots())
    return size if plain and not ragged and size > FLAT else 0


ROW_OPS: Final = (
    "rms_norm", "layer_norm", "softmax", "rope", "kv_write", "quantize", "reshape",
    "reduce_sum", "reduce_max",
)
