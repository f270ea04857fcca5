"""Values of states: which bytes of which root, at which version.

A window is the path of `layer` indices from the root; two windows overlap iff one path begins
with the other.  A root's writes are numbered 1, 2, ... in the order of the graph; a value has the
number of the write that made it (0: as it came in) and is stale once a later write overlaps it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import TypeVar

from lanewise.ir.graph import Graph, Node, Ref
from lanewise.ir.opdef import opdef

Window = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class StateValue:
    """A value of a state: index of its root, window, number of the write that made it."""

    root: int
    window: Window
    version: int


@dataclass(frozen=True, slots=True)
class Write:
    """What a node writes: the operand's position, the window within it, and which result, if
    any, is the next version."""

    operand: int
    window: Window
    result: int | None


def overlap(a: Window, b: Window) -> bool:
    n = min(len(a), len(b))
    return a[:n] == b[:n]


def node_writes(node: Node) -> tuple[Write, ...]:
    """Every write of a node, in order (a fused node may have several)."""
    if node.body is not None:
        return node.body.writes
    return (Write(0, (), 0),) if opdef(node.op).writes else ()


def body_writes(body: Graph) -> tuple[Write, ...]:
    """The writes of a fused node's body, by operand of the fused node."""
    results = {ref: k for k, (_, ref) in enumerate(body.outputs)}
    found: list[Write] = []
    for i, node in enumerate(body.nodes):
        for w in node_writes(node):
            value = body.states.get(node.operands[w.operand])
            at = None if w.result is None else results.get((i, w.result))
            if value is not None:
                window = value.window + w.window
                found.append(Write(int(body.nodes[value.root].name), window, at))
    return tuple(found)


def node_touches(node: Node) -> Iterable[tuple[int, Window]]:
    """(operand, window within it) of all that a node reads or writes, were it a state.  A
    `layer` touches nothing: who uses the window does."""
    if node.body is not None:
        return node.body.touches
    return () if node.op == "layer" else [(k, ()) for k in range(len(node.operands))]


def body_touches(body: Graph) -> tuple[tuple[int, Window], ...]:
    """What a body touches of its state roots, by operand of the fused node; no pair twice."""
    found: dict[tuple[int, Window], None] = {}
    for node in body.nodes:
        for k, window in node_touches(node) if body.states else ():
            value = body.states.get(node.operands[k])
            if value is not None:
                found[(int(body.nodes[value.root].name), value.window + window)] = None
    return tuple(found)


def state_values(graph: Graph) -> Mapping[Ref, StateValue]:
    """Every value of a state in the graph.  A body's roots count as roots."""
    values: dict[Ref, StateValue] = {}
    count: dict[int, int] = {}
    for i, node in enumerate(graph.nodes):
        if node.op == "state":
            values[(i, 0)] = StateValue(i, (), 0)
        elif node.op == "layer":
            parent = values.get(node.operands[0])
            if parent is not None:
                window = (*parent.window, node.attr("index"))
                values[(i, 0)] = StateValue(parent.root, window, parent.version)
        elif node.body is not None or opdef(node.op).writes:
            values.update(_made(i, node, values, count))
    return MappingProxyType(values)


def _made(
    index: int, node: Node, values: Mapping[Ref, StateValue], count: dict[int, int]
) -> Iterator[tuple[Ref, StateValue]]:
    """The state values among a node's results; counts its writes."""
    numbers: dict[tuple[int, int], int] = {}  # (operand, its n-th write here) -> number of all
    nth: dict[int, int] = {}
    for w in node_writes(node):
        parent = values.get(node.operands[w.operand])
        if parent is None:  # a write to what is no state: the verifier refuses it
            continue
        count[parent.root] = version = count.get(parent.root, 0) + 1
        nth[w.operand] = nth.get(w.operand, 0) + 1
        numbers[(w.operand, nth[w.operand])] = version
        if w.result is not None:
            yield (index, w.result), StateValue(parent.root, parent.window + w.window, version)
    for k, (_, ref) in enumerate(node.body.outputs if node.body is not None else ()):
        inner = node.body.states.get(ref) if node.body is not None else None
        if inner is None or node.body is None:
            continue
        operand = int(node.body.nodes[inner.root].name)
        parent = values.get(node.operands[operand])
        if parent is not None:
            version = numbers[(operand, inner.version)] if inner.version else parent.version
            yield (index, k), StateValue(parent.root, parent.window + inner.window, version)


def before_writes(graph: Graph) -> Iterator[tuple[int, int]]:
    """Pairs (reader, writer): a node that touches bytes of a state, and a later node that
    overwrites them.  No rewrite may bring the second before the first."""
    touched: dict[int, dict[Window, list[int]]] = {}
    for i, node in enumerate(graph.nodes):
        mine: list[tuple[int, Window]] = []
        for k, window in node_touches(node):
            value = graph.states.get(node.operands[k])
            if value is not None:
                mine.append((value.root, value.window + window))
        for w in node_writes(node):
            value = graph.states.get(node.operands[w.operand])
            if value is not None:
                for reader in overlapping(touched.get(value.root, {}), value.window + w.window):
                    yield reader, i
        for root, window in mine:
            touched.setdefault(root, {}).setdefault(window, []).append(i)


T = TypeVar("T")


def overlapping(table: Mapping[Window, list[T]], window: Window) -> Iterator[T]:
    """Entries of the windows that overlap one: a few look-ups unless deeper windows exist."""
    for n in range(len(window) + 1):
        yield from table.get(window[:n], ())
    if any(len(other) > len(window) for other in table):
        for other, entries in table.items():
            if len(other) > len(window) and overlap(other, window):
                yield from entries
