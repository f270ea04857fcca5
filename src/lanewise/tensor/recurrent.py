"""Layers of hybrid and sparse models: recurrences over states, and products by expert."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from lanewise.dtypes import extension
from lanewise.errors import UsageError, call_site
from lanewise.ir.ops.rules import is_format
from lanewise.ir.verify import MAX_SIZE
from lanewise.tensor.arguments import builder_of, checked
from lanewise.tensor.builder import Builder
from lanewise.tensor.handles import Int4, Quantized, State, Tensor
from lanewise.tensor.ops import declared_weight

GROUP = 128


@checked
def linear_attention(
    q: Tensor, k: Tensor, v: Tensor, state: State, *, alpha: Tensor, beta: Tensor,
    query_extents: Tensor, decay: str = "after", form: str = "recurrent",
) -> tuple[Tensor, State]:  # fmt: skip
    """A gated delta recurrence: (output f32 [T, H, V], next state).

    Per token and head S <- alpha S + beta (v - u) k^T, output S q after it; u = S k of the
    undecayed S (``decay="after"``), or alpha S k (``"before"``, as published gated-delta
    checkpoints want).  state f32 [slots, H, V, K]; q, k [T, H, K]; v [T, H, V]; gates per token
    [T], per head [T, H], or (alpha) per channel [T, H, K]; query_extents u32 [slots]: rows of each
    sequence.  A count of 0 leaves its slot untouched.

    ``form="chunked"``: the same by another recipe, quicker for prompts, of other bits: 16 rows at
    a time, counted from each sequence's first row of the submission.
    """
    b = builder_of("linear_attention", q, k, v, state)
    op = {"recurrent": "linear_attention", "chunked": "linear_attention_chunked"}.get(form)
    if op is None:
        b.refuse("attribute", f"linear_attention: form is {form!r}", "'recurrent' or 'chunked'")
        return b.poison(v), state
    b.watch(query_extents, q.shape[0], "rows", whole=True)
    made, rest = b.next_state(
        op, state, q, k, v, alpha, beta, query_extents, decay=decay, as_="linear_attention",
        names=_COUNTS,
    )  # fmt: skip
    return rest[0], made


@checked
def conv_ring(
    x: Tensor, taps: Tensor, state: State, *, query_extents: Tensor
) -> tuple[Tensor, State]:
    """Depthwise causal convolution over the last L inputs of each sequence: (y f32 [T, C], next
    state).  taps f32 [L, C], the oldest first; state f32 [slots, L-1, C]: the last inputs."""
    b = builder_of("conv_ring", x, taps, state)
    b.watch(query_extents, x.shape[0], "rows", whole=True)
    made, rest = b.next_state("conv_ring", state, x, taps, query_extents, names=_COUNTS)
    return rest[0], made


_COUNTS = {"extents": "query_extents"}


@checked
def grouped_matmul(x: Tensor, w: Tensor | Quantized, counts: Tensor) -> Tensor:
    """x f32 [T, K], sorted by expert, times w of each row's expert: f32 [T, N].  counts u32 [E];
    rows past their sum are exactly 0 and read no weight.

    w: f32, f16 or bf16 [E, K, N]; or a declared weight of a checkpoint's format, or `quantized`,
    [E, N, K]: codes lie along K, and that is `grouped_linear`.  (Not `int4`: its groups of 128
    run across the experts.)
    """
    return _grouped("grouped_matmul", x, w, counts)


@checked
def grouped_matvec(x: Tensor, w: Tensor | Quantized, counts: Tensor) -> Tensor:
    """`grouped_matmul`: one kernel serves few rows and many, with the same bits."""
    return _grouped("grouped_matvec", x, w, counts)


@checked
def grouped_linear(x: Tensor, w: Tensor | Quantized, counts: Tensor) -> Tensor:
    """x f32 [T, K], sorted by expert, times the rows of each expert's matrix of a declared weight
    w [E, N, K] (any float dtype or format, as checkpoints hold experts): f32 [T, N].

    A row has the bits of `linear` with its expert's matrix alone.  counts u32 [E]: rows of each
    expert; rows past their sum are exactly 0 and read no weight, counts beyond T are cut.
    """
    w = w.weight if isinstance(w, Quantized) else w
    b = builder_of("grouped_linear", x, w, counts)
    if w is not None and not declared_weight(b, "grouped_linear", w):
        return b.poison(x)
    b.watch(counts, x.shape[0], "rows", whole=True)
    return b.op("grouped_linear", (x, w, counts))


def _grouped(name: str, x: Tensor, w: Any, counts: Tensor) -> Tensor:
    w = w.weight if isinstance(w, Quantized) else w
    b = builder_of(name, x, w, counts)
    b.watch(counts, x.shape[0], "rows", whole=True)
    packed = isinstance(w, Tensor) and is_format(w.dtype)
    return b.op("grouped_linear" if packed else "grouped_matmul", (x, w, counts), as_=name)


@checked
def top_k(x: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """(values, ids u32) of the k largest of the last axis, largest first; ties to the low id."""
    values, ids = builder_of("top_k", x).multi("top_k", (x,), results=2, k=k)
    return values, ids


@checked
def route(ids: Tensor, experts: int) -> tuple[Tensor, Tensor, Tensor]:
    """(counts u32 [E], tokens u32 [T*k], permutation u32 [T*k]) of ids u32 [T, k]: gather x by
    tokens, multiply by `grouped_matmul` with counts, bring back by `combine` with permutation."""
    b = builder_of("route", ids)
    b.watch(ids, experts, "an expert", absent=True)
    made = b.multi("route", (ids,), results=3, experts=experts)
    return made[0], made[1], made[2]


@checked
def combine(rows: Tensor, weights: Tensor, permutation: Tensor) -> Tensor:
    """Per token the sum of weights f32 [T, k] times its sorted rows f32 [T*k, N], ascending by
    expert: f32 [T, N]."""
    b = builder_of("combine", rows, weights, permutation)
    return b.op("combine", (rows, weights, permutation))


# -- quantised matrices of the caller's own --------------------------------------------------------


@checked
def quantized(b: Builder, name: str, shape: Sequence[int]) -> Quantized:
    """Declare a weight [N, K] (of experts: [E, N, K]) of int8 codes with an f16 scale per 32 of a
    row (format q8_0); `quantize_int8` makes what is bound."""
    return Quantized(b.weight(name, "q8_0", shape))


def quantize_int8(w: Any) -> np.ndarray[Any, Any]:
    """f32 [N, K] or [E, N, K] as rows of q8_0 bytes: scale = max|w| / 127 rounded to f16 and read
    back, codes to nearest even, clamped to -127..127; a block of zeros has scale 0.

    An element is off by at most half a scale, plus what f16 rounding of the scale costs at the
    clamp.  Raises UsageError ``usage.weights`` for a K that is no multiple of 32 and for numbers
    that f16 scales cannot hold.
    """
    *lead, k = _numbers("quantize_int8", w).shape
    if k % 32 or not lead:
        raise _unfit(f"quantize_int8: w is {list(np.shape(w))}", "[N, K] with K a multiple of 32")
    blocks = np.asarray(w, np.float32).reshape(-1, k // 32, 32)
    with np.errstate(over="ignore"):
        scale = (np.abs(blocks).max(-1) / np.float32(127)).astype(np.float16)
    if not np.isfinite(scale.astype(np.float32)).all():
        raise _unfit("quantize_int8: a number is beyond 8.3e6, which f16 scales cannot hold",
                     "scale the matrix down, and its products up")  # fmt: skip
    back = scale.astype(np.float32)[..., None]
    codes = np.rint(np.divide(blocks, back, out=np.zeros_like(blocks), where=back > 0))
    out = np.zeros((len(blocks), k // 32, 34), np.uint8)
    out[..., :2] = scale[..., None].view(np.uint8)
    out[..., 2:] = np.clip(codes, -127, 127).astype(np.int8).view(np.uint8)
    return out.reshape(*lead, -1)


def _numbers(op: str, w: Any) -> np.ndarray[Any, Any]:
    """An array of finite real numbers."""
    try:
        found = np.asarray(w)
    except ValueError:
        raise _unfit(f"{op}: w has rows of several lengths", "an array of finite floats") from None
    kind = found.dtype.kind in "fiu" or extension(found.dtype)
    if not kind or not found.size or not np.isfinite(found.astype(np.float64)).all():
        raise _unfit(f"{op}: w holds what is no finite number", "an array of finite floats")
    return found


def _unfit(what: str, remedy: str) -> UsageError:
    return UsageError("usage.weights", what, place=call_site(), remedy=remedy)


@checked
def int4(b: Builder, name: str, k: int, n: int) -> Int4:
    """Declare a matrix [k, n] of 4-bit codes: weights `name.codes`, `.scales` and `.zeros`."""
    if k < 1 or n < 1 or k * n > MAX_SIZE:
        b.refuse("shape", f"int4: {name!r} is [{k},{n}]", "positive integers; up to 2^40 codes")
        none = b.poison()
        return Int4(none, none, none, 0)
    weights = k * n
    groups = -(-weights // GROUP)
    return Int4(
        b.weight(f"{name}.codes", "u32", (-(-weights // 8),)),
        b.weight(f"{name}.scales", "f16", (groups,)), b.weight(f"{name}.zeros", "f16", (groups,)),
        weights,
    )  # fmt: skip


@checked
def int4_matmul(x: Tensor, w: Int4) -> Tensor:
    """x f32 [M, K] times a matrix [K, N] of 4-bit codes: f32 [M, N]."""
    b = builder_of("int4_matmul", x)
    if x.poisoned:
        return b.poison(x)
    n, rest = divmod(w.weights, x.shape[-1])
    if rest or not n:
        b.refuse("shape", f"int4_matmul: x is {x.type}, w has {w.weights} weights: no whole "
                 "number of columns", "declare w by int4(b, name, "
                 f"{x.shape[-1]}, columns)")  # fmt: skip
        return b.poison(x)
    return b.op("int4_matmul", (x, w.codes, w.scales, w.zeros), n=n)


@checked
def int4_matvec(x: Tensor, w: Int4) -> Tensor:
    """`int4_matmul`: one kernel serves one row and many, with the same bits."""
    return int4_matmul(x, w)


def quantize_int4(w: Any) -> dict[str, np.ndarray[Any, Any]]:
    """f32 [K, N] as "codes", "scales" and "zeros" (see `Int4`), each element within a 30th of
    its group's range (plus rounding of f32), where f16 planes can say so.

    Raises UsageError ``usage.weights`` for what are no finite numbers.

    A zero far from 0 is coarse in f16: the pair (scale, zero) is then searched for, since many
    scales fit within the bound.  A constant group has scale 0 and its number as the zero.
    """
    flat = np.asarray(_numbers("quantize_int4", w), np.float32).reshape(-1)
    groups = -(-flat.size // GROUP)
    scales, zeros = np.zeros(groups, np.float16), np.zeros(groups, np.float16)
    codes = np.zeros(-(-flat.size // 8) * 8, np.uint32)
    for g in range(groups):
        part = flat[g * GROUP : (g + 1) * GROUP]
        scales[g], zeros[g] = _fit(part)
        s, z = np.float32(scales[g]), np.float32(zeros[g])
        if s > 0:
            codes[g * GROUP : g * GROUP + part.size] = np.clip(np.rint(part / s + z), 0, 15)
    shifts = np.arange(0, 32, 4, dtype=np.uint32)
    words = (codes.reshape(-1, 8) << shifts).sum(1).astype(np.uint32)
    return {"codes": words, "scales": scales, "zeros": zeros}


def _fit(part: np.ndarray[Any, Any]) -> tuple[np.float16, np.float16]:
    """(scale, zero) of a group: the best of the scales near range / 15."""
    low, high = float(part.min()), float(part.max())
    if low == high:
        return np.float16(0), np.float16(low)
    # beyond 60000 a zero has no f16: a coarser scale is all that planes of f16 can do
    first = np.float16(max((high - low) / 15, max(-low, high) / 60000))
    step = np.arange(-160, 161)
    bits = np.clip(first.view(np.uint16).astype(np.int64) + step, 1, 0x7BFF).astype(np.uint16)
    best, chosen = np.inf, (first, np.float16(0))
    for s in bits.view(np.float16)[np.argsort(np.abs(step), kind="stable")]:
        with np.errstate(over="ignore"):
            middle = np.float16(7.5 - (low + high) / 2 / float(s))
        if not np.isfinite(middle):
            continue
        near = middle.view(np.uint16) + np.arange(-1, 2).astype(np.uint16)
        for z in (middle, *near.view(np.float16)):
            code = np.clip(np.rint(part / np.float32(s) + np.float32(z)), 0, 15)
            error = float(np.abs((code - np.float32(z)) * np.float32(s) - part).max())
            if error < best:
                best, chosen = error, (s, z)
        if best <= (high - low) / 30 * 1.001:
            break
    return chosen


__all__ = [
    "combine", "conv_ring", "grouped_linear", "grouped_matmul", "grouped_matvec", "int4",
    "int4_matmul",
    "int4_matvec", "linear_attention", "quantize_int4", "quantize_int8", "quantized",
    "route", "top_k",
]  # fmt: skip
