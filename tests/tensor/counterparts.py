"""Every name of the seed's page and what takes its place here: the source of
docs/tensor-counterparts.md.

A cell in backquotes is a name of `lanewise.tensor` (checked to exist), or an argument of one:
`attention(lengths=)`.  Anything else is a sentence.  `python -m tests.tensor.counterparts` writes
the page.
"""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "tensor-counterparts.md"
SEED = ROOT / "tests" / "seed_names" / "tensor.txt"

_OPS = """Add add, Argmax argmax, Broadcast broadcast, Cast cast, Contiguous contiguous,
GatherRows gather_rows, GroupedMatMul grouped_matmul, GroupedMatVec grouped_matvec,
Int4MatMul int4_matmul, Int4MatVec int4_matvec, Linear linear, MatMul matmul, Mul mul,
Permute permute, QuantGatherRows quant_gather_rows, QuantMatMul quant_matmul, RMSNorm rms_norm,
ReadState read_state, Reshape reshape, RoPE rope, Sample sample,
SampleCategorical sample_categorical, Scale scale, ScatterRows scatter_rows, SiLU silu,
Slice slice, Softmax softmax, SwiGLU swiglu, TopKMask top_k_mask, TopPMask top_p_mask,
Transpose transpose, LinearAttention linear_attention, Attention attention,
LayerState layer_state"""

