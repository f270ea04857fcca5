"""Is this graph legal?  Every fault is found and all are raised together.

Laws: an operand is made before it is used; a result's type is what the op's rule gives; names of
roots and outputs are unique; a body has one root per operand, of its type; `live` names a u32
scalar and rows of two counts do not mix; only values of states are written, and nobody reads
bytes that a later write has changed.
"""

from __future__ import annotations

from collections.abc import Iterator

from lanewise.errors import GraphError, LanewiseError, collect
from lanewise.ir.graph import ROOTS, Graph, Node, Ref, Type
from lanewise.ir.live import row_operands
from lanewise.ir.opdef import apply, complete_attrs, opdef
from lanewise.ir.ops.attention import PAGE
from lanewise.ir.ops.roots import LAYOUTS
from lanewise.ir.ops.rules import BLOCKS, RECIPES, SCALARS
from lanewise.ir.states import StateValue, Window, node_touches, node_writes, overlapping
from lanewise.ir.text import value_names

# root -> window -> (number of the write, its node)
_Written = dict[int, dict[Window, list[tuple[int, int]]]]
MAX_DEPTH = 32
MAX_SIZE = 2**40  # elements of one value
_DTYPES = frozenset((*SCALARS, *RECIPES, *BLOCKS))


def verify(graph: Graph) -> None:
    """Raise every fault of the graph: GraphError, or `Refused` with all of them.

    Codes: graph.unknown_op, .operands, .undefined, .type, .name, .duplicate_name, .attribute (and
    the other codes of the op's rule), .body, .state, .stale_state, .live, .output.
    """
    if "verified" not in graph.__dict__:  # frozen: one look is enough
        collect(list(_faults(graph, 0)))
        graph.__dict__["verified"] = True


def _faults(graph: Graph, depth: int) -> Iterator[LanewiseError]:
    if depth > MAX_DEPTH:
        yield GraphError("graph.body", f"bodies nest deeper than {MAX_DEPTH}", place=graph.name)
        return
    form = list(_form(graph, depth))
    yield from form
    if not form:  # what follows looks things up and needs a well-formed graph
        yield from _live(graph, depth)
        yield from _states(graph)


def _place(graph: Graph, index: int) -> str:
    node = graph.nodes[index]
    name = value_names(graph).get((index, 0), f"node {index}")
    shown = f"{graph.name}: {name} = {node.op}"
    return f"{node.site}: {shown}" if node.site else shown


def _form(graph: Graph, depth: int) -> Iterator[LanewiseError]:
    """Names, operands, types, bodies: node by node."""
    roots: set[str] = set()
    for i, node in enumerate(graph.nodes):
        for error in _node(graph, i, node, depth):
            if isinstance(error, GraphError) and not error.place:
                place = _place(graph, i)
                yield GraphError(error.code, error.message, place=place, remedy=error.remedy)
            else:
                yield error
        if node.op in ROOTS:
            if node.name in roots:
                yield GraphError(
                    "graph.duplicate_name", f"two roots are named {node.name!r}",
                    place=_place(graph, i),
                )  # fmt: skip
            roots.add(node.name)
    seen: set[str] = set()
    for name, ref in graph.outputs:
        if name in seen:
            yield GraphError("graph.duplicate_name", f"two outputs are named {name!r}")
        seen.add(name)
        if not _exists(graph, ref, len(graph.nodes)):
            yield GraphError("graph.output", f"output {name!r} is value {ref}, which is not there")


def _exists(graph: Graph, ref: Ref, before: int) -> bool:
    return 0 <= ref[0] < before and 0 <= ref[1] < len(graph.nodes[ref[0]].types)


