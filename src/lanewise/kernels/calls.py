"""Ops that have a function of their own in `calls.h`: what each is told, and its scratch.

A function sees pointers to its operands and results, integers and floats: `numbers(inputs,
results, attributes)` gives the integers, `reals` the floats.  Threads share the work out inside.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from lanewise.ir.graph import ROOTS, Graph, Type

Types = Sequence[Type]
Attrs = Mapping[str, Any]
CODES: Final = {"f32": 0, "f16": 1, "bf16": 2, "u32": 3}


def _none(inputs: Types, results: Types, attrs: Attrs) -> list[float]:
    return []


def _no_scratch(inputs: Types, results: Types, attrs: Attrs) -> int:
    return 0


@dataclass(frozen=True)
class Call:
    """A row: how threads share the op out (`why`), integers, floats, bytes of scratch."""

    why: str
    numbers: Callable[[Types, Types, Attrs], list[int]]
    reals: Callable[[Types, Types, Attrs], list[float]] = _none
    scratch: Callable[[Types, Types, Attrs], int] = _no_scratch


def call_types(body: Graph) -> tuple[tuple[Type, ...], tuple[Type, ...], Attrs]:
    """(operand types, result types, attributes) of a body's one op."""
    node = next(n for n in body.nodes if n.op not in ROOTS)
    return tuple(body.type(r) for r in node.operands), node.types, node.attributes


CALLS: Final[dict[str, Call]] = {
    "ragged_rows": Call("one thread: a few integers", lambda i, o, a: [
        i[0].shape[0], o[0].shape[0], a["reach"]]),
    "prefill_rows": Call("one thread: a few integers", lambda i, o, a: [
        o[0].shape[0], a["reach"]]),
    "scatter_rows": Call("columns shared out, rows in order", lambda i, o, a: [
        i[0].shape[0], math.prod(i[0].shape[1:]), CODES[i[0].dtype], CODES[i[1].dtype]]),
}  # fmt: skip
