"""THE table of kernel rows: which kernel runs a body, in which stages, and why.

A row looks at a body and either takes it or says why not; the first that takes it is selected,
and the reasons of those before it are kept.  A *stage* is one launch: how it is shared out
(`mode`), which part of each array a thread touches, temporaries, the unit that must be compiled.

    split    each thread takes a share of the items
    private  each thread does everything, into a copy of its own (saves a barrier when small)
    first    thread 0 alone
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from lanewise.ir.graph import ROOTS, Graph
from lanewise.ir.opdef import opdef
from lanewise.ir.ops.attention import CACHES
from lanewise.ir.ops.rules import is_format
from lanewise.kernels.bodies import Product, Rows, body_of, product_of, rows_of
from lanewise.kernels.calls import CALLS, call_types
from lanewise.kernels.layout import align, attention_scratch, product_scratch, rows_scratch
from lanewise.kernels.library import KernelObject

# Row counts up to which a row-wise launch is computed by every thread for itself.
PRIVATE_ROWS: Final = 4
# Row counts up to which attention is split over positions as well.
SPLIT_ROWS: Final = 8


@dataclass(frozen=True, slots=True)
class Temp:
    """An array that only the stages of one launch know: name, bytes."""

    name: str
    nbytes: int


@dataclass(frozen=True)
class Stage:
    """One launch of a selected kernel.  `parts` names how threads share an array out: equal
    names mean that each thread touches only what it touched before under that name."""

    kernel: str
    mode: str
    reads: tuple[int | str, ...]  # operand indices, or names of temporaries
    writes: tuple[int | str, ...]  # output indices, or names of temporaries
    part: str = ""  # of every array written, and of operands in `aligned`
    aligned: tuple[int, ...] = ()
    scratch: int = 0
    operations: int = 0


@dataclass(frozen=True)
class Selection:
    """A kernel chosen for a body: its stages, units, and why the rows before it were not."""

    kernel: str
    why: str
    stages: tuple[Stage, ...]
    objects: tuple[KernelObject, ...] = ()
    temps: tuple[Temp, ...] = ()
    rejected: tuple[tuple[str, str], ...] = ()
    recipe: str = ""


@dataclass(frozen=True)
class KernelRow:
    """A row of the table: `take` gives a Selection, or the reason why it does not fit."""

    name: str
    doc: str
    take: Callable[[Graph], Selection | str]


def _inner(body: Graph) -> list[int]:
    return [i for i, n in enumerate(body.nodes) if n.op not in ROOTS]


def _operands(body: Graph) -> tuple[int, ...]:
    """Roots that have bytes (scalars are numbers of the submission)."""
    return tuple(i for i, n in body.roots() if n.op != "scalar")


def product_object(product: Product) -> KernelObject:
    return KernelObject(
        "product.cpp", (f"LW_FORMAT={product.fmt}", f"LW_ACT={product.act}"),
        (f"lw_{product.kernel}",),
    )  # fmt: skip


def recipe_name(product: Product) -> str:
    """The recipe of docs/recipes.md that fixes a product's bits."""
    kind = {"f32": "float", "f64": "double"}.get(product.act, "quantised")
    return f"product/{kind}/{product.fmt}/{product.act}"