def _node(graph: Graph, index: int, node: Node, depth: int) -> Iterator[LanewiseError]:
    missing = [r for r in node.operands if not _exists(graph, r, index)]
    for r in missing:
        yield GraphError("graph.undefined", f"operand {r} is not made before it is used")
    for type in node.types:
        if type.size > MAX_SIZE:
            yield GraphError("graph.shape", f"{type} has more than 2^40 elements")
    if len(dict(node.attrs)) < len(node.attrs):
        yield GraphError("graph.attribute", "an attribute is given twice")
    try:
        row = opdef(node.op)
        attrs = complete_attrs(row, dict(node.attrs))
        if len(attrs) > len(node.attrs):
            absent = ", ".join(sorted(set(attrs) - set(dict(node.attrs))))
            raise GraphError("graph.missing_attribute", f"{absent} is not given")
        if node.op in ROOTS:
            yield from _root(node)
        elif node.name:
            yield GraphError("graph.name", f"only roots have names, not {node.name!r}")
        elif (node.op == "fused") != (node.body is not None):
            yield GraphError("graph.body", "a body belongs to `fused`, and there always")
        elif not missing:
            types = tuple(map(graph.type, node.operands))
            if node.body is not None:
                yield from _body(node, node.body, types, depth)
            else:
                _, results = apply(node.op, types, dict(node.attrs))
                if results != node.types:
                    yield GraphError(
                        "graph.type", f"results are {_shown(results)}, not {_shown(node.types)}"
                    )
    except GraphError as error:
        yield error


def _root(node: Node) -> Iterator[GraphError]:
    if node.operands or node.body is not None or len(node.types) != 1:
        yield GraphError("graph.operands", "a root has no operands, no body and one type")
        return
    type = node.types[0]
    if not type.shape or min(type.shape) < 1:
        yield GraphError("graph.shape", f"{node.name!r} is {type}: every dimension must be > 0")
    elif type.dtype not in _DTYPES:
        yield GraphError("graph.dtype", f"{node.name!r} is {type}: no such dtype or format")
    elif type.shape[-1] % BLOCKS.get(type.dtype, 1):
        yield GraphError(
            "graph.shape", f"{node.name!r} is {type}: rows are blocks of {BLOCKS[type.dtype]}"
        )
    if node.op == "scalar" and type not in (Type("u32", (1,)), Type("f32", (1,))):
        yield GraphError("graph.type", f"scalar {node.name!r} is {type}; u32[1] or f32[1]")
    if node.op == "state" and node.attr("layout") not in LAYOUTS:
        yield GraphError(
            "graph.attribute", f"layout {node.attr('layout')!r}: one of {', '.join(LAYOUTS)}"
        )
    if not isinstance(dict(node.attrs).get("live", ""), str):
        yield GraphError("graph.attribute", "live is the name of a scalar")


def _body(
    node: Node, body: Graph, types: tuple[Type, ...], depth: int
) -> Iterator[LanewiseError]:
    rule = node.attr("rule")
    if "verified_body" not in body.__dict__:
        faults = list(_faults(body, depth + 1))
        yield from faults
        if faults:
            return
        body.__dict__["verified_body"] = True
    roots = {root.name: root for _, root in body.roots()}
    if set(roots) != {str(k) for k in range(len(types))}:
        yield GraphError("graph.body", f"{rule}: roots {sorted(roots)}, {len(types)} operands")
        return
    for k, type in enumerate(types):
        if roots[str(k)].types[0] != type:
            yield GraphError(
                "graph.body", f"{rule}: operand {k} is {type}, the body's {roots[str(k)].types[0]}"
            )
    results = tuple(body.type(ref) for _, ref in body.outputs)
    if results != node.types:
        yield GraphError(
            "graph.type", f"{rule}: results are {_shown(results)}, not {_shown(node.types)}"
        )


