"""Plain loops: views made real, and small products that no packed kernel takes."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from lanewise.emit.rows import C_TYPES
from lanewise.ir.graph import ROOTS, Graph, Node, Ref
from lanewise.kernels.layout import ITEMSIZE
from lanewise.plan.plan import Launch

UNSIGNED = {1: "uint8_t", 2: "uint16_t", 4: "uint32_t", 8: "uint64_t"}


def strides_of(shape: Sequence[int]) -> list[int]:
    """Row-major strides in elements."""
    out = [1] * len(shape)
    for i in range(len(shape) - 2, -1, -1):
        out[i] = out[i + 1] * shape[i + 1]
    return out


def view_strides(node: Node, shape: Sequence[int]) -> tuple[list[int], int]:
    """(stride of each result axis in the operand, offset) of a view."""
    have = strides_of(shape)
    out = node.types[0].shape
    if node.op == "permute":
        return [have[a] for a in node.attr("axes")], 0
    if node.op == "transpose":
        a, b = (x % len(shape) for x in node.attr("axes"))
        have[a], have[b] = have[b], have[a]
        return have, 0
    if node.op == "slice":
        return have, sum(s * x for s, x in zip(have, node.attr("starts"), strict=True))
    if node.op == "broadcast":
        lead = len(out) - len(shape)
        pairs = zip(shape, have, strict=True)
        return [0] * lead + [0 if d == 1 else s for d, s in pairs], 0
    return have, 0


def plain_text(body: Graph, pointer: Callable[[int], str], out: str, launch: Launch) -> str:
    """The function of a launch of kernel "plain"."""
    index = next(i for i, n in enumerate(body.nodes) if n.op not in ROOTS)
    node = body.nodes[index]
    if node.op == "matmul":
        return _matmul(body, node.operands, pointer, out)
    shape = node.types[0].shape
    strides, offset = view_strides(node, body.type(node.operands[0]).shape)
    c_type = UNSIGNED[ITEMSIZE[node.types[0].dtype]]
    lines = [
        "static void @(LwContext* c, int32_t t, int32_t T, uint8_t* const* p) {",
        "  (void)c;",
        f"  const {c_type}* from = (const {c_type}*){pointer(node.operands[0][0])} + {offset};",
        f"  const lw_range s = lw_split({shape[0]}, t, T);",
        f"  {c_type}* to = ({c_type}*){out} + s.begin * {math.prod(shape[1:])};",
        "  for (int64_t i0 = s.begin; i0 < s.end; ++i0)",
    ]
    for axis in range(1, len(shape)):
        i = f"i{axis}"
        lines.append("  " * (axis + 1) + f"for (int64_t {i} = 0; {i} < {shape[axis]}; ++{i})")
    at = " + ".join(f"i{a} * {s}" for a, s in enumerate(strides))
    lines += ["  " * (len(shape) + 1) + f"*to++ = from[{at}];", "}"]
    return "\n".join(lines)


def _matmul(body: Graph, operands: Sequence[Ref], pointer: Callable[[int], str], out: str) -> str:
    """a[M,K]·b[K,N]: lanes are columns, an fma chain over K, a new chain every 512."""
    (m, k), n = body.type(operands[0]).shape, body.type(operands[1]).shape[1]
    a_type, b_type = (body.type(r).dtype for r in operands)
    kind = "" if b_type == "f32" else f"_{b_type}"
    a = f"((const {C_TYPES[a_type]}*){pointer(operands[0][0])})[i * {k} + q]"
    a = a if a_type == "f32" else f"lw_{a_type}_to_f32({a})"
    b = f"(const {C_TYPES[b_type]}*){pointer(operands[1][0])}"
    return "\n".join([
        "static void @(LwContext* c, int32_t t, int32_t T, uint8_t* const* p) {", "  (void)c;",
        f"  const lw_range s = lw_split({m}, t, T);",
        "  for (int64_t i = s.begin; i < s.end; ++i)",
        f"    for (int64_t j = 0; j < {n}; j += VF_N) {{",
        f"      const int64_t left = lw_least({n} - j, VF_N);",
        "      vf total = vf_zero();",
        f"      for (int64_t q0 = 0; q0 < {k}; q0 += 512) {{",
        "        vf chain = vf_zero();",
        f"        for (int64_t q = q0; q < lw_least(q0 + 512, {k}); ++q)",
        f"          chain = vf_fma(vf_set({a}), vf_load{kind}_n({b} + q * {n} + j, left),"
        " chain);",
        "        total = q0 ? vf_add(total, chain) : chain;",
        "      }",
        f"      vf_store_n((float*){out} + i * {n} + j, total, left);",
        "    }", "}",
    ])  # fmt: skip
