"""The tensor layer: a step written by hand, compiled once, submitted as often as you like.

    import numpy as np
    from lanewise import tensor as t

    rt = t.Runtime("cpu")
    b = rt.builder("mlp")
    x, w = b.input("x", t.f32, (4, 8)), b.weight("w", t.f32, (4, 8))
    b.output("y", t.silu(x) * w)
    with b.compile() as plan:
        plan.submit(x=xs, w=ws, y=out).wait()     # arrays by name, used where they are

Laws: an op that cannot be recorded is collected, with the line of your code, and `compile` raises
all of them together; a plan owns its intermediates, you own every buffer that you named; the
numbers of a row do not depend on the rows beside it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from lanewise.dtypes import DTYPES
from lanewise.runtime.stream import Stream
from lanewise.settings import MIN_TEMPERATURE
from lanewise.tensor.attention import (
    attention,
    from_pages,
    kv_write,
    layer_state,
    ragged_rows,
    read_state,
    scatter_rows,
    to_pages,
)
from lanewise.tensor.buffers import Bindings, Buffer
from lanewise.tensor.builder import Builder
from lanewise.tensor.cache import BlockPool, Buckets, PlanCache
from lanewise.tensor.frequencies import rope_factors, rope_table
from lanewise.tensor.handles import (
    Int4,
    KernelSelection,
    PortDesc,
    Quantized,
    ScalarDesc,
    Shape,
    State,
    Tensor,
    ValueDesc,
)
from lanewise.tensor.identity import Identity
from lanewise.tensor.ops import (
    abs,
    add,
    broadcast,
    cast,
    contiguous,
    div,
    erf,
    exp,
    gather_rows,
    gelu,
    gelu_erf,
    layer_norm,
    linear,
    log,
    matmul,
    maximum,
    minimum,
    mul,
    neg,
    permute,
    quant_gather_rows,
    quant_matmul,
    reduce_max,
    reduce_sum,
    relu,
    reshape,
    rms_norm,
    rope,
    rsqrt,
    scale,
    sigmoid,
    silu,
    slice,
    softmax,
    sqrt,
    square,
    sub,
    swiglu,
    tanh,
    transpose,
)
from lanewise.tensor.plan import Fence, Plan
from lanewise.tensor.recurrent import (
    combine,
    conv_ring,
    grouped_linear,
    grouped_matmul,
    grouped_matvec,
    int4,
    int4_matmul,
    int4_matvec,
    linear_attention,
    quantize_int4,
    quantize_int8,
    quantized,
    route,
    top_k,
)
from lanewise.tensor.runtime import Runtime
from lanewise.tensor.sampling import (
    TOP_MAX_ROUNDS,
    SamplingOptions,
    argmax,
    declare_sampling_scalars,
    min_p_mask,
    sample,
    sample_categorical,
    sample_rows,
    top_k_mask,
    top_p_mask,
)

f32, f16, bf16 = DTYPES["f32"], DTYPES["f16"], DTYPES["bf16"]
f8_e4m3, f8_e5m2 = DTYPES["f8_e4m3"], DTYPES["f8_e5m2"]
u32, i32 = DTYPES["u32"], DTYPES["i32"]

__all__ = [  # noqa: RUF022 (in the order of `sorted`: f16 before f8)
    "MIN_TEMPERATURE", "TOP_MAX_ROUNDS", "Bindings", "BlockPool", "Buckets", "Buffer", "Builder",
    "Fence", "Identity", "Int4", "KernelSelection", "Plan", "PlanCache", "PortDesc", "Quantized",
    "Runtime", "SamplingOptions", "ScalarDesc", "Shape", "State", "Stream", "Tensor",
    "ValueDesc", "abs", "add", "argmax", "attention", "bf16", "broadcast", "cast", "combine",
    "contiguous", "conv_ring", "declare_sampling_scalars", "div", "erf", "exp", "f16", "f32",
    "f8_e4m3", "f8_e5m2", "from_pages", "gather_rows", "gelu", "gelu_erf", "grouped_linear",
    "grouped_matmul", "grouped_matvec", "i32", "int4", "int4_matmul", "int4_matvec", "kv_write",
    "layer_norm", "layer_state", "linear", "linear_attention", "log", "matmul", "maximum",
    "min_p_mask", "minimum", "mul", "neg", "permute", "quant_gather_rows", "quant_matmul",
    "quantize_int4", "quantize_int8", "quantized", "ragged_rows", "read_state", "reduce_max",
    "reduce_sum", "relu", "reshape", "rms_norm", "rope", "rope_factors", "rope_table", "route",
    "rsqrt", "sample", "sample_categorical", "sample_rows", "scale", "scatter_rows", "sigmoid",
    "silu", "slice", "softmax", "sqrt", "square", "sub", "swiglu", "tanh", "to_pages", "top_k",
    "top_k_mask", "top_p_mask", "transpose", "u32",
]  # fmt: skip


def __dir__() -> list[str]:
    return list(__all__)


if not TYPE_CHECKING:

    def __getattr__(name: str) -> object:
        from lanewise.tensor.habits import instead, written

        known = "" if name.startswith("_") else instead(name)
        more = f"; {written(known)}" if known else ""
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}{more}")
