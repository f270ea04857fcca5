"""One row at a time: the text of row-wise ops, in a product's store or in a pass of its own.

A `RowText` writes the statements that compute `width` columns from column `c0` on of one row.
Neighbouring elementwise ops share one vector loop, their values in registers; other ops read and
write rows of floats in L1.  Every op rounds where its recipe says, so that a value gives the same
bits whether it went through memory or not.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from lanewise.ir.graph import ROOTS, Graph, Node, Ref, Type
from lanewise.ir.opdef import opdef
from lanewise.kernels.layout import act_bytes

# elementwise op -> its text over vectors {0}, {1}
VECTOR: Final = {
    "add": "vf_add({0}, {1})", "sub": "vf_sub({0}, {1})", "mul": "vf_mul({0}, {1})",
    "div": "vf_div({0}, {1})", "maximum": "vf_max({0}, {1})", "minimum": "vf_min({0}, {1})",
    "neg": "vf_neg({0})", "abs": "vf_abs({0})", "square": "vf_mul({0}, {0})",
    "sqrt": "vf_sqrt({0})", "rsqrt": "vf_rsqrt({0})", "exp": "vf_exp({0})", "log": "vf_log({0})",
    "tanh": "vf_tanh({0})", "sigmoid": "vf_sigmoid({0})", "silu": "vf_silu({0})",
    "relu": "vf_relu({0})", "gelu": "vf_gelu({0})", "gelu_erf": "vf_gelu_erf({0})",
    "erf": "vf_erf({0})", "swiglu": "vf_mul(vf_silu({0}), {1})", "scale": "vf_mul({0}, {1})",
    "cast": "{0}", "contiguous": "{0}",
}  # fmt: skip
C_TYPES: Final = {
    "f32": "float", "f16": "uint16_t", "bf16": "uint16_t", "f8_e4m3": "uint8_t",
    "f8_e5m2": "uint8_t", "u32": "uint32_t",
}  # fmt: skip


@dataclass(frozen=True)
class Frame:
    """Where a row-wise body runs: `row` and `c0` are C expressions, `width` a C expression or a
    number of columns at hand, `total` the columns of a whole row."""

    row: str
    c0: str
    width: int | str
    total: int
    pointer: Callable[[int], str]  # body root -> uint8_t* expression
    scalar: Callable[[int], str]  # body root (scalar, f32) -> float expression
    local: Callable[[str, int], str]  # (name, floats at most) -> declaration of a row of floats
    most: int  # the largest `width`
    rows: str = ""  # where rows, not columns, are shared out: how many; `s` is a thread's range
    tile: str = ""  # in a product's store: the row within the tile, of at most LW_ROWS


@dataclass
class RowText:
    """Writes the statements of a body; `sinks` maps a value to the uint8_t* it is stored at."""

    body: Graph
    frame: Frame
    sinks: Mapping[Ref, str]
    have: dict[Ref, str] = field(default_factory=dict[Ref, str])  # value -> const float* at hand
    kept: set[Ref] = field(default_factory=set[Ref])  # rows of all of a tile, at hand in `after`
    lines: list[str] = field(default_factory=list[str])
    before: list[str] = field(default_factory=list[str])  # what stands before the loop over rows
    after: list[str] = field(default_factory=list[str])  # a second loop over the rows of a tile

    def write(self, nodes: Sequence[int]) -> list[str]:
        """All statements, in the order of the nodes."""
        run: list[int] = []
        for i in nodes:
            node = self.body.nodes[i]
            if self._vector(node) and (not run or self._same(run[0], i)):
                run.append(i)
                continue
            self._loop(run)
            run = []
            if self._vector(node):
                run.append(i)
            else:
                self._op(i, node)
        self._loop(run)
        return self.lines

    def tile(self, ref: Ref, pointer: str) -> None:
        """A finished tile's row stands for a value; store it if it is wanted outside."""
        self.have[ref] = pointer
        if ref in self.sinks:
            self._copy_out(ref)

    # -- elementwise runs --------------------------------------------------------------------

    def _vector(self, node: Node) -> bool:
        return node.op not in ROOTS and opdef(node.op).form == "elementwise"

    def _same(self, a: int, b: int) -> bool:
        return self.body.nodes[a].types[0].shape == self.body.nodes[b].types[0].shape

    def _exact(self) -> bool:
        return isinstance(self.frame.width, int) and self.frame.width % 16 == 0

    def _loop(self, run: list[int]) -> None:
        if not run:
            return
        tail = "" if self._exact() else "_n"
        inner = [f"for (int64_t i = 0; i < {self.frame.width}; i += VF_N) {{"]
        if tail:
            inner.append(f"  const int64_t n = lw_least({self.frame.width} - i, VF_N);")
        names: dict[Ref, str] = {}  # values in registers: results of the run, operands loaded
        later = self._used_later(run)
        for i in run:
            node = self.body.nodes[i]
            args = [self._load(r, node, names, inner, tail) for r in node.operands]
            text = VECTOR[node.op].format(*args)
            if node.types[0].dtype != "f32":
                text = f"lw_as_{node.types[0].dtype}({text})"
            inner.append(f"  const vf x{i} = {text};")
            ref = (i, 0)
            names[ref] = f"x{i}"
            if ref in self.sinks:
                inner.append("  " + self._store(ref, f"x{i}", tail))
            if ref in later:
                self._declare(i)
                self.have[ref] = f"v{i}"
                inner.append(f"  vf_store{tail}(v{i} + i, x{i}{', n' if tail else ''});")
        self.lines += [*inner, "}"]

    def _declare(self, i: int) -> None:
        """A row for a result.  What a tile's store quantises is kept for all of its rows: each
        row is one long chain of operations, and two loops over short ones overlap better."""
        readers = self.body.uses.get((i, 0), ())
        if not self.frame.tile or any(self.body.nodes[u].op != "quantize" for u in readers):
            self.lines.append(self.frame.local(f"v{i}", self.frame.most))
            return
        self.before.append(f"alignas(64) float all{i}[LW_ROWS * {self.frame.most}];")
        here = f"float* const v{i} = all{i} + {self.frame.tile} * {self.frame.most};"
        self.lines.append(here)
        self.after.append(here)
        self.kept.add((i, 0))

    def _used_later(self, run: list[int]) -> set[Ref]:
        """Results of a run that nodes after it read."""
        return {
            (i, 0) for i in run
            if any(u not in run for u in self.body.uses.get((i, 0), ()))
        }  # fmt: skip

    def _load(
        self, ref: Ref, node: Node, names: dict[Ref, str], inner: list[str], tail: str
    ) -> str:
        if ref in names:
            return names[ref]
        name = f"a{ref[0]}_{ref[1]}"
        n = ", n" if tail else ""
        if ref in self.have:
            text = f"vf_load{tail}({self.have[ref]} + i{n})"
        else:
            text = self._root_load(ref, node, tail, n)
        inner.append(f"  const vf {name} = {text};")
        if self._steady(ref, node):
            names[ref] = name
        return name

    def _steady(self, ref: Ref, node: Node) -> bool:
        """Is what was loaded the same for every node of the run?  Half of a row at hand is; so
        is an operand that is as large as the result, or one number."""
        return ref in self.have or self.body.type(ref).size in (1, node.types[0].size)

    def _root_load(self, ref: Ref, node: Node, tail: str, n: str) -> str:
        root = self.body.node(ref)
        assert root.op in ROOTS, f"{root.op} has no row at hand"
        if root.op == "scalar":
            return f"vf_set({self.frame.scalar(ref[0])})"
        type = root.types[0]
        pointer = f"((const {C_TYPES[type.dtype]}*){self.frame.pointer(ref[0])})"
        offset, splat = self._offset(type, node.types[0].shape)
        if splat:
            value = f"{pointer}[{offset}]"
            wide = value if type.dtype == "f32" else f"lw_{type.dtype}_to_f32({value})"
            return f"vf_set({wide})"
        suffix = "" if type.dtype == "f32" else f"_{type.dtype}"
        return f"vf_load{suffix}{tail}({pointer} + {offset} + i{n})"

    def _offset(self, type: Type, shape: tuple[int, ...]) -> tuple[str, bool]:
        """(first element of an operand's row, is it one element for the whole row?)."""
        f = self.frame
        if type.size == math.prod(shape):
            return f"({f.row}) * {f.total} + {f.c0}", False
        full = (1,) * (len(shape) - len(type.shape)) + type.shape
        splat = full[-1] == 1
        stride, index = (1 if splat else full[-1]), list[str]()
        span = 1
        for d, have in zip(reversed(shape[:-1]), reversed(full[:-1]), strict=True):
            if have != 1:
                index.append(f"({f.row}) / {span} % {d} * {stride}")
                stride *= have
            span *= d
        if not splat:
            index.append(f.c0)
        return " + ".join(index) or "0", splat

    def _store(self, ref: Ref, name: str, tail: str) -> str:
        dtype = self.body.type(ref).dtype
        n = ", n" if tail else ""
        suffix = "" if dtype == "f32" else f"_{dtype}"
        at = f"({C_TYPES[dtype]}*){self.sinks[ref]} + ({self.frame.row}) * {self.frame.total}"
        return f"vf_store{suffix}{tail}({at} + {self.frame.c0} + i, {name}{n});"

    def _copy_out(self, ref: Ref) -> None:
        tail = "" if self._exact() else "_n"
        n = ", n" if tail else ""
        self.lines.append(f"for (int64_t i = 0; i < {self.frame.width}; i += VF_N) {{")
        if tail:
            self.lines.append(f"  const int64_t n = lw_least({self.frame.width} - i, VF_N);")
        load = f"vf_load{tail}({self.have[ref]} + i{n})"
        self.lines += ["  " + self._store(ref, load, tail), "}"]

    # -- ops that see more than one element ---------------------------------------------------

    def _row(self, ref: Ref) -> str:
        """A row of floats: at hand, or in a root (widened if it is of half precision)."""
        if ref in self.have:
            return self.have[ref]
        type = self.body.type(ref)
        f = self.frame
        at = f"((const {C_TYPES[type.dtype]}*){f.pointer(ref[0])} + ({f.row}) * {f.total} + {f.c0})"
        return at if type.dtype == "f32" else self._widened(ref, at, f.width, f.most)

    def _vector_root(self, ref: Ref) -> str:
        """A whole vector in a root: a gain, a bias."""
        type = self.body.type(ref)
        at = f"(const {C_TYPES[type.dtype]}*){self.frame.pointer(ref[0])}"
        return at if type.dtype == "f32" else self._widened(ref, at, type.size, type.size)

    def _widened(self, ref: Ref, at: str, width: int | str, most: int) -> str:
        name, dtype = f"w{ref[0]}_{len(self.lines)}", self.body.type(ref).dtype
        self.lines += [
            self.frame.local(name, most),
            f"for (int64_t i = 0; i < {width}; i += VF_N) {{",
            f"  const int64_t n = lw_least({width} - i, VF_N);",
            f"  vf_store_n({name} + i, vf_load_{dtype}_n({at} + i, n), n);",
            "}",
        ]
        return name

    def _result(self, i: int) -> str:
        """Where an op writes its row: the sink if that is all, else a local row."""
        ref = (i, 0)
        f = self.frame
        if ref in self.sinks and self.body.type(ref).dtype == "f32":
            at = f"((float*){self.sinks[ref]} + ({f.row}) * {f.total} + {f.c0})"
            self.lines.append(f"float* v{i} = {at};")
        else:
            self.lines.append(f.local(f"v{i}", f.most))
        self.have[ref] = f"v{i}"
        return f"v{i}"

    def _close(self, i: int) -> None:
        """Round a row of half precision, for those who read it here and those outside."""
        ref = (i, 0)
        dtype = self.body.type(ref).dtype
        if dtype not in ("f16", "bf16"):
            return
        name, width = self.have[ref], self.frame.width
        self.lines += [
            f"for (int64_t i = 0; i < {width}; i += VF_N) {{",
            f"  const int64_t n = lw_least({width} - i, VF_N);",
            f"  vf_store_n({name} + i, lw_as_{dtype}(vf_load_n({name} + i, n)), n);",
            "}",
        ]
        if ref in self.sinks:
            self._copy_out(ref)

    def _op(self, i: int, node: Node) -> None:
        getattr(self, f"_op_{node.op}")(i, node)
        if node.op in ("rms_norm", "layer_norm", "softmax", "rope"):
            self._close(i)

    def _op_reshape(self, i: int, node: Node) -> None:
        self.have[(i, 0)] = self._row(node.operands[0])
        if (i, 0) in self.sinks:
            self._copy_out((i, 0))

    def _each(self, width: int, statement: str) -> None:
        """Repeat a statement over the parts of `width` that the columns hold ({h} is a part)."""
        if width == self.frame.total:
            self.lines.append(statement.replace("{h}", "0"))
            return
        self.lines += [f"for (int64_t h = 0; h < {self.frame.width}; h += {width})",
                       "  " + statement.replace("{h}", "h")]  # fmt: skip

    def _op_rms_norm(self, i: int, node: Node) -> None:
        x, width = self._row(node.operands[0]), node.types[0].shape[-1]
        gain, eps = self._vector_root(node.operands[1]), float(node.attr("eps"))
        out = self._result(i)
        self._each(width, f"lw_rms_norm({x} + {{h}}, {gain}, {c_float(eps)}, {width}, "
                   f"{out} + {{h}});")  # fmt: skip

    def _op_layer_norm(self, i: int, node: Node) -> None:
        x, width = self._row(node.operands[0]), node.types[0].shape[-1]
        gain, eps = self._vector_root(node.operands[1]), float(node.attr("eps"))
        bias = self._vector_root(node.operands[2]) if len(node.operands) > 2 else "nullptr"
        out = self._result(i)
        self._each(width, f"lw_layer_norm({x} + {{h}}, {gain}, {bias}, {c_float(eps)}, {width}, "
                   f"{out} + {{h}});")  # fmt: skip

    def _op_softmax(self, i: int, node: Node) -> None:
        x, width = self._row(node.operands[0]), node.types[0].shape[-1]
        out = self._result(i)
        self._each(width, f"lw_softmax({x} + {{h}}, {width}, {out} + {{h}});")

    def _op_reduce_sum(self, i: int, node: Node) -> None:
        self._reduce(i, node, "lw_sum")

    def _op_reduce_max(self, i: int, node: Node) -> None:
        self._reduce(i, node, "lw_max")

    def _reduce(self, i: int, node: Node, function: str) -> None:
        x = self._row(node.operands[0])
        dtype = node.types[0].dtype
        at = f"(({C_TYPES[dtype]}*){self.sinks[(i, 0)]})[{self.frame.row}]"
        value = f"{function}({x}, {self.frame.total})"
        self.lines.append(f"{at} = {value if dtype == 'f32' else f'lw_f32_to_{dtype}({value})'};")

    def _op_rope(self, i: int, node: Node) -> None:
        x, d = self._row(node.operands[0]), node.types[0].shape[-1]
        rows, rotary = self.body.type(node.operands[2]).shape
        out, style = self._result(i), node.attr("style")
        self.lines += [
            "{",
            f"  const int64_t at = ((const uint32_t*){self.frame.pointer(node.operands[1][0])})"
            f"[{self.frame.row}];",
            f"  const float* turn = (const float*){self.frame.pointer(node.operands[2][0])} + "
            f"at * {rotary};",
            f"  for (int64_t h = 0; h < {self.frame.width}; h += {d}) {{",
            f"    if (at < {rows}) lw_rope_{style}({x} + h, turn, {rotary}, {d}, {out} + h);",
            f"    else lw_copy_row({x} + h, {out} + h, {d});",
            "  }",
            "}",
        ]

    def _op_kv_write(self, i: int, node: Node) -> None:
        state, x, table, slots, positions = node.operands
        at = self._row(x)
        kind = self.body.type(state).dtype
        pages, heads, d = self.body.type(state).shape
        lanes, blocks = self.body.type(table).shape
        which = "k" if self.body.node(state).attr("layout") == "panels" else "v"
        p, page, row = self.frame.pointer, int(node.attr("page")), self.frame.row
        words = ", ".join(f"(const uint32_t*){p(r[0])}" for r in (table, slots, positions))
        mine = f"part{i} != LW_NO_PAGE"
        self.before.append(f"const LwPlaces places{i} = {{{words}, {lanes}, {blocks}, "
                           f"{pages // page}, {page}, {min(page, 64)}}};")  # fmt: skip
        if self.frame.rows:
            self.before += [
                f"LwLater later{i};",
                f"lw_later_rows(&later{i}, &places{i}, s, {self.frame.rows});",
            ]
            mine += f" && !lw_comes_later(&later{i}, &places{i}, part{i}, spot{i})"
        self.lines += [
            f"const uint32_t part{i} = lw_row_part(&places{i}, {row});",
            f"const uint32_t spot{i} = lw_row_spot(&places{i}, {row});",
            f"if ({mine}) for (int64_t h = 0; h < {self.frame.width}; h += {d})",
            f"  lw_{which}_store_{kind}({at} + h, {d}, {p(state[0])}, {heads}, "
            f"({self.frame.c0} + h) / {d}, part{i}, spot{i}, {min(page, 64)});",
        ]

    def _op_quantize(self, i: int, node: Node) -> None:
        x, recipe = self._row(node.operands[0]), node.attr("recipe")
        k = node.types[0].shape[-1]
        at = f"{self.sinks[(i, 0)]} + ({self.frame.row}) * {act_bytes(recipe, k)}"
        lines = self.after if node.operands[0] in self.kept else self.lines
        lines += [
            f"for (int64_t b = 0; b < {self.frame.width} / 32; ++b)",
            f"  lw_quantize_block_{recipe}({x} + 32 * b, ({self.frame.c0}) / 32 + b, {k}, {at});",
        ]


def c_float(x: float) -> str:
    """A float literal that gives exactly this f32."""
    if math.isinf(x):
        return "-__builtin_inff()" if x < 0 else "__builtin_inff()"
    if math.isnan(x):
        return '__builtin_nanf("")'
    return f"{x.hex()}f"
