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
CODES: Final = {"f32": 0, "f16": 1, "bf16": 2, "u32": 3, "f8_e4m3": 4, "f8_e5m2": 5}


def _none(inputs: Types, results: Types, attrs: Attrs) -> list[float]:
    return []


def _no_scratch(inputs: Types, results: Types, attrs: Attrs) -> int:
    return 0


def _rows(inputs: Types) -> list[int]:
    """Rows for each live one (0: there is one row), and the width of a row."""
    *lead, width = inputs[0].shape
    return [math.prod(lead[1:]) if lead else 0, width]


def _heap(inputs: Types, results: Types, attrs: Attrs) -> int:
    return 4 * inputs[0].shape[-1] + 64


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
    "last_ids": Call("rows shared out", lambda i, o, a: []),
    "scatter_rows": Call("columns shared out, rows in order", lambda i, o, a: [
        i[0].shape[0], math.prod(i[0].shape[1:]), CODES[i[0].dtype], CODES[i[1].dtype]]),
    "top_k_mask": Call("rows shared out", lambda i, o, a: [*_rows(i), a["k"]],
                       scratch=_heap),
    "top_p_mask": Call("rows shared out", lambda i, o, a: _rows(i), lambda i, o, a: [a["p"]],
                       _heap),
    "min_p_mask": Call("rows shared out", lambda i, o, a: _rows(i), lambda i, o, a: [a["p"]]),
    "top_k": Call("rows shared out", lambda i, o, a: [*_rows(i), a["k"]], scratch=_heap),
    "sample_categorical": Call("rows shared out", lambda i, o, a: _rows(i)),
    "count_tokens": Call("one thread: a short history", lambda i, o, a: [
        i[0].shape[0], i[1].shape[0]]),
    "penalise": Call("columns shared out", lambda i, o, a: list(i[0].shape)),
    "linear_attention": Call("heads of sequences shared out", lambda i, o, a: [
        *i[0].shape, i[1].shape[0], len(i[4].shape), len(i[5].shape), a["decay"] == "before"],
        scratch=lambda i, o, a: 4 * (i[0].shape[2] + 16) * (i[0].shape[3] + 2) + 256),
    "linear_attention_chunked": Call("heads of sequences shared out, 16 rows at once",
        lambda i, o, a: [
            *i[0].shape, i[1].shape[0], len(i[4].shape), len(i[5].shape), a["decay"] == "before"],
        scratch=lambda i, o, a: 4 * (i[0].shape[2] + 128) * (i[0].shape[3] + 48) + 2048),
    "conv_ring": Call("channels shared out", lambda i, o, a: [*i[0].shape, i[1].shape[0]],
                      scratch=lambda i, o, a: 64),
    "grouped_matmul": Call("columns shared out, experts in order", lambda i, o, a: [
        *i[0].shape, i[1].shape[0], i[1].shape[2], CODES[i[1].dtype]]),
    "route": Call("one thread: a few integers", lambda i, o, a: [*i[0].shape, a["experts"]],
                  scratch=lambda i, o, a: 4 * a["experts"] + 64),
    "combine": Call("columns shared out, rows in order", lambda i, o, a: [
        *i[0].shape, *i[1].shape]),
    "int4_matmul": Call("columns shared out", lambda i, o, a: [*i[0].shape, a["n"]]),
    "rope_angles": Call("rows shared out", lambda i, o, a: [
        *o[0].shape, len(i) > 2]),
}  # fmt: skip
