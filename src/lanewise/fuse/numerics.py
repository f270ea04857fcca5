"""The numerics pass: products of quantised weights take the activations that the knob names.

A family authors `linear(x, w)`; here it becomes

    f32             linear(x, w, sums="f64")                  the reference mode
    int8x2 | int8   quant_linear(quantize(x, recipe), w)      equal inputs share one `quantize`

Products of float weights stay float: sums f32, or f64 under "f32".  `grouped_linear` likewise.
"""

from __future__ import annotations

from collections.abc import MutableMapping
from typing import Final

from lanewise.errors import UsageError
from lanewise.ir.builder import GraphBuilder, rebuild
from lanewise.ir.graph import Graph, Node, Ref
from lanewise.ir.ops.rules import is_format

ACTIVATIONS: Final = ("int8x2", "int8", "f32")


def numerics(graph: Graph, activations: str) -> Graph:
    """Rewrite every product by the knob; UsageError "usage.activations" for an unknown one."""
    if activations not in ACTIVATIONS:
        raise UsageError(
            "usage.activations",
            f"activations {activations!r} is none of {', '.join(ACTIVATIONS)}",
            remedy="int8x2 is the default",
        )

    def change(
        b: GraphBuilder, index: int, node: Node, refs: MutableMapping[Ref, Ref]
    ) -> bool:
        if node.op not in ("linear", "grouped_linear"):
            return False
        x, w, *more = (refs[r] for r in node.operands)
        if activations == "f32":
            result = b.apply(node.op, x, w, *more, sums="f64")
        elif not is_format(b.type(w).dtype):
            result = b.apply(node.op, x, w, *more, sums=node.attr("sums"))
        else:
            codes = b.apply("quantize", x, recipe=activations)
            result = b.apply(f"quant_{node.op}", codes, w, *more)
        refs[(index, 0)] = result
        return True

    return rebuild(graph, change)
