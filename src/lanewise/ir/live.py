"""Which values are ragged: the scalar that counts the live rows of each value's leading axis.

A root says it (`live`); a row-wise or elementwise result inherits it from the operands that share
its leading axis, a view keeps it while the leading axis stays whole and in front.  Rows from the
count on hold nothing that anybody may look at.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from lanewise.ir.graph import ROOTS, Graph, Node, Ref, Type
from lanewise.ir.opdef import opdef


def live_names(graph: Graph) -> Mapping[Ref, str]:
    """Ref -> name of the scalar that counts its rows, "" where all rows are live."""
    live: dict[Ref, str] = {}
    for i, node in enumerate(graph.nodes):
        for k, name in enumerate(_results(graph, node, live)):
            live[(i, k)] = name
    return MappingProxyType(live)


def row_operands(node: Node, types: tuple[Type, ...]) -> tuple[int, ...]:
    """Positions of the operands of which row i makes row i of the result."""
    row = opdef(node.op)
    if row.form == "elementwise":
        out = node.types[0].shape
        return tuple(
            i for i, t in enumerate(types) if len(t.shape) == len(out) and t.shape[0] == out[0]
        )
    if row.rows:
        names = [o.rstrip("?") for o in row.operands[: len(types)]]
        return tuple(
            i for i, n in enumerate(names) if n in row.rows and not _reduced(node, types[i])
        )
    return (0,) if _keeps_rows(node, types) else ()


def _reduced(node: Node, type: Type) -> bool:
    """Does the op work along its operand's one and leading axis?"""
    return len(type.shape) == 1 and node.op in (
        "rms_norm", "layer_norm", "softmax", "argmax", "reduce_sum", "reduce_max",
    )  # fmt: skip


def _keeps_rows(node: Node, types: tuple[Type, ...]) -> bool:
    """Does a shape op leave its operand's leading axis whole and in front?"""
    if node.op not in ("reshape", "permute", "transpose", "slice", "broadcast"):
        return False
    before, after = types[0].shape, node.types[0].shape
    if node.op == "permute":
        return node.attr("axes")[0] in (0, -len(before))
    if node.op == "transpose":
        a, b = (axis % len(before) for axis in node.attr("axes"))
        return a == b or 0 not in (a, b)
    if node.op == "broadcast" and len(before) != len(after):
        return False
    return before[0] == after[0]


def _results(graph: Graph, node: Node, live: Mapping[Ref, str]) -> tuple[str, ...]:
    if node.op in ROOTS:
        return (str(node.attributes.get("live", "")),)
    if node.body is not None:
        return tuple(node.body.live[ref] for _, ref in node.body.outputs)
    if opdef(node.op).writes:
        # a state has no rows of a step, whoever wrote it; nor has what comes with it
        return ("",) * len(node.types)
    types = tuple(graph.type(r) for r in node.operands)
    found = (live[node.operands[i]] for i in row_operands(node, types))
    return (next((name for name in found if name), ""),) * len(node.types)
