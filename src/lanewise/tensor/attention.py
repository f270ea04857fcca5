"""States and attention: caches that the caller owns, rows that say where they sit.

A query row attends positions 0..p of its sequence.  Which p, and which sequence, follows from the
rank of q and from what is given:

    q [H, D]                lengths [1]               one row, at length - 1
    q [S, H, D]             lengths [1], base         row s at base + s, seeing < length
    q [B, 1, H, D]          lengths [B], pages        a row of each sequence, at length - 1
    q [T, H, D]             lengths, query_extents    rows of sequence r at length - extent + i
    q [T, H, D]             slots, positions          each row says it itself

All forms become one op, so that they give the same bits.  K and V are states [capacity, kv heads,
head width] of f32, f16, bf16 or q8_0, capacity a multiple of `block`: a page holds that many
positions, 16, 32, or a multiple of 64; the bits do not depend on it.  Without `pages` a sequence's
positions lie in order; S sequences share the capacity out evenly.
"""

from __future__ import annotations

import re
from typing import Any

import numpy as np

from lanewise.errors import GraphError, UsageError, call_site
from lanewise.ir.ops.attention import want_cache
from lanewise.quant import caches
from lanewise.tensor.arguments import builder_of, checked
from lanewise.tensor.builder import Builder
from lanewise.tensor.handles import State, Tensor
from lanewise.tensor.ops import reshape
from lanewise.tensor.remedies import undeclared

PAGE = 64
SMALL_PAGES = (16, 32)


@checked
def scatter_rows(state: State, rows: Tensor, ids: Tensor) -> State:
    """Store row r at row ids[r] of a state [C, ...]: the next version.  id >= C writes nothing;
    of equal ids the last wins; f32 rows are rounded to a half state's dtype."""
    b = builder_of("scatter_rows", state, rows)
    b.watch(ids, state.shape[0], "an id", absent=True)
    return b.next_state("scatter_rows", state, rows, ids)[0]


@checked
def layer_state(state: State, index: int) -> State:
    """Window `index` of a state's leading axis: the same buffer and version chain."""
    return builder_of("layer_state", state).layer_state(state, index)


@checked
def read_state(state: State) -> Tensor:
    """The tensor that a version holds (a copy, made where this stands)."""
    b = builder_of("read_state", state)
    if state.dtype == "q8_0":
        b.refuse("state_layout", f"read_state: state {state.root!r} is a cache of 8 bits, in pages",
                 "from_pages(the bound buffer, layout, 'q8_0')")  # fmt: skip
        return b.poison(state)
    return b.op("contiguous", (state,), as_="read_state")


@checked
def kv_write(
    state: State, x: Tensor, *, table: Tensor, slots: Tensor, positions: Tensor, block: int = PAGE
) -> State:
    """Store row r of x f32 [R, kv heads, D] at positions[r] of sequence slots[r], by a table u32
    [S, W] of pages of `block` positions: the next version of a cache.  Of rows at one place (one
    position twice, or sequences that share a page) the last row wins, as in `scatter_rows`."""
    b = builder_of("kv_write", state, x)
    places(b, state, table, slots, positions, block)
    return b.next_state("kv_write", state, x, table, slots, positions, names=_NAMES,
                        page=block)[0]  # fmt: skip


_NAMES = {"page": "block"}
_PAGED = {**_NAMES, "table": "pages", "extents": "query_extents"}


@checked
def ragged_rows(
    lengths: Tensor, extents: Tensor, *, rows: int, reach: int
) -> tuple[Tensor, Tensor]:
    """(slots, positions) u32 [rows] of a ragged step: the extents[s] rows of sequence s, one
    sequence after the other, sit at lengths[s] - extents[s] and on; lengths clamp to ``reach``.
    For `kv_write`, `rope` and `attention`; rows without a place are 0xFFFFFFFF."""
    b = builder_of("ragged_rows", lengths, extents)
    segments(b, extents, rows, lengths, reach)
    made = b.multi("ragged_rows", (lengths, extents), results=2, rows=rows, reach=reach)
    return made[0], made[1]


