"""The text of one launch: a function over the pointers of its uses.

`launch_text` gives C++ with `@` for the function's name, so that launches that differ in their
places alone share one function.  Live rows, like every run-time number, come from the context.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from lanewise.emit.calls import call_text
from lanewise.emit.plain import plain_text
from lanewise.emit.rows import C_TYPES, Frame, RowText, c_float
from lanewise.ir.graph import ROOTS, Graph, Ref
from lanewise.ir.opdef import opdef
from lanewise.ir.ops.rules import is_format
from lanewise.kernels.bodies import PICKS, Product, body_of, product_of, rows_of
from lanewise.kernels.layout import packed_bytes, value_bytes
from lanewise.kernels.table import attention_node
from lanewise.plan.plan import Launch, Plan

HEAD: Final = "static void @(LwContext* c, int32_t t, int32_t T, uint8_t* const* p) {"
EPILOGUE: Final = (
    "static void @_{name}(void* env, const float* tile, int64_t ld, int64_t row0, int32_t rows,\n"
    "                     int64_t col0, int32_t cols) {{"
)


@dataclass(frozen=True)
class Scene:
    """What the text of a launch needs to know: its body, its pointers, its run-time numbers."""

    body: Graph
    launch: Launch
    live: str  # C expression: live rows of the leading axis
    scalars: Mapping[str, int]  # name -> index in the context's scalars

    def pointer(self, root: int) -> str:
        return f"p[{self.launch.slot(f'in{root}')}]"

    def out(self, k: int) -> str:
        return f"p[{self.launch.slot(f'out{k}')}]"

    def temp(self, name: str) -> str:
        return f"p[{self.launch.slot(f'tmp.{name}')}]"

    def scalar(self, root: int) -> str:
        index = self.scalars[self.body.nodes[root].name]
        return f"lw_scalar_f32(c, {index})"

    def sinks(self) -> dict[Ref, str]:
        """Values that leave the body as floats or codes (a cache write leaves by its state)."""
        found: dict[Ref, str] = {}
        for k, (_, ref) in enumerate(self.body.outputs):
            if self.body.node(ref).op not in ("kv_write", *PICKS):
                found[ref] = self.out(k)
        return found


def stack_row(name: str, most: int) -> str:
    return f"alignas(64) float {name}[{most}];"


def live_rows(plan: Plan, node: int, body: Graph, scalars: Mapping[str, int]) -> str:
    """The C expression of a launch's live rows, 0 to its capacity."""
    inner = next(i for i, n in enumerate(body.nodes) if n.op not in ROOTS)
    lead = body.nodes[inner]
    # A state has no rows of its own: a write is as ragged as what it writes.
    ragged = lead.operands[1] if opdef(lead.op).writes else (inner, 0)
    name, typed = body.live[ragged], body.type(ragged)
    if body.nodes[inner].op == "fused":
        return live_rows(plan, node, body_of(body, inner)[1], scalars)
    capacity = typed.shape[0]
    return f"lw_live(c, {scalars[name]}, {capacity})" if name else str(capacity)


def launch_text(plan: Plan, launch: Launch, scalars: Mapping[str, int]) -> str:
    """The C++ of one launch, its function named `@`."""
    body = body_of(plan.graph, launch.node)[1]
    body = _named_scalars(plan.graph, launch.node, body)
    scene = Scene(body, launch, live_rows(plan, launch.node, body, scalars), scalars)
    writers: Mapping[str, Callable[[Scene], str]] = {
        "product": product_text, "group": group_text, "pick": pick_text, "rows": rows_text,
        "attention": attention_text, "attention_piece": attention_text,
        "attention_merge": attention_text, "gather": gather_text, "sample": sample_text,
        "call": call_text,
    }  # fmt: skip
    if launch.kernel == "plain":
        return plain_text(body, scene.pointer, scene.out(0), launch)
    return writers[launch.kernel](scene)


def _named_scalars(graph: Graph, index: int, body: Graph) -> Graph:
    """A body's scalar roots under the names that the submission knows them by."""
    ops = body_of(graph, index)[0]
    nodes = tuple(
        replace(n, name=graph.node(ops[int(n.name)]).name) if n.op == "scalar" else n
        for n in body.nodes
    )
    return Graph(body.name, nodes, body.outputs)


# -- products -------------------------------------------------------------------------------------


