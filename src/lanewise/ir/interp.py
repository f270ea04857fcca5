"""Runs a graph by the references of its ops: the oracle of every target.

Rows that are not live are not run; their results are zeros.  A state is copied once, then its
versions share that copy, written in place: `verify` has shown that nobody reads an older one.
Whole models run in seconds: products are float64 matrix products over matrices decoded once.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from lanewise.errors import GraphError, collect
from lanewise.ir.blas import one_thread
from lanewise.ir.graph import ROOTS, Graph, Node, Ref, Type
from lanewise.ir.live import row_operands
from lanewise.ir.opdef import opdef
from lanewise.ir.values import DTYPES, ActArray, value_type
from lanewise.ir.verify import verify


@dataclass(frozen=True)
class Result:
    """What a run gave: outputs by name, and the new value of every state by its root's name."""

    outputs: dict[str, Any]
    states: dict[str, Any]

    def __getitem__(self, name: str) -> Any:
        return self.outputs[name]


def interpret(
    graph: Graph, values: Mapping[str, Any], live: Mapping[str, int] | None = None
) -> Result:
    """Run the graph on the roots' values (by name; never changed).

    `live` gives the scalars that count rows; one that is neither there nor among `values` is the
    capacity.  Raises GraphError "graph.binding": a root without a value, a value of another type,
    a count beyond its capacity; and what `verify` raises.
    """
    verify(graph)
    live = dict(live or {})
    bound = _bind(graph, values, live)
    states = {n.name: bound[(i, 0)] for i, n in graph.roots("state")}
    with one_thread():
        results = _run(graph, bound, live)
    return Result(dict(zip((n for n, _ in graph.outputs), results, strict=True)), states)


def _bind(
    graph: Graph, values: Mapping[str, Any], live: dict[str, int]
) -> dict[Ref, Any]:
    bound: dict[Ref, Any] = {}
    errors: list[GraphError] = []
    for i, node in graph.roots("scalar"):
        value = values.get(node.name, live.get(node.name))
        if value is not None:
            bound[(i, 0)] = np.asarray(value, DTYPES[node.types[0].dtype]).reshape(1)
            live.setdefault(node.name, int(bound[(i, 0)][0]))
    for i, node in graph.roots():
        try:
            if node.op == "scalar":
                _count_fits(graph, node, live)
                default = np.zeros(1, DTYPES[node.types[0].dtype])
                bound.setdefault((i, 0), default)
            else:
                bound[(i, 0)] = _root_value(node, values, live)
        except GraphError as error:
            errors.append(error)
    collect(errors)
    return bound


def _count_fits(graph: Graph, scalar: Node, live: dict[str, int]) -> None:
    counted = [n for _, n in graph.roots() if n.attributes.get("live") == scalar.name]
    capacity = min((n.types[0].shape[0] for n in counted), default=None)
    if capacity is None:
        return
    count = live.setdefault(scalar.name, capacity)
    if not 0 <= count <= capacity:
        raise GraphError("graph.binding", f"{scalar.name} is {count}, the capacity {capacity}",
                         remedy=f"from 0 to {capacity} live rows")  # fmt: skip


def _root_value(node: Node, values: Mapping[str, Any], live: Mapping[str, int]) -> Any:
    if node.name not in values:
        raise GraphError("graph.binding", f"{node.op} {node.name!r} has no value",
                         remedy=f"give a value of {node.types[0]}")  # fmt: skip
    value = values[node.name]
    try:
        type = value_type(value)
    except (KeyError, AttributeError):
        type = getattr(value, "dtype", None) or value.__class__.__name__
    if type != node.types[0]:
        raise GraphError("graph.binding", f"{node.name!r} is {type}; it must be {node.types[0]}",
                         remedy=f"give a value of {node.types[0]}")  # fmt: skip
    if node.op == "state":
        return value.copy()
    count = live.get(str(node.attributes.get("live", "")))
    return value if count is None else _padded(_rows(value, count), node.types[0])


def _rows(value: Any, count: int) -> Any:
    """The first rows of an array or of quantised activations."""
    if not isinstance(value, ActArray):
        return value[:count]
    return replace(value, v=value.v[:count], scale=value.scale[:count])


def _padded(value: Any, type: Type) -> Any:
    """Rows up to the capacity, zeros."""

    def pad(x: Any) -> Any:
        more = type.shape[0] - x.shape[0]
        return np.pad(x, [(0, more)] + [(0, 0)] * (x.ndim - 1)) if more else x

    if not isinstance(value, ActArray):
        return pad(value)
    return replace(value, v=pad(value.v), scale=pad(value.scale))


def _run(graph: Graph, bound: Mapping[Ref, Any], live: Mapping[str, int]) -> list[Any]:
    """Values of the graph's outputs; values go when their last reader has run."""
    values: dict[Ref, Any] = dict(bound)
    kept = graph.output_refs
    for i, node in enumerate(graph.nodes):
        if node.op in ROOTS:
            continue
        args = [values[r] for r in node.operands]
        if node.body is not None:
            roots = {(j, 0): args[int(n.name)] for j, n in node.body.roots()}
            results: Sequence[Any] = _run(node.body, roots, live)
        else:
            results = _apply(graph, i, node, args, live)
        for k, value in enumerate(results):
            values[(i, k)] = value
        for r in node.operands:
            if graph.uses[r][-1] == i and r not in kept:
                values.pop(r, None)
    return [values[r] for _, r in graph.outputs]


def _apply(
    graph: Graph, index: int, node: Node, args: list[Any], live: Mapping[str, int]
) -> Sequence[Any]:
    """One op, over its live rows."""
    row = opdef(node.op)
    types = tuple(map(graph.type, node.operands))
    ragged = row_operands(node, types)
    name = next((n for k in ragged if (n := graph.live[node.operands[k]])), "")
    results = node.types
    capacity = types[ragged[0]].shape[0] if ragged else 0
    count = live.get(name, capacity)
    if count < capacity:
        for k in ragged:
            args[k] = _rows(args[k], count)
        if not row.writes:
            results = tuple(Type(t.dtype, (count, *t.shape[1:])) for t in results)
    if row.writes:
        return _write(node, args, results)
    if count == 0 and capacity:
        return [_zeros(t) for t in node.types]
    out = row.ref(args, node.attributes, results)
    if row.form in ("view", "strided") and node.op != "layer" and node.operands[0] in graph.states:
        out = tuple(np.array(v) for v in out)  # a tensor of a state's bytes, as they are now
    if count == capacity:
        return out
    return [_padded(v, t) for v, t in zip(out, node.types, strict=True)]


def _write(node: Node, args: list[Any], results: tuple[Type, ...]) -> Sequence[Any]:
    row = opdef(node.op)
    if row.inplace is not None:
        row.inplace(*args, **node.attributes)
        return (args[0],)
    made = row.ref(args, node.attributes, results)
    args[0][...] = made[0]
    return (args[0], *made[1:])


def _zeros(type: Type) -> Any:
    if type.dtype in DTYPES:
        return np.zeros(type.shape, DTYPES[type.dtype])
    rows, k = type.shape
    scale = np.zeros((rows, k // 32), np.float32)
    return ActArray(type.dtype, np.zeros(type.shape, np.int32), scale)