@checked
def attention(
    q: Tensor, k: State, v: State, *, lengths: Tensor | None = None, pages: Tensor | None = None,
    block: int = PAGE, scale: float | str | None = None, base: str | None = None,
    query_extents: Tensor | None = None, slots: Tensor | None = None,
    positions: Tensor | None = None, window: int = 0, softcap: float = 0.0,
    sinks: Tensor | None = None,
) -> Tensor:  # fmt: skip
    """Attention of f32 queries over a cache, of the shape of q; the module tells the forms.

    ``scale``: a number, the name of a declared f32 scalar, or None: head width ** -0.5.
    ``window`` > 0: the last so many positions only; ``softcap`` > 0: c * tanh(score / c).
    ``pages``: u32 [S, W], pages of ``block`` positions.  A row without a position gives 0.
    ``sinks``: f32 [H], a logit of each head that joins the softmax and brings no value.
    """
    b = builder_of("attention", q, k)
    call = _Attention(b, q, k, v)
    if not call.sound(block):
        return b.poison(q)
    rows = call.rows(lengths, pages, base, query_extents, slots, positions)
    if rows is None:
        return b.poison(q)
    flat = call.flat()
    number = q.shape[-1] ** -0.5 if scale is None else scale
    if isinstance(number, str):
        flat = b.op("scale", (flat, b.scalar_ref("attention", number, "f32")), names={"x": "q"})
        number = 1.0
    more = () if sinks is None else (sinks,)
    out = b.op("attention", (flat, k, v, *rows, *more), names=_PAGED, scale=float(number),
               window=window, softcap=float(softcap), page=block)  # fmt: skip
    return out if out.poisoned or out.shape == q.shape else reshape(out, q.shape)


def segments(b: Builder, extents: Tensor, rows: int, lengths: Any = None, reach: int = 0) -> None:
    """What `strict` looks at in counts of rows: they fit the rows, and lengths the pages."""
    b.watch(extents, rows, "rows", whole=True)
    if lengths is not None:
        b.watch(lengths, reach + 1, "a length")
        b.watch(extents, rows, "a count", other=lengths)