def take_product(body: Graph) -> Selection | str:
    inner = _inner(body)
    if any(body.nodes[i].op == "fused" for i in inner):
        return "a group of products"
    product = product_of(body)
    if isinstance(product, str):
        return product
    if product.w1 is not None and not _swiglu(body, product):
        return "two products whose results do not meet"
    outs = tuple(range(len(body.outputs)))
    scratch = product_scratch(product.k, product.granule)
    part = f"columns/{product.n}/{product.granule}"
    ops = 2 * product.rows * product.n * product.k * (2 if product.w1 is not None else 1)
    aligned = _aligned(body, product)
    why = f"{product.fmt} weights by {product.act} activations, stores of {product.granule}"
    common = {"why": why, "objects": (product_object(product),), "recipe": recipe_name(product)}
    if product.pick is None:
        stage = Stage("product", "split", _operands(body), outs, part, aligned, scratch, ops)
        return Selection(product.kernel, stages=(stage,), **common)
    blocks = -(-product.n // product.granule)
    logits = tuple(k for k in outs if body.outputs[k][1][0] != product.pick)
    picks = tuple(k for k in outs if k not in logits)
    temps = (Temp("best", product.rows * blocks * 4), Temp("where", product.rows * blocks * 4))
    if not logits:
        temps = (*temps, Temp("logits", product.rows * product.n * 4))
    kept: tuple[int | str, ...] = logits or ("logits",)
    stages = (
        Stage("product", "split", _operands(body), (*kept, "best", "where"), part, (), scratch,
              ops),
        Stage("pick", "split",
              (*_options(body, product.pick), *_names(kept), "best", "where"), picks,
              f"rows/{product.rows}", (), 16 * product.n + 4096),
    )  # fmt: skip
    objects = (*common.pop("objects"), SAMPLE)
    return Selection(product.kernel, stages=stages, objects=objects, temps=temps, **common)


def _options(body: Graph, pick: int) -> tuple[int, ...]:
    """Roots that a pick reads: the options of sampling."""
    return tuple(r[0] for r in body.nodes[pick].operands if body.node(r).op in ROOTS)


def _names(kept: tuple[int | str, ...]) -> tuple[str, ...]:
    return tuple(k for k in kept if isinstance(k, str))


SAMPLE: Final = KernelObject("sample.cpp", (), ("lw_sample_row", "lw_argmax"))


def _swiglu(body: Graph, product: Product) -> bool:
    a, b = product.tiles
    users = {u for t in (a, b) for u in body.uses.get(t, ())}
    return len(users) == 1 and body.nodes[users.pop()].operands == (a, b)


def _aligned(body: Graph, product: Product) -> tuple[int, ...]:
    """Operands that a store reads only where it writes (a residual)."""
    full = (product.rows, product.n)
    return tuple(
        i for i, n in body.roots()
        if n.types[0].shape == full and i not in (product.x, product.w, product.w1)
    )  # fmt: skip


def take_group(body: Graph) -> Selection | str:
    """Several products over one input: their columns are one range, shared out together."""
    members = _inner(body)
    if len(members) < 2:
        return "one product alone"
    objects: list[KernelObject] = []
    ops = scratch = 0
    recipes: list[str] = []
    for i in members:
        product = product_of(body_of(body, i)[1])
        if isinstance(product, str):
            return product
        if product.pick is not None:
            return "a pick among the products"
        objects.append(product_object(product))
        recipes.append(recipe_name(product))
        scratch = max(scratch, product_scratch(product.k, product.granule))
        ops += 2 * product.rows * product.n * product.k * (2 if product.w1 is not None else 1)
    stage = Stage("group", "split", _operands(body), tuple(range(len(body.outputs))),
                  f"group/{body.identity[:16]}", (), scratch, ops)  # fmt: skip
    return Selection(
        "matmul_group", f"{len(members)} products of one input", (stage,),
        tuple(dict.fromkeys(objects)), recipe=", ".join(dict.fromkeys(recipes)),
    )  # fmt: skip


def attention_node(body: Graph) -> int | None:
    found = [i for i in _inner(body) if body.nodes[i].op == "attention"]
    return found[0] if len(found) == 1 else None


def take_attention(body: Graph) -> Selection | str:
    index = attention_node(body)
    if index is None:
        return "no attention"
    node = body.nodes[index]
    rest = [i for i in _inner(body) if i != index]
    if any(body.nodes[i].op not in ("reshape", "quantize") for i in rest):
        return "more than a quantisation after attention"
    rows, heads, d = node.types[0].shape
    kv = body.type(node.operands[1])
    if d > 256 or kv.dtype not in CACHES:
        return f"heads of {d} over a {kv.dtype} cache"
    if rest and d % 32:
        return f"heads of {d} do not hold whole groups of 32"
    kv_heads = kv.shape[1]
    reach = body.type(node.operands[3]).shape[1] * int(node.attr("page"))
    pieces = -(-reach // 256)
    ops = 4 * rows * heads * d * reach
    scratch = attention_scratch(d, heads // kv_heads)
    obj = (KernelObject("attention.cpp", (f"LW_KV={kv.dtype}",), attention_symbols(kv.dtype)),)
    reads, outs = _operands(body), tuple(range(len(body.outputs)))
    recipe = f"attention/{kv.dtype}"
    if rows > SPLIT_ROWS:
        stage = Stage("attention", "split", reads, outs, f"attention/{body.identity[:16]}", (),
                      scratch, ops)  # fmt: skip
        return Selection("attention", "a tile of rows by a KV head", (stage,), obj,
                         recipe=recipe)  # fmt: skip
    temp = Temp("partial", rows * heads * pieces * (d + 2) * 4)
    stages = (
        Stage("attention_piece", "split", reads, ("partial",), f"pieces/{rows}", (), scratch, ops),
        Stage("attention_merge", "private" if rows <= PRIVATE_ROWS else "split",
              (*reads, "partial"), outs, f"heads/{rows}", (), scratch),
    )  # fmt: skip
    return Selection("attention_split", "few rows: split over positions, merged in order", stages,
                     obj, (temp,), recipe=recipe)  # fmt: skip


def attention_symbols(kv: str) -> tuple[str, ...]:
    names = ("attention", "attention_piece", "attention_merge", "attention_items")
    return tuple(f"lw_{n}_{kv}" for n in names)


def take_rows(body: Graph) -> Selection | str:
    if any(body.nodes[i].op == "fused" for i in _inner(body)):
        return "a group"
    rows = rows_of(body)
    if isinstance(rows, str):
        return rows
    if all(body.nodes[i].op == "contiguous" for i in _inner(body)):
        return "a copy"
    values = [body.nodes[i] for i in _inner(body) if body.nodes[i].op != "kv_write"]
    dtypes = {t.dtype for node in values for t in node.types}
    if "u32" in dtypes or any(is_format(d) for d in dtypes):
        return "integers or quantised matrices"
    writes_state = any(opdef(body.nodes[i].op).writes for i in _inner(body))
    small = rows.count <= PRIVATE_ROWS and rows.per_live > 0 and not writes_state
    stage = Stage(
        "rows", "private" if small else "split", _operands(body), tuple(range(len(body.outputs))),
        f"rows/{rows.count}/{rows.per_live}/{rows.flat}", _row_aligned(body, rows),
        rows_scratch(body, rows),
    )
    why = "few rows: every thread computes them for itself" if small else "row by row"
    return Selection("rows", why, (stage,), recipe="rows")


def _row_aligned(body: Graph, rows: Rows) -> tuple[int, ...]:
    whole = rows.count * rows.width
    return tuple(
        i for i, n in body.roots()
        if n.op != "state" and n.types[0].size == whole and n.types[0].shape[0] > 1
    )  # fmt: skip


def take_gather(body: Graph) -> Selection | str:
    inner = _inner(body)
    if len(inner) != 1 or body.nodes[inner[0]].op != "gather_rows":
        return "no gather"
    node = body.nodes[inner[0]]
    table = body.type(node.operands[0])
    count = math.prod(body.type(node.operands[1]).shape)
    packed = body.node(node.operands[0]).op == "weight"
    objects: tuple[KernelObject, ...] = ()
    if packed:
        objects = (KernelObject("product.cpp", (f"LW_FORMAT={table.dtype}", "LW_PACK"),
                                (f"lw_gather_{table.dtype}",)),)  # fmt: skip
    elif is_format(table.dtype):
        return "a quantised table that is not a weight"
    scratch = align(4 * table.shape[-1], 64) if packed else 0
    stage = Stage("gather", "split", _operands(body), (0,), f"rows/{count}", (), scratch)
    why = f"rows of a packed {table.dtype} matrix" if packed else "rows of a plain table"
    return Selection("gather", why, (stage,), objects, recipe="gather")


def take_pick(body: Graph) -> Selection | str:
    inner = _inner(body)
    if len(inner) != 1 or body.nodes[inner[0]].op not in ("sample_rows", "argmax"):
        return "no pick"
    logits = body.type(body.nodes[inner[0]].operands[0])
    count = math.prod(logits.shape[:-1])
    stage = Stage("sample", "split", _operands(body), (0,), f"rows/{count}", (),
                  16 * logits.shape[-1] + 4096)  # fmt: skip
    return Selection("sample", "a row at a time", (stage,), (SAMPLE,), recipe="sample")


PLAIN: Final = ("permute", "transpose", "slice", "broadcast", "contiguous", "matmul", "cast")


def take_plain(body: Graph) -> Selection | str:
    inner = _inner(body)
    if len(inner) != 1 or body.nodes[inner[0]].op not in PLAIN:
        return "no plain loop"
    node = body.nodes[inner[0]]
    lead = node.types[0].shape[0]
    stage = Stage("plain", "split", _operands(body), (0,), f"lead/{lead}")
    return Selection("plain", f"a plain loop for {node.op}", (stage,), recipe=node.op)


def take_call(body: Graph) -> Selection | str:
    inner = _inner(body)
    if len(inner) != 1 or body.nodes[inner[0]].op not in CALLS:
        return "no op of its own function"
    op = body.nodes[inner[0]].op
    if any(is_format(t.dtype) for t in call_types(body)[0]):
        return "rows of 8 bits: kv_write has them"
    outs = tuple(range(len(body.outputs)))
    stage = Stage("call", "split", _operands(body), outs, "", (),
                  CALLS[op].scratch(*call_types(body)))  # fmt: skip
    return Selection("call", CALLS[op].why, (stage,), recipe=op)


ROWS: Final = (
    KernelRow("product", "a product and its store", take_product),
    KernelRow("group", "products of one input, shared out as one range", take_group),
    KernelRow("attention", "attention over a paged cache", take_attention),
    KernelRow("rows", "row-wise ops, one pass a row", take_rows),
    KernelRow("gather", "rows of a table by index", take_gather),
    KernelRow("sample", "the next token of a row of logits", take_pick),
    KernelRow("call", "ops that have a function of their own (calls.h)", take_call),
    KernelRow("plain", "copies, views made real, small products", take_plain),
)


def select(body: Graph) -> Selection | Mapping[str, str]:
    """The first row that takes a body, with the reasons of the rows before it; or all reasons."""
    reasons: dict[str, str] = {}
    for row in ROWS:
        taken = row.take(body)
        if isinstance(taken, Selection):
            return Selection(
                taken.kernel, taken.why, taken.stages, taken.objects, taken.temps,
                tuple(reasons.items()), taken.recipe,
            )
        reasons[row.name] = taken
    return reasons


def accept(rule: str, body: Graph) -> str | None:
    """Whether the CPU has a launch for a fused body (`fuse.rule.Accept`)."""
    taken = select(body)
    return None if isinstance(taken, Selection) else "; ".join(f"{k}: {v}" for k, v in
                                                              taken.items())