def _live(graph: Graph, depth: int) -> Iterator[GraphError]:
    scalars = {n.name for _, n in graph.roots("scalar") if n.types[0].dtype == "u32"}
    for i, node in enumerate(graph.nodes):
        if node.op in ROOTS:
            live = graph.live[(i, 0)]
            if live and depth == 0 and live not in scalars:
                yield GraphError(
                    "graph.live", f"{node.name!r} is live={live!r}: no u32 scalar of that name",
                    place=_place(graph, i), remedy="declare the scalar",
                )  # fmt: skip
        elif node.body is None:
            types = tuple(map(graph.type, node.operands))
            ragged = row_operands(node, types)
            counts = {graph.live[node.operands[k]] for k in ragged} - {""}
            if len(counts) > 1:
                yield GraphError(
                    "graph.live", f"rows counted by {' and '.join(sorted(counts))} meet",
                    place=_place(graph, i),
                    remedy="count both by one scalar, or bring them together by `gather_rows`",
                )  # fmt: skip


def _states(graph: Graph) -> Iterator[GraphError]:
    """Writes go to states; nothing stale is touched, by a node or as an output."""
    if not graph.states and not any(node_writes(n) for n in graph.nodes):
        return
    written: _Written = {}
    count: dict[int, int] = {}
    spans: dict[int, int] = {}
    for i, node in enumerate(graph.nodes):
        writes = list(node_writes(node))
        wanted = {w.operand for w in writes} | set(range(node.op == "layer"))
        for k in sorted(wanted):
            if node.operands[k] not in graph.states:
                yield GraphError(
                    "graph.state",
                    f"operand {k} is {value_names(graph)[node.operands[k]]}, no state",
                    place=_place(graph, i), remedy="declare a `state` root",
                )  # fmt: skip
        if node.body is not None:
            yield from _body_states(graph, i, node)
        if node.op in ("attention", "kv_write"):
            span = min(int(node.attr("page")), PAGE)
            for value in (graph.states[r] for r in node.operands if r in graph.states):
                if spans.setdefault(value.root, span) != span:
                    yield GraphError(
                        "graph.state", f"state {graph.nodes[value.root].name!r} lies in parts of "
                        f"{spans[value.root]} positions, page says {span}", place=_place(graph, i),
                        remedy="give every op of a cache the same page",
                    )  # fmt: skip
        for k, window in node_touches(node):
            value = graph.states.get(node.operands[k])
            if value is not None:
                yield from _stale(graph, node.operands[k], value, window, written, i)
        for w in writes:
            value = graph.states.get(node.operands[w.operand])
            if value is not None:
                count[value.root] = number = count.get(value.root, 0) + 1
                windows = written.setdefault(value.root, {})
                windows.setdefault(value.window + w.window, []).append((number, i))
    for name, ref in graph.outputs:
        value = graph.states.get(ref)
        if value is not None:
            yield from _stale(graph, ref, value, (), written, name)


def _body_states(graph: Graph, index: int, node: Node) -> Iterator[GraphError]:
    """A state goes into a body as a state, and nothing else does."""
    assert node.body is not None
    for _, root in node.body.roots():
        ref = node.operands[int(root.name)]
        if (root.op == "state") != (ref in graph.states):
            yield GraphError(
                "graph.state", f"operand {root.name} is {graph.node(ref).op}, its root {root.op}",
                place=_place(graph, index),
            )  # fmt: skip


def _stale(
    graph: Graph, ref: Ref, value: StateValue, window: Window, written: _Written,
    user: int | str,
) -> Iterator[GraphError]:  # fmt: skip
    window = value.window + window
    after = overlapping(written.get(value.root, {}), window)
    since = sorted(w for w in after if w[0] > value.version)
    if since:
        name, shown = graph.nodes[value.root].name, value_names(graph)[ref]
        place = _place(graph, user) if isinstance(user, int) else f"output {user!r}"
        part = f" window {list(window)}" if window else ""
        times = "write" if len(since) == 1 else "writes"
        yield GraphError(
            "graph.stale_state",
            f"{shown} is version {value.version} of state {name!r}{part}, {len(since)} {times} "
            f"behind: {_place(graph, since[-1][1])} gave the latest",
            place=place, remedy="read what the latest write returned",
        )  # fmt: skip


def _shown(types: tuple[Type, ...]) -> str:
    return ", ".join(map(str, types)) or "none"