def _pointers(scene: Scene, product: Product) -> tuple[str, str, str]:
    w1 = scene.pointer(product.w1) if product.w1 is not None else "nullptr"
    return scene.pointer(product.x), scene.pointer(product.w), w1


def _store_text(scene: Scene, product: Product) -> RowText:
    """The store of one row of a tile: bias, chain, cache, quantisation, best of the block."""
    exact = product.n % product.granule == 0
    width: int | str = product.granule if exact else "cols"
    frame = Frame("row", "col0", width, product.n, scene.pointer, scene.scalar, stack_row,
                  product.granule, tile="r")  # fmt: skip
    text = RowText(scene.body, frame, scene.sinks())
    for k, ref in enumerate(product.tiles):
        at = "tile + r * ld" if k == 0 else "tile + r * ld + cols"
        text.lines.append(f"const float* t{k} = {at};")
        if product.bias is not None:
            text.lines += [
                stack_row(f"b{k}", product.granule),
                f"lw_add_row(t{k}, (const float*){scene.pointer(product.bias)} + col0, b{k}, "
                f"{width});",
            ]
        text.tile(ref, f"t{k}" if product.bias is None else f"b{k}")
    text.write(product.rest)
    if product.pick is not None:
        blocks = -(-product.n // product.granule)
        if not any(r in scene.sinks() for r in product.tiles):
            text.lines.append(
                f"lw_copy_row({text.have[product.tiles[0]]}, (float*){scene.temp('logits')} + "
                f"row * {product.n} + col0, {width});"
            )
        text.lines.append(
            f"lw_best({text.have[product.tiles[0]]}, {width}, col0, "
            f"(float*){scene.temp('best')} + row * {blocks} + col0 / {product.granule}, "
            f"(uint32_t*){scene.temp('where')} + row * {blocks} + col0 / {product.granule});"
        )
    return text


def _epilogue(scene: Scene, product: Product, name: str) -> list[str]:
    text = _store_text(scene, product)
    return [
        EPILOGUE.format(name=name),
        "  LwContext* const c = ((const LwEnv*)env)->c;",
        "  uint8_t* const* const p = ((const LwEnv*)env)->p;",
        "  (void)c; (void)p; (void)cols;",
        *(f"  {line}" for line in text.before),
        *_tile_rows(product, text.lines),
        *(_tile_rows(product, text.after) if text.after else []),
        "}",
    ]


def _tile_rows(product: Product, lines: Sequence[str]) -> list[str]:
    return [
        "  for (int32_t r = 0; r < rows; ++r) {",
        f"    const int64_t row = {_first_row(product)} + r;",
        "    (void)row;",
        *(f"    {line}" for line in lines),
        "  }",
    ]


def _first_row(product: Product) -> str:
    """A kernel counts the rows that it was given: of one expert, if there are several."""
    return "row0" if product.counts is None else "((const LwEnv*)env)->row + row0"


def _xstride(scene: Scene, product: Product) -> int:
    type = scene.body.type((product.x, 0))
    return value_bytes(type) // type.shape[0]


def _call(scene: Scene, product: Product, name: str, begin: str, end: str) -> list[str]:
    x, w, w1 = _pointers(scene, product)
    call = f"lw_{product.kernel}(&m);"
    if product.counts is not None:
        each = packed_bytes(scene.body.type((product.w, 0))) // product.experts
        call = (f"lw_grouped(&m, &env, (const uint32_t*){scene.pointer(product.counts)}, "
                f"{product.experts}, {each}, lw_{product.kernel});")  # fmt: skip
    return [
        f"  if ({begin} < {end}) {{",
        f"    const LwMatmul m = {{{w}, {w1}, {x}, {_xstride(scene, product)}, {product.k}, "
        f"{product.n}, rows,",
        f"                        {begin}, {end}, {product.granule}, @_{name}, &env, "
        "lw_scratch(c, t), &c->tuning};",
        f"    {call}",
        "  }",
    ]


def product_text(scene: Scene) -> str:
    product = product_of(scene.body)
    assert isinstance(product, Product)
    lines = [
        *_epilogue(scene, product, "store"),
        HEAD,
        f"  const int64_t rows = {scene.live};",
        f"  const lw_range s = lw_columns({product.n}, {product.granule}, t, T);",
        "  LwEnv env = {c, p, 0};",
        *_call(scene, product, "store", "s.begin", "s.end"),
        "}",
    ]
    return "\n".join(lines)


def group_text(scene: Scene) -> str:
    """Several products whose columns are shared out as one range."""
    lines: list[str] = []
    calls: list[str] = []
    total = before = 0
    members = [i for i, n in enumerate(scene.body.nodes) if n.op not in ROOTS]
    parts: list[tuple[Product, str]] = []
    for k, i in enumerate(members):
        ops, inner = body_of(scene.body, i)
        product = product_of(inner)
        assert isinstance(product, Product)
        sub = _member(scene, i, ops, inner)
        lines += _epilogue(sub, product, f"store{k}")
        total += product.n
        parts.append((product, f"store{k}"))
        calls += [
            f"  const lw_range s{k} = lw_share({before}, {product.n}, {product.granule}, TOTAL, "
            "t, T);",
            *_call(sub, product, f"store{k}", f"s{k}.begin", f"s{k}.end"),
        ]
        before += product.n
    calls = [line.replace("TOTAL", str(total)) for line in calls]
    body = [f"  const int64_t rows = {scene.live};", "  LwEnv env = {c, p, 0};", *calls]
    return "\n".join([*lines, HEAD, *body, "}"])


@dataclass(frozen=True)
class Member(Scene):
    """A product of a group: its roots and outputs are the group's."""

    inputs: tuple[int, ...] = ()
    results: tuple[int, ...] = ()

    def pointer(self, root: int) -> str:
        return f"p[{self.launch.slot(f'in{self.inputs[root]}')}]"

    def out(self, k: int) -> str:
        return f"p[{self.launch.slot(f'out{self.results[k]}')}]"


def _member(scene: Scene, index: int, ops: Sequence[Ref], inner: Graph) -> Member:
    outer = {ref: k for k, (_, ref) in enumerate(scene.body.outputs)}
    inputs = tuple(ops[int(n.name)][0] for _, n in inner.roots())
    results = tuple(outer[(index, k)] for k in range(len(inner.outputs)))
    return Member(inner, scene.launch, scene.live, scene.scalars, inputs, results)


def pick_text(scene: Scene) -> str:
    """The token of each row from the best of each block, or by sampling the whole row."""
    product = product_of(scene.body)
    assert isinstance(product, Product) and product.pick is not None
    node = scene.body.nodes[product.pick]
    kept = [k for k, (_, ref) in enumerate(scene.body.outputs) if ref in product.tiles]
    logits = scene.out(kept[0]) if kept else scene.temp("logits")
    blocks = -(-product.n // product.granule)
    token = next(k for k, (_, r) in enumerate(scene.body.outputs) if r[0] == product.pick)
    return "\n".join([
        *_pick_head(scene),
        f"    const float* x = (const float*){logits} + row * {product.n};",
        f"    uint32_t* token = (uint32_t*){scene.out(token)} + row;",
        f"    const float* best = (const float*){scene.temp('best')} + row * {blocks};",
        f"    const uint32_t* where = (const uint32_t*){scene.temp('where')} + row * {blocks};",
        f"    const uint32_t top = lw_best_of(best, where, {blocks});",
        *_pick_tail(scene, node.op, node.operands, product.n),
    ])  # fmt: skip


def _pick_head(scene: Scene) -> list[str]:
    return [HEAD, f"  const lw_range s = lw_split({scene.live}, t, T);",
            "  for (int64_t row = s.begin; row < s.end; ++row) {"]  # fmt: skip


def _pick_tail(scene: Scene, op: str, operands: Sequence[Ref], n: int) -> list[str]:
    if op == "argmax":
        return [f"    *token = top == LW_NO_TOKEN ? lw_argmax(x, {n}) : top;", "  }", "}"]
    f = [f"((const {'uint32_t' if k == 1 else 'float'}*){scene.pointer(r[0])})[row]"
         for k, r in enumerate(operands[1:])]  # fmt: skip
    return [
        f"    if ({f[0]} == 0.0f) *token = top;",
        f"    else lw_sample_row(x, {n}, {f[0]}, {f[1]}, {f[2]}, {f[3]}, {f[4]}, top,",
        "                       token, lw_scratch(c, t));",
        "  }", "}",
    ]  # fmt: skip


def sample_text(scene: Scene) -> str:
    index = next(i for i, n in enumerate(scene.body.nodes) if n.op in PICKS)
    node = scene.body.nodes[index]
    shape = scene.body.type(node.operands[0]).shape
    if node.op == "argmax":
        lead, width = shape[:-1], shape[-1]
        count = f"{scene.live} * {math.prod(lead[1:])}" if lead else "1"
        return "\n".join([
            HEAD, f"  const lw_range s = lw_split({count}, t, T);",
            "  for (int64_t row = s.begin; row < s.end; ++row)",
            f"    ((uint32_t*){scene.out(0)})[row] = lw_argmax((const float*)"
            f"{scene.pointer(node.operands[0][0])} + row * {width}, {width});", "}",
        ])  # fmt: skip
    f = [f"((const {'uint32_t' if k == 1 else 'float'}*){scene.pointer(r[0])})[row]"
         for k, r in enumerate(node.operands[1:])]  # fmt: skip
    return "\n".join([
        *_pick_head(scene),
        f"    const float* x = (const float*){scene.pointer(node.operands[0][0])} + row * "
        f"{shape[-1]};",
        f"    lw_sample_row(x, {shape[-1]}, {f[0]}, {f[1]}, {f[2]}, {f[3]}, {f[4]}, "
        f"LW_NO_TOKEN, (uint32_t*){scene.out(0)} + row, lw_scratch(c, t));",
        "  }", "}",
    ])  # fmt: skip


# -- the rest -------------------------------------------------------------------------------------


def rows_text(scene: Scene) -> str:
    rows = rows_of(scene.body)
    assert not isinstance(rows, str)
    nodes = [i for i, n in enumerate(scene.body.nodes) if n.op not in ROOTS]

    def scratch_row(name: str, most: int) -> str:
        return f"float* const {name} = (float*)lw_take(&room, {most} * 4);"

    width: int | str = rows.width
    if rows.flat % rows.width:
        width = f"lw_least({rows.width}, {rows.flat} - row * {rows.width})"
    count = f"{scene.live} * {rows.per_live}" if rows.per_live else str(rows.count)
    frame = Frame("row", "0", width, rows.width, scene.pointer, scene.scalar, scratch_row,
                  rows.width, count)  # fmt: skip
    text = RowText(scene.body, frame, scene.sinks())
    lines = text.write(nodes)
    share = ("const lw_range s = {0, " + count + "};" if scene.launch.mode == "private"
             else f"const lw_range s = lw_split({count}, t, T);")  # fmt: skip
    return "\n".join([
        HEAD, f"  {share}", *(f"  {line}" for line in text.before),
        "  for (int64_t row = s.begin; row < s.end; ++row) {",
        "    uint8_t* room = lw_scratch(c, t);", "    (void)room;",
        *(f"    {line}" for line in lines), "  }", "}",
    ])  # fmt: skip


def attention_text(scene: Scene) -> str:
    """Attention whole, its pieces, or their merge, with a store that may quantise."""
    body, kernel = scene.body, scene.launch.kernel
    index = attention_node(body)
    assert index is not None
    node = body.nodes[index]
    q, k, v, table, slots, positions, *sinks = (r[0] for r in node.operands)
    sink = f"(const float*){scene.pointer(sinks[0])}" if sinks else "nullptr"
    _, heads, d = node.types[0].shape
    pool, kv_heads, _ = body.type((k, 0)).shape
    kv, lanes = body.type((k, 0)).dtype, body.type((table, 0)).shape
    page = int(node.attr("page"))
    stores = kernel != "attention_piece"
    rest = [i for i, n in enumerate(body.nodes) if n.op not in ROOTS and i != index]
    quantizes = stores and any(body.nodes[i].op == "quantize" for i in rest)
    out = f"(float*){scene.out(0)}" if stores and not quantizes else "nullptr"
    partial = "nullptr" if kernel == "attention" else f"(float*){scene.temp('partial')}"
    u32 = "(const uint32_t*)"
    lines = _attention_store(scene, index, rest, heads * d, d) if quantizes else []
    lines += [
        HEAD, f"  const int64_t rows = {scene.live};", "  LwEnv env = {c, p, 0};",
        f"  const uint32_t* positions = {u32}{scene.pointer(positions)};",
        f"  const int64_t pieces = lw_attention_pieces(positions, rows, {lanes[1] * page});",
        f"  const LwAttention a = {{(const float*){scene.pointer(q)}, {heads * d}, "
        f"{scene.pointer(k)}, {scene.pointer(v)},",
        f"                         {u32}{scene.pointer(table)}, {lanes[1]}, "
        f"{u32}{scene.pointer(slots)}, positions,",
        f"                         rows, {heads}, {kv_heads}, {d}, "
        f"{c_float(float(node.attr('scale')))}, {c_float(float(node.attr('softcap')))}, "
        f"{node.attr('window')},",
        f"                         {out}, {heads * d}, {partial}, pieces, "
        f"{'@_store' if quantizes else 'nullptr'}, &env, lw_scratch(c, t), "
        f"{pool // page}, {lanes[0]}, {sink}, {page}}};",
        "  (void)pieces;",
    ]  # fmt: skip
    return "\n".join([*lines, *_attention_items(scene, kernel, kv, kv_heads), "}"])


def _attention_items(scene: Scene, kernel: str, kv: str, kv_heads: int) -> list[str]:
    if kernel == "attention":  # tiles in turn, to and fro: later ones see more positions
        return [
            f"  const int64_t items = lw_attention_items_{kv}(rows, {kv_heads});",
            "  for (int64_t i = 0; i < items; i += T) {",
            "    const int64_t mine = i + (i / T % 2 ? T - 1 - t : t);",
            f"    if (mine < items) lw_attention_{kv}(&a, mine, mine + 1);",
            "  }",
        ]
    if kernel == "attention_piece":
        return [f"  const lw_range s = lw_split(rows * {kv_heads} * pieces, t, T);",
                f"  if (s.begin < s.end) lw_attention_piece_{kv}(&a, s.begin, s.end);"]  # fmt: skip
    if scene.launch.mode == "private":
        return [f"  lw_attention_merge_{kv}(&a, 0, rows * a.heads);"]
    return ["  const lw_range s = lw_split(rows * a.heads, t, T);",
            f"  if (s.begin < s.end) lw_attention_merge_{kv}(&a, s.begin, s.end);"]  # fmt: skip


def _attention_store(scene: Scene, index: int, rest: list[int], total: int, d: int) -> list[str]:
    frame = Frame("row", f"h0 * {d}", f"(nheads * {d})", total, scene.pointer, scene.scalar,
                  stack_row, total)  # fmt: skip
    text = RowText(scene.body, frame, scene.sinks(), {(index, 0): "head"})
    return [
        "static void @_store(void* env, const float* head, int64_t row, int64_t h0,"
        " int32_t nheads) {",
        "  LwContext* const c = ((const LwEnv*)env)->c;",
        "  uint8_t* const* const p = ((const LwEnv*)env)->p;",
        "  (void)c;",
        *(f"  {line}" for line in text.write(rest)),
        "}",
    ]


def gather_text(scene: Scene) -> str:
    index = next(i for i, n in enumerate(scene.body.nodes) if n.op == "gather_rows")
    table, ids = scene.body.nodes[index].operands
    type, width = scene.body.type(table), scene.body.type(table).shape[-1]
    per = math.prod(scene.body.type(ids).shape[1:])
    packed = scene.body.node(table).op == "weight"
    size = value_bytes(scene.body.nodes[index].types[0]) // scene.body.nodes[index].types[0].size
    if packed:
        narrow = type.dtype != "f32" and not is_format(type.dtype)
        row = "(float*)lw_scratch(c, t)" if narrow else "(float*)to"
        get = (f"lw_gather_{type.dtype}({scene.pointer(table[0])}, {type.shape[0]}, {width}, id, "
               f"{row});")  # fmt: skip
        if narrow:
            to = f"({C_TYPES[type.dtype]}*)to"
            get = f"{{ {get} lw_store_row_{type.dtype}({row}, {to}, {width}); }}"
    else:
        get = f"lw_copy_bytes({scene.pointer(table[0])} + id * {width * size}, to, {width * size});"
    return "\n".join([
        HEAD, f"  const lw_range s = lw_split({scene.live} * {per}, t, T);",
        "  for (int64_t row = s.begin; row < s.end; ++row) {",
        f"    const int64_t id = ((const uint32_t*){scene.pointer(ids[0])})[row];",
        f"    uint8_t* to = {scene.out(0)} + row * {width * size};",
        f"    if (id < {type.shape[0]}) {get}",
        f"    else lw_zero_bytes(to, {width * size});",
        "  }", "}",
    ])  # fmt: skip
