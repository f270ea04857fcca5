"""From what was recorded to the graph that the pipeline takes: roots get their final kind.

    weight     a matrix that products take (and gathers beside them): packed by the plan
    input      every other port, and the author's constants
    state      as attention lays it out, if attention reads it; else row-major

A write of rows into a cache becomes the cache's own write, by a table of pages in order.  An
output that has no bytes of its own (a port, a view, a state, another output) is copied.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from lanewise.errors import GraphError, LanewiseError, collect
from lanewise.ir.builder import GraphBuilder, rebuild
from lanewise.ir.graph import ROOTS, Graph, Node, Ref, Type
from lanewise.ir.ops.rules import is_format

if TYPE_CHECKING:
    from lanewise.tensor.builder import Builder

PAGE = 64
PRODUCTS = ("linear", "grouped_linear")
CACHE_OPS = ("attention", "kv_write", "layer", "scatter_rows")


def lower_roots(builder: Builder) -> Graph:
    """The graph of a builder whose refusals are none; raises what roots cannot be."""
    graph = builder.graph_builder.finish()
    errors: list[LanewiseError] = []
    packed = _packed(builder, graph, errors)
    layouts = _layouts(builder, graph, errors)
    collect(errors)
    caches = {root for root, layout in layouts.items() if layout != "rows"}
    copies = _copies(graph)

    def change(b: GraphBuilder, index: int, node: Node, refs: dict[Ref, Ref]) -> bool:
        if node.op == "state":
            layout = {"pages/k": "panels", "pages/v": "rows", "rows": "flat"}[layouts[index][:7]]
            attrs = tuple((k, layout if k == "layout" else v) for k, v in node.attrs)
            refs[(index, 0)] = b.add(replace(node, attrs=attrs))[0]
        elif index in packed:
            refs[(index, 0)] = b.add(replace(node, op="weight"))[0]
        elif node.op == "scatter_rows" and graph.states[node.operands[0]].root in caches:
            layout = layouts[graph.states[node.operands[0]].root]
            refs[(index, 0)] = _cache_write(builder, b, node, refs, int(layout[8:] or PAGE))
        else:
            return False
        return True

    made = rebuild(graph, change)
    return _with_copies(made, [name for name, _ in copies]) if copies else made


def port_layouts(builder: Builder) -> dict[str, str]:
    """State -> how its bytes lie: "rows", "pages/k", "pages/v", or "pages/k/16" of small pages."""
    graph = builder.graph_builder.finish()
    return {graph.nodes[i].name: layout for i, layout in _layouts(builder, graph, []).items()}


def _packed(builder: Builder, graph: Graph, errors: list[LanewiseError]) -> set[int]:
    """Roots that products read, packed; a product's matrix serves products and gathers only."""
    found: set[int] = set()
    for (index, _), name in builder.weights.items():
        users = [graph.nodes[u] for u in graph.uses.get((index, 0), ())]
        fits = [_takes_packed(u, (index, 0)) for u in users]
        wanted = is_format(graph.nodes[index].types[0].dtype)
        wanted = wanted or any(u.op in PRODUCTS and f for u, f in zip(users, fits, strict=True))
        if not wanted:
            continue
        found.add(index)
        for user, fit in zip(users, fits, strict=True):
            if not fit:
                errors.append(GraphError(
                    "graph.weight_use", f"{user.op}: weight {name!r} is packed for `linear`, and "
                    f"{user.op} reads rows", place=user.site,
                    remedy="declare a second weight for it, and bind the same array to both",
                ))  # fmt: skip
    return found


def _takes_packed(node: Node, ref: Ref) -> bool:
    at = [k for k, r in enumerate(node.operands) if r == ref]
    return at == [1] if node.op in PRODUCTS else node.op == "gather_rows" and at == [0]