def places(
    b: Builder, cache: State, table: Tensor, slots: Tensor, positions: Tensor, block: int
) -> None:
    """What `strict` looks at in rows that say where they sit."""
    if block < 1:  # refused by the op
        return
    b.watch(table, cache.shape[0] // block, "a page")
    b.watch(slots, table.shape[0], "a slot", absent=True)
    b.watch(positions, table.shape[-1] * block, "a position", absent=True)


class _Attention:
    """One call: its checks, and the rows that it makes."""

    def __init__(self, b: Builder, q: Tensor, k: State, v: State) -> None:
        self.b, self.q, self.k, self.v = b, q, k, v
        self.block = PAGE

    def refuse(self, code: str, message: str, remedy: str) -> None:
        self.b.refuse(code, f"attention: {message}", remedy)

    def sound(self, block: int) -> bool:
        """Whether q, k and v are what this can look at."""
        if self.q.poisoned or self.k.poisoned or self.v.poisoned:
            return False
        if self.q.strided:
            self.refuse("strided", f"q is a strided view {self.q.type}",
                        "pack it first: attention(contiguous(q), ...)")
            return False
        if block not in SMALL_PAGES and (block % PAGE or block < 1):
            self.refuse("attribute", f"block is {block}; a page holds 16, 32 or a multiple of 64 "
                        "positions", "BlockPool(blocks, 64) and block=64")
            return False
        try:
            want_cache("attention", "k", self.k.type, block)
        except GraphError as error:
            self.refuse(error.code.removeprefix("graph."),
                        error.message.removeprefix("attention: "), error.remedy)  # fmt: skip
            return False
        self.block = block
        return True

    def flat(self) -> Tensor:
        """q as [rows, H, D]."""
        if len(self.q.shape) == 3:
            return self.q
        return reshape(self.q, (self.q.shape[0] if len(self.q.shape) == 4 else 1,
                                *self.q.shape[-2:]))  # fmt: skip

    def rows(
        self, lengths: Tensor | None, pages: Tensor | None, base: str | None,
        extents: Tensor | None, slots: Tensor | None, positions: Tensor | None,
    ) -> tuple[Tensor, Tensor, Tensor] | None:  # fmt: skip
        """(table, slots, positions), or None after a refusal."""
        rank = len(self.q.shape)
        explicit = slots is not None or positions is not None
        if rank not in (2, 3, 4) or (rank == 4 and self.q.shape[1] != 1):
            self.refuse("rank", f"q is {self.q.type}",
                        "[H, D], [S, H, D], [T, H, D] or [B, 1, H, D]")
            return None
        if explicit:
            if slots is None or positions is None:
                self.refuse("missing_operand", "slots and positions come together",
                            "`ragged_rows` makes both")  # fmt: skip
                return None
            table = self.table(pages, 1)
            if table is None:
                return None
            places(self.b, self.k, table, slots, positions, self.block)
            return table, slots, positions
        if lengths is None:
            self.refuse("missing_operand", "lengths is missing",
                        "u32, one per sequence: how many positions hold tokens")
            return None
        if not self.words("lengths", lengths):
            return None
        if rank == 3 and extents is None:
            return self.prefill(lengths, pages, base)
        if base is not None:
            self.refuse("attribute", "base belongs to one sequence's q [S, H, D]",
                        "query_extents places the rows of several")
            return None
        return self.ragged(lengths, pages, extents)

    def words(self, name: str, x: Any) -> bool:
        """Whether an operand holds counts or ids; refused if it is not poison."""
        if not x.poisoned and x.dtype != "u32":
            made = self.b.graph_builder.node(x.ref).op
            self.refuse("dtype", f"{name} is {x.type}; its dtype must be u32",
                        undeclared("", made, f"declare {name} as u32"))  # fmt: skip
            return False
        return not x.poisoned

    def table(self, pages: Tensor | None, sequences: int) -> Tensor | None:
        """The page table [S, W]; in order if none is given."""
        if pages is None:
            blocks = self.k.shape[0] // self.block
            if blocks % sequences:
                self.refuse("shape", f"k is {self.k.type}: {blocks} pages do not share out among "
                            f"{sequences} sequences", "bind pages, or change the capacity")
                return None
            order = np.arange(blocks, dtype=np.uint32).reshape(sequences, -1)
            return self.b.constant(order, f"pages.{sequences}.{blocks}")
        if not self.words("pages", pages):
            return None
        if len(pages.shape) > 2:
            self.refuse("rank", f"pages is {pages.type}", f"[{sequences}, blocks], or [blocks] of "
                        "one sequence")  # fmt: skip
            return None
        self.b.watch(pages, self.k.shape[0] // self.block, "a page")
        return pages if len(pages.shape) == 2 else reshape(pages, (1, pages.type.size))

    def prefill(
        self, lengths: Tensor, pages: Tensor | None, base: str | None
    ) -> tuple[Tensor, Tensor, Tensor] | None:
        if base is None:
            self.refuse("missing_operand", "q [S, H, D] needs base",
                        "the name of a u32 scalar: the position of row 0; or query_extents")
            return None
        table, first = self.table(pages, 1), self.b.scalar_ref("attention", base, "u32")
        if table is None or first.poisoned:
            return None
        rows = self.q.shape[0]
        self.b.watch(lengths, table.shape[1] * self.block + 1, "a length")
        at = self.b.op("prefill_rows", (lengths, first), as_="attention", rows=rows,
                       reach=table.shape[1] * self.block)  # fmt: skip
        return table, self.b.constant(np.zeros(rows, np.uint32), f"zeros.{rows}"), at

    def ragged(
        self, lengths: Tensor, pages: Tensor | None, extents: Tensor | None
    ) -> tuple[Tensor, Tensor, Tensor] | None:
        sequences = lengths.shape[0]
        rows = self.q.shape[0] if len(self.q.shape) > 2 else 1
        table = self.table(pages, sequences)
        if table is None:
            return None
        if table.shape[0] != sequences:
            self.refuse("shape", f"pages is {table.type}, lengths is {lengths.type}: one row of "
                        "pages per sequence", f"declare pages as [{sequences}, blocks]")
            return None
        if extents is None:
            if rows != sequences:
                self.refuse("shape", f"lengths is {lengths.type}, q is {self.q.type}: one length "
                            "per row", f"declare lengths as [{rows}], or give query_extents")
                return None
            extents = self.b.constant(np.ones(rows, np.uint32), f"ones.{rows}")
        segments(self.b, extents, rows, lengths, table.shape[1] * self.block)
        made = self.b.multi("ragged_rows", (lengths, extents), as_="attention", names=_PAGED,
                            results=2, rows=rows, reach=table.shape[1] * self.block)  # fmt: skip
        return None if made[0].poisoned else (table, made[0], made[1])


def _span(layout: str) -> int:
    """Positions that lie together in a layout of pages.  Raises UsageError ``usage.layout``."""
    found = re.fullmatch(r"pages/[kv](?:/([1-9]\d{0,6}))?", str(layout))
    if found is None:
        raise _unfit(f"layout is {layout!r}", "the `layout` of a port that attention reads: "
                     "\"pages/k\" or \"pages/v\"; \"rows\" need nothing")  # fmt: skip
    return int(found[1] or PAGE)


def _whole(x: Any, span: int) -> Any:
    """An array that is pages of `span` positions."""
    if not isinstance(x, np.ndarray) or x.ndim < 3 or x.shape[-3] % span:
        shape = getattr(x, "shape", type(x).__name__)
        raise _unfit(f"a cache of {shape} is no pages of {span} positions",
                     f"an array [..., positions, heads, width], positions a multiple of {span}")
    return x


def _quantised(dtype: str) -> bool:
    """Is it the cache of 8 bits?  All others say nothing: an array has its own dtype."""
    if dtype not in ("", "q8_0", "f32", "f16", "bf16"):
        raise _unfit(f"dtype is {dtype!r}", "\"q8_0\" of a cache of 8 bits, else none")
    return dtype == "q8_0"


def _unfit(what: str, remedy: str) -> UsageError:
    return UsageError("usage.layout", what, place=call_site(), remedy=remedy)


def to_pages(value: Any, layout: str, dtype: str = "") -> np.ndarray[Any, Any]:
    """A logical state [..., P*64, H, D] as attention's buffers hold it; `layout` is the port's
    ("pages/k" or "pages/v", "pages/k/16" for pages of 16).  ``dtype="q8_0"``: f32 values are
    rounded to what a cache of 8 bits holds, uint8 [..., P*64, H, D / 32 * 34]."""
    span = _span(layout)
    if _quantised(dtype):
        if _whole(value, span).shape[-1] % 32:
            raise _unfit(f"a cache of 8 bits of {value.shape}", "a width that is a multiple of 32")
        return _q8_0_pages(*caches.encode(np.asarray(value, np.float32)), layout)
    *lead, positions, heads, d = _whole(value, span).shape
    n = len(lead) + 1
    paged = value.reshape(*lead, positions // span, span, heads, d)
    order = (1, 2, 0) if layout.startswith("pages/k") else (1, 0, 2)
    return np.ascontiguousarray(paged.transpose(*range(n), *(n + a for a in order))).reshape(
        value.shape
    )


def from_pages(raw: Any, layout: str, dtype: str = "") -> np.ndarray[Any, Any]:
    """The inverse of `to_pages`: a buffer as the logical [..., P*64, H, D], a q8_0 one as f32.
    Both raise UsageError ``usage.layout``."""
    span = _span(layout)
    if _quantised(dtype):
        if _whole(raw, span).shape[-1] % 34 or raw.dtype != np.uint8:
            raise _unfit(f"a cache of 8 bits is no {raw.dtype} {raw.shape}", "the buffer that was "
                         "bound: uint8 [..., positions, heads, width / 32 * 34]")  # fmt: skip
        return _q8_0_values(raw, layout)
    *lead, positions, heads, d = _whole(raw, span).shape
    n = len(lead) + 1
    keys = layout.startswith("pages/k")
    inner, order = ((heads, d, span), (2, 0, 1)) if keys else ((heads, span, d), (1, 0, 2))
    paged = raw.reshape(*lead, positions // span, *inner)
    return np.ascontiguousarray(paged.transpose(*range(n), *(n + a for a in order))).reshape(
        raw.shape
    )


def _q8_0_pages(codes: Any, scales: Any, layout: str) -> np.ndarray[Any, Any]:
    """Each part of a head: its codes, then its scales."""
    *lead, positions, heads, d = codes.shape
    parts = -1, _span(layout)
    planes = [to_pages(x, layout).reshape(parts[0], parts[1] * x.shape[-1]).view(np.uint8)
              for x in (codes, scales)]  # fmt: skip
    return np.concatenate(planes, 1).reshape(*lead, positions, heads, d // 32 * 34)


def _q8_0_values(raw: Any, layout: str) -> np.ndarray[Any, Any]:
    *lead, positions, heads, width = raw.shape
    d, span = width // 34 * 32, _span(layout)
    parts = raw.reshape(-1, span * width)
    codes = np.ascontiguousarray(parts[:, : span * d]).view(np.int8)
    scales = np.ascontiguousarray(parts[:, span * d :]).view(np.float16)
    shape = (*lead, positions, heads)
    return caches.decode(from_pages(codes.reshape(*shape, d), layout),
                         from_pages(scales.reshape(*shape, d // 32), layout))  # fmt: skip


def cache_pages(values: Any, layout: str) -> np.ndarray[Any, Any]:
    """What a q8_0 cache holds, as bytes: unlike `to_pages` it rounds nothing a second time."""
    return _q8_0_pages(*caches.recode(values), layout)
