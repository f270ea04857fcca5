"""Sizes that the planner and the C++ headers must agree on (tested against the headers)."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final

from lanewise.ir.graph import Graph, Type
from lanewise.quant.format import FORMATS

if TYPE_CHECKING:
    from lanewise.kernels.bodies import Rows

ITEMSIZE: Final = {
    "f32": 4, "u32": 4, "i32": 4, "f16": 2, "bf16": 2, "f8_e4m3": 1, "f8_e5m2": 1, "f64": 8,
    "i8": 1, "u8": 1,
}  # fmt: skip
RECIPES: Final = {"int8x2": 64, "int8": 32}  # bytes of codes per group of 32
PANEL: Final = 16  # output rows of a packed panel
# bytes of a packed block where they differ from the checkpoint's
PACKED_BLOCK: Final = {"q4_k": 148, "q5_k": 180, "q6_k": 212}


def align(n: int, to: int) -> int:
    return -(-n // to) * to


def act_bytes(recipe: str, k: int) -> int:
    """Bytes of one quantised activation row (`lw_act_bytes_<recipe>`): byte words, 16-bit words,
    and per group of 32 a scale, the scaled sum, four integer sums and, of two words, three sums
    of products."""
    groups = k // 32
    sums = 24 + (12 if recipe == "int8x2" else 0)
    return align(align(groups * RECIPES[recipe], 64) + groups * (64 + sums), 64)


def value_bytes(type: Type) -> int:
    """Bytes of a value in the arena or in a caller's buffer (not of a packed weight)."""
    if type.dtype in RECIPES:
        rows = type.size // type.shape[-1]
        return rows * act_bytes(type.dtype, type.shape[-1])
    if type.dtype in FORMATS:
        fmt = FORMATS[type.dtype]
        return type.size // fmt.block * fmt.nbytes
    return type.size * ITEMSIZE[type.dtype]


def packed_bytes(type: Type) -> int:
    """Bytes of a packed matrix [N, K] (`lw_packed_bytes_<fmt>`): rows in panels of 16, per block
    what its format takes (k-quants keep their 6-bit scales as bytes), in whole lines of 64; of
    matrices [E, N, K], one after the other."""
    *lead, n, k = type.shape
    fmt = FORMATS.get(type.dtype)
    if fmt is None or not fmt.quantised:
        panel = align(PANEL * k * ITEMSIZE[type.dtype], 64)
    else:
        panel = PANEL * (k // fmt.block) * PACKED_BLOCK.get(type.dtype, fmt.nbytes)
    each = align(-(-n // PANEL) * panel, 64)
    return math.prod(lead) * each


def product_scratch(k: int, granule: int) -> int:
    """Scratch of one thread in a product (at least `lw_matmul_scratch`)."""
    return 1 << 20


def attention_scratch(d: int, group: int) -> int:
    """Scratch of one thread in attention (at least `lw_attention_scratch_<kv>`)."""
    return 1 << 20


def rows_scratch(body: Graph, rows: Rows) -> int:
    """Scratch of one thread in a row-wise launch: one row for each value of the body."""
    return align(2 * len(body.nodes) * align(rows.width * 4, 64) + 64, 64)