def _layouts(builder: Builder, graph: Graph, errors: list[LanewiseError]) -> dict[int, str]:
    """Root of a state -> its layout; a state that is used as two kinds is refused."""
    kinds: dict[int, str] = {}
    spans: dict[int, int] = {}

    def use(node: Node, operand: int, kind: str) -> None:
        root = graph.states[node.operands[operand]].root
        span = min(int(node.attr("page")), PAGE)
        name, known = graph.nodes[root].name, kinds.setdefault(root, kind)
        if kind and known and known != kind:
            errors.append(GraphError(
                "graph.state_layout", f"attention: state {name!r} is both k and v",
                place=node.site, remedy="declare two states",
            ))  # fmt: skip
        kinds[root] = known or kind
        if spans.setdefault(root, span) != span:
            errors.append(GraphError(
                "graph.state_layout", f"{node.op}: state {name!r} lies in parts of {spans[root]} "
                f"positions, block says {span}", place=node.site,
                remedy="give every op of a cache the same block",
            ))  # fmt: skip

    for node in graph.nodes:
        if node.op == "attention":
            use(node, 1, "k")
            use(node, 2, "v")
        elif node.op == "kv_write":
            use(node, 0, "")
    layouts = {i: "rows" for i, _ in graph.roots("state")}
    for root, kind in kinds.items():
        small = "" if spans[root] == PAGE else f"/{spans[root]}"
        layouts[root] = f"pages/{kind or 'v'}{small}"
    _read_by_rows(graph, layouts, errors)
    return layouts


def _read_by_rows(graph: Graph, layouts: dict[int, str], errors: list[LanewiseError]) -> None:
    """Refuse ops that would read a cache's bytes as rows, and rows of 8 bits."""
    for node in graph.nodes:
        states = [graph.states[r].root for r in node.operands if r in graph.states]
        for root in states:
            name, what = graph.nodes[root].name, ""
            if layouts[root] != "rows" and node.op not in CACHE_OPS:
                what, remedy = "lies in the pages of attention", "`from_pages`"
            elif layouts[root] == "rows" and is_format(graph.nodes[root].types[0].dtype):
                what, remedy = "is a cache of 8 bits, and no attention reads it", "attention"
            if what:
                errors.append(GraphError(
                    "graph.state_layout", f"{node.op}: state {name!r} {what}", place=node.site,
                    remedy=f"read the bound buffer with {remedy}",
                ))  # fmt: skip


def _cache_write(
    builder: Builder, b: GraphBuilder, node: Node, refs: dict[Ref, Ref], page: int
) -> Ref:
    """scatter_rows into a cache: row r at position ids[r] of a table of pages in order."""
    state, x, ids = (refs[r] for r in node.operands)
    rows, pages = b.type(x).shape[0], b.type(state).shape[0] // page
    if b.type(x).dtype != "f32":
        x = b.apply("cast", x, dtype="f32")
    if rows > 1:  # the cache's write has no order among rows
        ids = b.apply("last_ids", ids)
    table = _constant(builder, b, np.arange(pages, dtype=np.uint32).reshape(1, -1))
    slots = _constant(builder, b, np.zeros(rows, np.uint32))
    return b.apply("kv_write", state, x, table, slots, ids, page=page)


def _constant(builder: Builder, b: GraphBuilder, value: np.ndarray) -> Ref:
    name = f"order.{'x'.join(map(str, value.shape))}"
    if name not in builder.values or not hasattr(b, "order_refs"):
        b.order_refs = getattr(b, "order_refs", {})  # type: ignore[attr-defined]
    known: dict[str, Ref] = b.order_refs  # type: ignore[attr-defined]
    if name not in known:
        known[name] = b.root("input", name, Type("u32", value.shape))
        builder.values[name] = value
    return known[name]


def _home(graph: Graph, ref: Ref) -> Ref:
    """Whose bytes a value is."""
    node = graph.node(ref)
    return _home(graph, node.operands[0]) if node.op in ("reshape", "layer") else ref


def _copies(graph: Graph) -> list[tuple[str, Ref]]:
    """Outputs that have no bytes of their own."""
    taken: set[Ref] = set()
    found: list[tuple[str, Ref]] = []
    for name, ref in graph.outputs:
        home = _home(graph, ref)
        if graph.node(home).op in ROOTS or home in graph.states or home in taken:
            found.append((name, ref))
        taken.add(home)
    return found


def _with_copies(graph: Graph, names: list[str]) -> Graph:
    nodes, outputs = list(graph.nodes), list(graph.outputs)
    last: dict[Ref, Ref] = {}  # a copy of a copy: equal nodes would be one again
    for i, (name, ref) in enumerate(outputs):
        if name in names:
            nodes.append(Node("contiguous", (last.get(ref, ref),), (), (graph.type(ref),)))
            last[ref] = (len(nodes) - 1, 0)
            outputs[i] = (name, last[ref])
    return Graph(graph.name, tuple(nodes), tuple(outputs))
