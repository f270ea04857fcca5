"""GraphBuilder: records nodes, infers types, shares equal nodes (hash-consing)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from lanewise.errors import GraphError, call_site
from lanewise.ir.graph import ROOTS, Graph, Node, Ref, Type, freeze_attrs
from lanewise.ir.opdef import apply, complete_attrs, opdef


class GraphBuilder:
    """Records one graph.  Every method returns `Ref`s; `finish` gives the frozen Graph."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._nodes: list[Node] = []
        self._outputs: list[tuple[str, Ref]] = []
        self._known: dict[tuple[Any, ...], int] = {}
        self._names: set[str] = set()

    def type(self, ref: Ref) -> Type:
        return self._nodes[ref[0]].types[ref[1]]

    def node(self, ref: Ref) -> Node:
        return self._nodes[ref[0]]

    def root(self, op: str, name: str, type: Type, **attrs: Any) -> Ref:
        """A root: op is one of graph.ROOTS; names are unique within a graph."""
        if name in self._names:
            raise GraphError("graph.duplicate_name", f"two roots are named {name!r}",
                             remedy="rename one of them")  # fmt: skip
        if not type.shape or any(d <= 0 for d in type.shape):
            raise GraphError("graph.shape", f"{name}: every dimension must be > 0, not {type}",
                             remedy="positive integers; a scalar is (1,)")  # fmt: skip
        if op not in ROOTS:
            raise GraphError(
                "graph.unknown_op", f"{name}: {op!r} is no root; {', '.join(ROOTS)} are",
                remedy="one of those",
            )
        full = freeze_attrs(complete_attrs(opdef(op), attrs))
        return self.add(Node(op, (), full, (type,), name, site=call_site()))[0]

    def apply(self, op: str, *operands: Ref, **attrs: Any) -> Ref:
        """One application of an op with a single result."""
        refs = self.apply_multi(op, *operands, **attrs)
        if len(refs) != 1:
            raise GraphError("graph.results", f"{op} gives {len(refs)} results",
                             remedy="use `apply_multi`")  # fmt: skip
        return refs[0]

    def apply_multi(self, op: str, *operands: Ref, **attrs: Any) -> tuple[Ref, ...]:
        types = tuple(self.type(r) for r in operands)
        full, results = apply(op, types, attrs)
        return self.add(Node(op, operands, freeze_attrs(full), results, site=call_site()))

    def add(self, node: Node) -> tuple[Ref, ...]:
        """Append a node that is already checked (rewrites use it); equal pure nodes are shared."""
        if node.op in ROOTS:
            self._names.add(node.name)
        key = (node.op, node.operands, node.attrs, node.name, node.body)
        index = None if writes(node) else self._known.get(key)
        if index is None:
            self._nodes.append(node)
            index = len(self._nodes) - 1
            self._known[key] = index
        return tuple((index, i) for i in range(len(node.types)))

    def output(self, name: str, ref: Ref) -> None:
        if any(name == n for n, _ in self._outputs):
            raise GraphError("graph.duplicate_name", f"two outputs are named {name!r}",
                             remedy="rename one of them")  # fmt: skip
        self._outputs.append((name, ref))

    def finish(self) -> Graph:
        return Graph(self.name, tuple(self._nodes), tuple(self._outputs))


def rebuild(
    graph: Graph, change: Callable[[GraphBuilder, int, Node, dict[Ref, Ref]], bool]
) -> Graph:
    """Copy a graph node by node.  `change(b, index, node, refs)` may add what stands for `node`
    itself: it then fills `refs` for its results and returns True.  Dead pure nodes are dropped."""
    b = GraphBuilder(graph.name)
    refs: dict[Ref, Ref] = {}
    live = live_nodes(graph)
    for i, node in enumerate(graph.nodes):
        if i not in live or change(b, i, node, refs):
            continue
        moved = Node(
            node.op, tuple(refs[r] for r in node.operands), node.attrs, node.types, node.name,
            node.body, node.site,
        )
        for k, ref in enumerate(b.add(moved)):
            refs[(i, k)] = ref
    for name, ref in graph.outputs:
        b.output(name, refs[ref])
    return b.finish()


def writes(node: Node) -> bool:
    """Does the node write a state?"""
    return bool(node.body.writes) if node.body is not None else opdef(node.op).writes


def live_nodes(graph: Graph) -> set[int]:
    """Nodes that an output or a write to a state needs, and every root."""
    live = {ref[0] for _, ref in graph.outputs}
    live.update(i for i, node in enumerate(graph.nodes) if node.op in ROOTS or writes(node))
    for i in range(len(graph.nodes) - 1, -1, -1):
        if i in live:
            live.update(r[0] for r in graph.nodes[i].operands)
    return live
