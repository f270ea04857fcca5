"""One sound call of every function that records: what walks over arguments and options begins
with.  A new function of `lanewise.tensor` without a call here fails the tests that walk."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from lanewise import tensor as t

Call = tuple[tuple[Any, ...], dict[str, Any]]

# functions of arrays: they record nothing
OF_ARRAYS = (
    "from_pages", "quantize_int4", "quantize_int8", "rope_factors", "rope_table", "to_pages",
)  # fmt: skip
ONE = (
    "abs", "argmax", "contiguous", "erf", "exp", "gelu", "gelu_erf", "log", "neg", "reduce_max",
    "reduce_sum", "relu", "rsqrt", "sigmoid", "silu", "sqrt", "square", "tanh",
)  # fmt: skip
TWO = ("add", "div", "maximum", "minimum", "mul", "sub", "swiglu")


def recording_functions() -> dict[str, Callable[..., Any]]:
    """Every public function of the layer that records an op."""
    found = {n: getattr(t, n) for n in t.__all__ if inspect.isfunction(getattr(t, n))}
    return {n: f for n, f in found.items() if n not in OF_ARRAYS}


def calls(b: t.Builder) -> dict[str, Call]:
    """Function -> arguments of a sound call, on fresh ports of a builder."""
    for name in ("f", "repetition", "presence", "frequency", "inverse_temperature"):
        b.scalar(name)
    b.scalar("n", "u32")

    def f(name: str, *shape: int) -> t.Tensor:
        return b.input(name, t.f32, shape)

    def u(name: str, *shape: int) -> t.Tensor:
        return b.input(name, t.u32, shape)

    def s(name: str, *shape: int, dtype: Any = t.f32) -> t.State:
        return b.state(name, dtype, shape)

    x, heads, ids = f("x", 4, 8), f("heads", 4, 2, 8), u("ids", 4)
    gain, w = b.weight("gain", t.f32, (8,)), b.weight("w", t.f32, (5, 8))
    k, v, one, draws = s("k", 64, 2, 8), s("v", 64, 2, 8), u("one", 1), f("draws", 4)
    q8, i4 = t.quantized(b, "q8", (5, 32)), t.int4(b, "i4", 8, 16)
    pages = u("pages", 1, 1)
    policy = t.SamplingOptions(temperature=1.0, presence=1.0)
    experts = (x, b.weight("experts", t.f32, (3, 8, 5)), u("counts", 3))
    first: dict[str, Call] = {
        **{name: ((x,), {}) for name in ONE},
        **{name: ((x, x), {}) for name in TWO},
        "attention": ((heads, k, v), {
            "lengths": one, "pages": pages, "base": "n", "sinks": f("sinks", 2)}),
        "broadcast": ((x, (2, 4, 8)), {}),
        "cast": ((x, "f16"), {}),
        "combine": ((f("sorted", 8, 5), f("shares", 4, 2), u("order", 8)), {}),
        "conv_ring": ((x, b.weight("taps", t.f32, (3, 8)), s("ring", 1, 2, 8)),
                      {"query_extents": one}),
        "declare_sampling_scalars": ((b, policy, "again."), {}),
        "gather_rows": ((w, ids), {}),
        "grouped_linear": ((x, b.weight("expert.rows", t.f32, (3, 5, 8)), experts[2]), {}),
        "grouped_matmul": (experts, {}),
        "grouped_matvec": (experts, {}),
        "int4": ((b, "another", 8, 16), {}),
        "int4_matmul": ((x, i4), {}),
        "int4_matvec": ((x, i4), {}),
        "kv_write": ((k, heads), {"table": pages, "slots": ids, "positions": ids}),
        "layer_norm": ((x, gain, gain), {"eps": 1e-5}),
        "layer_state": ((s("layers", 6, 8), 1), {}),
        "linear": ((x, w, b.weight("bias", t.f32, (5,))), {}),
        "linear_attention": ((heads, heads, heads, s("memory", 1, 2, 8, 8)), {
            "alpha": draws, "beta": draws, "query_extents": one}),
        "matmul": ((x, b.weight("m", t.f32, (8, 5))), {}),
    }  # fmt: skip
    return first | _rest(b, x, heads, ids, draws, gain, q8, policy)


def _rest(
    b: t.Builder, x: t.Tensor, heads: t.Tensor, ids: t.Tensor, draws: t.Tensor, gain: t.Tensor,
    q8: t.Quantized, policy: t.SamplingOptions,
) -> dict[str, Call]:  # fmt: skip
    def s(name: str, *shape: int, dtype: Any = t.f32) -> t.State:
        return b.state(name, dtype, shape)

    return {
        "min_p_mask": ((x, 0.1), {}),
        "permute": ((x, 1, 0), {}),
        "quant_gather_rows": ((q8, ids), {}),
        "quant_matmul": ((b.input("wide", t.f32, (4, 32)), q8), {}),
        "quantized": ((b, "more", (5, 32)), {}),
        "ragged_rows": ((b.input("lengths", t.u32, (1,)), b.input("extents", t.u32, (1,))),
                        {"rows": 4, "reach": 64}),
        "read_state": ((s("read", 6, 8),), {}),
        "reshape": ((x, (32,)), {}),
        "rms_norm": ((x, gain, 1e-5), {}),
        "rope": ((heads, 8, "f", ids), {"factors": b.weight("factors", t.f32, (4,))}),
        "route": ((b.input("chosen", t.u32, (4, 2)), 3), {}),
        "sample": ((x, policy), {"draws": draws, "history": s("history", 4, dtype=t.u32),
                                 "counts": s("said", 8, dtype=t.u32)}),
        "sample_categorical": ((x, draws), {}),
        "sample_rows": ((x, draws, ids, draws, draws, draws), {}),
        "scale": ((x, "f"), {}),
        "scatter_rows": ((s("rows", 6, 8), x, ids), {}),
        "slice": ((x, 0, 1, 2), {}),
        "softmax": ((x,), {"scale_name": "f", "mask": x}),
        "top_k": ((x, 2), {}),
        "top_k_mask": ((x, 2), {}),
        "top_p_mask": ((x, 0.5), {}),
        "transpose": ((x, 0, 1), {}),
    }  # fmt: skip
