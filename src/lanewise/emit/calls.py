"""The text of a launch whose op has a function of its own: pointers and numbers, and the call."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lanewise.emit.rows import c_float
from lanewise.ir.graph import ROOTS, Ref
from lanewise.kernels.calls import CALLS, call_types

if TYPE_CHECKING:
    from lanewise.emit.launches import Scene


def call_text(scene: Scene) -> str:
    """The function of a launch of kernel "call"."""
    body = scene.body
    node = next(n for n in body.nodes if n.op not in ROOTS)

    def pointer(ref: Ref) -> str:
        root = body.node(ref)
        if root.op == "scalar":
            return f"(uint8_t*)(c->scalars + {scene.scalars[root.name]})"
        return scene.pointer(ref[0])

    row, types = CALLS[node.op], call_types(body)
    numbers = ", ".join(str(int(x)) for x in row.numbers(*types)) or "0"
    reals = ", ".join(c_float(float(x)) for x in row.reals(*types)) or "0.0f"
    inputs = ", ".join(pointer(r) for r in node.operands)
    outputs = ", ".join(scene.out(k) for k in range(len(node.types)))
    return "\n".join([
        "static void @(LwContext* c, int32_t t, int32_t T, uint8_t* const* p) {",
        f"  const LwCall k = {{{{{inputs}}}, {{{outputs}}}, {{{numbers}}}, {{{reals}}},",
        f"                    {scene.live}, t, T, lw_scratch(c, t)}};",
        f"  lw_call_{node.op}(&k);",
        "}",
    ])  # fmt: skip