TABLE: dict[str, str] = {
    "MinTemperature": "`MIN_TEMPERATURE`",
    "TopMaxRounds": "`TOP_MAX_ROUNDS`: infinity, since k goes up to the row's width",
    "DeclareSamplingScalars": "`declare_sampling_scalars`",
    "Output": "`Builder.output`",
    "Scalar": "`Builder.scalar`",
    "Input": "`Builder.input`",
    "Weight": "`Builder.weight`",
    "NewState": "`Builder.state`",
    **{f"{a}": f"`{b}`" for a, b in (pair.split() for pair in _OPS.replace("\n", " ").split(", "))},
    "AttentionOptions": "the keyword arguments of `attention`",
    "AttentionOptions.Lengths": "`attention(lengths=)`",
    "AttentionOptions.Pages": "`attention(pages=)`",
    "AttentionOptions.Block": "`attention(block=)`: 16, 32 or a multiple of 64 positions",
    "AttentionOptions.ScaleName": "`attention(scale=)`: a scalar's name, or a number",
    "AttentionOptions.BaseName": "`attention(base=)`",
    "AttentionOptions.QueryExtents": "`attention(query_extents=)`",
    "Bindings": "`Bindings`, any mapping, or keyword arguments, of `Plan.submit`",
    "Bindings.Buffers": "buffers by name, in the same mapping of `Plan.submit`",
    "Bindings.Scalars": "numbers by name, in the same mapping of `Plan.submit`",
    "BlockPool": "`BlockPool`",
    "NewBlockPool": "`BlockPool`",
    "BlockPool.Grow": "`BlockPool.grow`",
    "BlockPool.Free": "`BlockPool.free`",
    "Buckets": "`Buckets`",
    "NewBuckets": "`Buckets`",
    "Buckets.For": "`Buckets.for_`",
    "Builder": "`Builder`",
    "Builder.Compile": "`Builder.compile`",
    "Builder.Err": "`Builder.errors`",
    "Builder.Identity": "`Builder.identity`",
    "CompileOptions": "the keyword arguments of `Builder.compile`",
    "CompileOptions.Label": "`Runtime.compile(label=)`",
    "DType": "`f32`, `f16`, `bf16`, `f8_e4m3`, `f8_e5m2`, `u32`, `i32`; formats: text (\"q4_1\")",
    "Identity": "`Identity`",
    "Int4": "`Int4`",
    "Int4.Codes": "`Int4.codes`",
    "Int4.Scales": "`Int4.scales`",
    "Int4.Zeros": "`Int4.zeros`",
    "Int4.Weights": "`Int4.weights`",
    "KernelSelection": "`KernelSelection`",
    "LinearOptions": "the keyword arguments of `linear_attention`",
    "LinearOptions.Alpha": "`linear_attention(alpha=)`",
    "LinearOptions.Beta": "`linear_attention(beta=)`",
    "LinearOptions.QueryExtents": "`linear_attention(query_extents=)`",
    "Plan": "`Plan`",
    "Plan.Memory": "`Plan.memory`",
    "Plan.Ports": "`Plan.ports`",
    "Plan.Scalars": "`Plan.scalars`",
    "Plan.Selections": "`Plan.selections`",
    "Plan.Submit": "`Plan.submit`",
    "PlanCache": "`PlanCache`",
    "NewPlanCache": "`PlanCache`",
    "PlanCache.Close": "`PlanCache.close`",
    "PlanCache.Compile": "`PlanCache.compile`",
    "PortDesc": "`PortDesc`",
    "PortKind": "`PortDesc.kind`, a string",
    "PortInput": "\"input\"",
    "PortWeight": "\"weight\"",
    "PortState": "\"state\"",
    "PortOutput": "\"output\"",
    "Quantized": "`Quantized`; `quantized` declares one",
    "Quantized.Quants": "codes and scales are one weight of format q8_0: `Quantized.weight`",
    "Quantized.Scales": "codes and scales are one weight of format q8_0: `Quantized.weight`",
    "Runtime": "`Runtime`",
    "NewRuntime": "`Runtime`",
    "Runtime.Close": "`Runtime.close`",
    "Runtime.NewBuilder": "`Runtime.builder`",
    "SamplingOptions": "`SamplingOptions`",
    **{f"SamplingOptions.{a}": f"`SamplingOptions.{b}`" for a, b in (
        ("Temperature", "temperature"), ("TopK", "top_k"), ("TopP", "top_p"),
        ("Repetition", "repetition"), ("Presence", "presence"), ("Frequency", "frequency"),
        ("Greedy", "greedy"), ("Penalised", "penalised"), ("Scalars", "scalars"),
        ("Validate", "validate"))},
    "ScalarDesc": "`ScalarDesc`",
    "ScalarDesc.Name": "`ScalarDesc.name`",
    "ScalarDesc.Kind": "`ScalarDesc.kind`",
    "ScalarKind": "`ScalarDesc.kind`, a string",
    "ScalarKind.String": "a kind is its string",
    "ScalarU32": "\"u32\"",
    "ScalarF32": "\"f32\"",
    "ScalarValue": "a Python or NumPy number, checked against the scalar's kind",
    "ScalarValue.Kind": "the kind is the declaration's: `ScalarDesc.kind`",
    "ScalarValue.U32": "an integer from 0 to 2^32 - 1",
    "ScalarValue.F32": "a float or an integer",
    "ScalarValue.String": "str of the number",
    "Shape": "`Shape`, a tuple of integers",
    "SoftmaxOptions": "the arguments of `softmax`",
    "SoftmaxOptions.Axis": "`softmax(axis=)`: only the last axis",
    "State": "`State`",
    "StateDesc": "the arguments of `Builder.state`",
    "StateDesc.Name": "`Builder.state(name=)`",
    "StateDesc.DType": "`Builder.state(dtype=)`",
    "StateDesc.Shape": "`Builder.state(shape=)`",
    "Stream": "`Stream`",
    "Stream.Seed": "`Stream.seed`",
    "Stream.Draw": "`Stream.draw`",
    "Derive": "`Stream.derive`",
    "Tensor": "`Tensor`",
    "ValueDesc": "`ValueDesc`, or the arguments of `Builder.input`",
    "ValueDesc.Name": "`ValueDesc.name`",
    "ValueDesc.DType": "`ValueDesc.dtype`",
    "ValueDesc.Shape": "`ValueDesc.shape`",
}  # fmt: skip


def names_in(cell: str) -> list[str]:
    """The names of ours that a cell mentions."""
    return re.findall(r"`([^`]+)`", cell)


def page() -> str:
    """The document."""
    rows = [f"| {seed} | {ours} |" for seed, ours in sorted(TABLE.items())]
    return "\n".join([
        "# The seed's names and ours", "",
        "`lanewise.tensor` follows a Go package of the same idea. Names become snake_case, option",
        "records become keyword arguments, and a thing that Python has already (a mapping, a",
        "number, a string) is used as it is. Written by `python -m tests.tensor.counterparts`.",
        "", "| the seed | here |", "|---|---|", *rows, "",
    ])  # fmt: skip


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
