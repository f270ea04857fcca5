"""Regions of a graph become one `fused` node, and back.  (Patterns: match.py.)

Laws: a rewrite rebuilds the graph once; nodes keep the order of their first graph as far as the
new edges let them; a fused node stands where all its operands are available; a node that reads
bytes of a state stays before the one that overwrites them.  What a fused node means is its body,
so `inline` is the inverse of `fuse_nodes`.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import replace

from lanewise.errors import GraphError
from lanewise.ir.graph import ROOTS, Graph, Node, Ref
from lanewise.ir.match import Match, Pattern, Rewrite, Step, match, op, rewrite, value
from lanewise.ir.states import before_writes

__all__ = [
    "FuseGroup", "Match", "Pattern", "Rewrite", "Step", "extract_body", "fuse_nodes", "inline",
    "inline_all", "match", "op", "rewrite", "value",
]  # fmt: skip

# (rule, node indices, refs that are read outside)
FuseGroup = tuple[str, Iterable[int], Sequence[Ref]]
_Group = tuple[str, tuple[int, ...], tuple[Ref, ...]]


def extract_body(
    graph: Graph, nodes: Iterable[int], outputs: Sequence[Ref]
) -> tuple[tuple[Ref, ...], Graph]:
    """(operands, body) of a region: `outputs`, results of `nodes`, as a graph of its own.

    The body's roots come first, in the order of the operands, named "0", "1", ...: a root of the
    graph keeps its op, type and attributes, a state value is a `state` of its root's layout, any
    other value an `input` with the live count that it has here.
    Raises GraphError "graph.fuse": a node is a root or none, an output is no result of the region.
    """
    region = sorted(set(nodes))
    if not region or region[0] < 0 or region[-1] >= len(graph.nodes):
        raise GraphError("graph.fuse", f"a region of nodes {region} of {len(graph.nodes)}")
    inside = set(region)
    operands: dict[Ref, int] = {}
    for i in region:
        if graph.nodes[i].op in ROOTS:
            raise GraphError("graph.fuse", f"%{i} is a root; a region has none")
        for ref in graph.nodes[i].operands:
            if ref[0] not in inside:
                operands.setdefault(ref, len(operands))
    body = [_body_root(graph, ref, str(k)) for ref, k in operands.items()]
    place = {i: len(body) + k for k, i in enumerate(region)}

    def moved(ref: Ref) -> Ref:
        return (place[ref[0]], ref[1]) if ref[0] in inside else (operands[ref], 0)

    for i in region:
        node = graph.nodes[i]
        body.append(replace(node, operands=tuple(map(moved, node.operands))))
    for ref in outputs:
        if ref[0] not in inside:
            raise GraphError("graph.fuse", f"%{ref[0]} is an output of a region without it")
    named = tuple((str(k), moved(ref)) for k, ref in enumerate(outputs))
    return tuple(operands), Graph("body", tuple(body), named)


def _body_root(graph: Graph, ref: Ref, name: str) -> Node:
    node, type = graph.node(ref), graph.type(ref)
    if node.op in ROOTS:
        return replace(node, name=name, site="")
    state = graph.states.get(ref)
    if state is not None:
        attrs = graph.nodes[state.root].attrs
        return Node("state", (), attrs, (type,), name)
    return Node("input", (), (("live", graph.live[ref]),), (type,), name)


def fuse_nodes(
    graph: Graph, groups: Sequence[FuseGroup], refused: list[tuple[int, str]] | None = None
) -> Graph:
    """Each group as one `fused` node whose results are the group's outputs in their order.

    Raises GraphError "graph.fuse": groups that share a node, or a result that is read outside and
    is no output; "graph.cycle": a group that would need itself.  With a list `refused`, groups
    that make a cycle are left out instead and noted there as (index of the group, reason).
    """
    groups = [(rule, tuple(sorted(set(nodes))), tuple(out)) for rule, nodes, out in groups]
    chosen = list(range(len(groups)))
    while True:
        owner = _owners(groups, chosen)
        order, stuck = _order(graph, owner, groups)
        if not stuck:
            return _emit(graph, groups, owner, order)
        last = max(stuck)  # of groups that are only together cyclic, the later one gives way
        rule, nodes, _ = groups[last]
        reason = f"a cycle: {rule} over {_names(nodes)} would need a result of itself"
        if refused is None:
            raise GraphError("graph.cycle", reason, remedy="fuse fewer nodes")
        refused.append((last, reason))
        chosen.remove(last)


def _owners(groups: Sequence[_Group], chosen: Iterable[int]) -> dict[int, int]:
    """Node -> its group."""
    owner: dict[int, int] = {}
    for g in chosen:
        if not groups[g][1]:
            raise GraphError("graph.fuse", f"{groups[g][0]}: a group of no nodes")
        for i in groups[g][1]:
            if owner.setdefault(i, g) != g:
                raise GraphError("graph.fuse", f"%{i} is in two groups")
    return owner


def _order(
    graph: Graph, owner: dict[int, int], groups: Sequence[_Group]
) -> tuple[list[int], list[int]]:
    """(nodes and, as ~g, groups in a valid order; groups on a cycle, if there is one)."""

    def unit(i: int) -> int:
        return ~owner[i] if i in owner else i

    after: dict[int, set[int]] = {}
    waits: dict[int, int] = {unit(i): 0 for i in range(len(graph.nodes))}

    def edge(a: int, b: int) -> None:
        a, b = unit(a), unit(b)
        if a != b and b not in after.setdefault(a, set()):
            after[a].add(b)
            waits[b] += 1

    for i, node in enumerate(graph.nodes):
        for ref in node.operands:
            edge(ref[0], i)
    for reader, writer in before_writes(graph):
        edge(reader, writer)
    rank = {unit(i): i for i in range(len(graph.nodes))}  # a group ranks as its last node
    ready = [(rank[u], u) for u, n in waits.items() if n == 0]
    heapq.heapify(ready)
    order: list[int] = []
    while ready:
        _, u = heapq.heappop(ready)
        order.append(u)
        for v in after.get(u, ()):
            waits[v] -= 1
            if waits[v] == 0:
                heapq.heappush(ready, (rank[v], v))
    if len(order) == len(waits):
        return order, []
    left = set(waits) - set(order)
    return order, [~u for u in left if u < 0 and _reaches_itself(u, after, left)]


def _reaches_itself(u: int, after: dict[int, set[int]], within: Collection[int]) -> bool:
    stack, seen = list(after.get(u, ())), set[int]()
    while stack:
        v = stack.pop()
        if v == u:
            return True
        if v in within and v not in seen:
            seen.add(v)
            stack.extend(after.get(v, ()))
    return False


def _emit(
    graph: Graph, groups: Sequence[_Group], owner: dict[int, int], order: list[int]
) -> Graph:
    nodes: list[Node] = []
    refs: dict[Ref, Ref] = {}
    bodies: dict[Graph, Graph] = {}  # equal ones are one: what is known of it is found once
    for u in order:
        if u >= 0:
            node = graph.nodes[u]
            results: Sequence[Ref] = [(u, k) for k in range(len(node.types))]
            operands = node.operands
        else:
            rule, members, results = groups[~u]
            operands, body = extract_body(graph, members, results)
            body = bodies.setdefault(body, body)
            types = tuple(map(graph.type, results))
            site = graph.nodes[members[-1]].site
            node = Node("fused", (), (("rule", rule),), types, "", body, site)
        _known_outside(refs, operands, node)
        for k, ref in enumerate(results):
            refs[ref] = (len(nodes), k)
        nodes.append(replace(node, operands=tuple(refs[r] for r in operands)))
    for name, ref in graph.outputs:
        if ref not in refs:
            raise GraphError("graph.fuse", f"output {name!r} is inside a group, no output of it")
    return Graph(graph.name, tuple(nodes), tuple((n, refs[r]) for n, r in graph.outputs))


def _known_outside(refs: dict[Ref, Ref], operands: Iterable[Ref], node: Node) -> None:
    for i, k in operands:
        if (i, k) not in refs:
            raise GraphError(
                "graph.fuse", f"result %{i}.{k} of a group is read outside by {node.op}",
                remedy="name it among the group's outputs",
            )  # fmt: skip


def inline(graph: Graph, which: Iterable[int] | Callable[[int, Node], bool]) -> Graph:
    """Put the bodies of fused nodes back: those with an index in `which`, or of which it says so.

    One level: a fused node inside a body stays fused (`inline_all` opens every one).
    """
    if callable(which):
        chosen = {i for i, n in enumerate(graph.nodes) if n.body is not None and which(i, n)}
    else:
        chosen = set(which)
    nodes: list[Node] = []
    refs: dict[Ref, Ref] = {}
    for i, node in enumerate(graph.nodes):
        operands = tuple(refs[r] for r in node.operands)
        if i not in chosen:
            for k in range(len(node.types)):
                refs[(i, k)] = (len(nodes), k)
            nodes.append(replace(node, operands=operands))
        elif node.body is None:
            raise GraphError("graph.fuse", f"%{i} is {node.op}: only a fused node has a body")
        else:
            _splice(nodes, node.body, operands, i, refs)
    return Graph(graph.name, tuple(nodes), tuple((n, refs[r]) for n, r in graph.outputs))


def _splice(
    nodes: list[Node], body: Graph, operands: tuple[Ref, ...], index: int, refs: dict[Ref, Ref]
) -> None:
    inner: dict[Ref, Ref] = {}
    for j, node in enumerate(body.nodes):
        if node.op in ROOTS:
            inner[(j, 0)] = operands[int(node.name)]
            continue
        for k in range(len(node.types)):
            inner[(j, k)] = (len(nodes), k)
        nodes.append(replace(node, operands=tuple(inner[r] for r in node.operands)))
    for k, (_, ref) in enumerate(body.outputs):
        refs[(index, k)] = inner[ref]


def inline_all(graph: Graph) -> Graph:
    """The graph without fused nodes, at any depth."""
    while any(node.body is not None for node in graph.nodes):
        graph = inline(graph, lambda i, node: True)
    return graph


def _names(nodes: Iterable[int]) -> str:
    return ", ".join(f"%{i}" for i in sorted(nodes))
