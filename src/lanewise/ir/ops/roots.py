"""Rows of the roots and of `fused`: values that no op computes.

A root's type is declared, not inferred.  `live` names the u32 scalar that holds the run-time
count of the leading axis ("" = all of it); `layout` says how a state's bytes lie and changes no
meaning: "rows" is [pages][heads][64 positions][width], "panels" [pages][heads][width][64
positions], as attention wants values and keys; "flat" is row-major.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from lanewise.errors import GraphError
from lanewise.ir.graph import Type
from lanewise.ir.opdef import REQUIRED, OpDef, register

LAYOUTS = ("rows", "panels", "flat")


def _declared(types: tuple[Type, ...], attrs: Mapping[str, Any]) -> tuple[Type, ...]:
    raise GraphError(
        "graph.declared",
        "the type of a root, or of a fused node, is not inferred",
        remedy="declare a root with `GraphBuilder.root`, fuse with `ir.rewrite.fuse_nodes`",
    )


def _bound(args: Sequence[Any], attrs: Mapping[str, Any], types: tuple[Type, ...]) -> Any:
    raise GraphError("graph.declared", "the value of a root is bound, not computed",
                     remedy="bind it by its name")  # fmt: skip


def _root(name: str, attrs: Mapping[str, Any], doc: str) -> None:
    register(
        OpDef(name, (), attrs, _declared, _bound, doc, "root", samples=lambda rng: iter(()))
    )


_root("input", {"live": ""}, "Bound by the caller on every submission.")
_root("weight", {"live": ""}, "A matrix or vector of the checkpoint.")
_root("constant", {"live": ""}, "Computed once, from numbers that the graph's author holds.")
_root(
    "state",
    {"live": "", "layout": "rows"},
    "Owned by the caller and carried on; a write returns its next version.",
)
_root("scalar", {}, "A u32 or f32 of the submission, shape [1]; never part of a shape.")

register(
    OpDef(
        "fused", ("*xs",), {"rule": REQUIRED}, _declared, _bound,
        "The graph `body`, run as one: results are the body's outputs in order; `rule` made it.",
        "fused", samples=lambda rng: iter(()),
    )
)  # fmt: skip
