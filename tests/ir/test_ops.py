"""Every registered op: its samples run and have the inferred types, its bad inputs are refused
with their codes, and its row is complete."""

from __future__ import annotations

import inspect

import numpy as np
import pytest

from lanewise.errors import GraphError
from lanewise.ir.graph import ROOTS, Type
from lanewise.ir.opdef import REQUIRED, Bad, OpDef, Sample, apply, complete_attrs, opdef, ops
from lanewise.ir.values import value_type

FORMS = {"root", "fused", "view", "strided", "elementwise", "row", "product", "kernel"}
COMPUTED = [op for op in ops().values() if op.form not in ("root", "fused")]
NAMES = [op.name for op in COMPUTED]
CONTRACT = [
    "gather_rows", "rms_norm", "layer_norm", "linear", "quantize", "quant_linear", "matmul",
    "reshape", "transpose", "permute", "slice", "broadcast", "contiguous", "rope", "layer",
    "kv_write", "attention", "add", "sub", "mul", "div", "maximum", "minimum", "neg", "abs",
    "square", "sqrt", "rsqrt", "exp", "log", "tanh", "sigmoid", "silu", "relu", "gelu",
    "gelu_erf", "erf", "swiglu", "scale", "cast", "softmax", "argmax", "reduce_sum", "reduce_max",
    "sample_rows", "ragged_rows", "prefill_rows", "scatter_rows", "last_ids", "top_k_mask",
    "top_p_mask",
    "min_p_mask", "top_k", "sample_categorical", "count_tokens", "penalise", "linear_attention",
    "linear_attention_chunked", "grouped_linear", "quant_grouped_linear",
    "conv_ring", "grouped_matmul", "route", "combine", "int4_matmul", "rope_angles",
    "fused", "input", "weight", "constant", "state", "scalar",
]  # fmt: skip


def samples(op: OpDef) -> list[Sample]:
    return list(op.samples(np.random.default_rng(7)))


def test_the_registry_holds_what_the_design_names() -> None:
    assert sorted(ops()) == sorted(CONTRACT)
    assert {op.name for op in ops().values() if op.form == "root"} == set(ROOTS)


@pytest.mark.parametrize("op", COMPUTED, ids=NAMES)
def test_samples_have_the_inferred_types(op: OpDef) -> None:
    found = samples(op)
    assert len(found) >= 2
    for sample in found:
        attrs, types = apply(op.name, tuple(map(value_type, sample.args)), sample.attrs)
        results = op.ref(sample.args, attrs, types)
        assert tuple(map(value_type, results)) == types


@pytest.mark.parametrize("op", COMPUTED, ids=NAMES)
def test_a_reference_is_a_function(op: OpDef) -> None:
    """The same call gives the same bits, and leaves its operands alone."""
    for sample in samples(op):
        before = [np.array(a) if isinstance(a, np.ndarray) else None for a in sample.args]
        attrs, types = apply(op.name, tuple(map(value_type, sample.args)), sample.attrs)
        first, second = (op.ref(sample.args, attrs, types)[0] for _ in range(2))
        if isinstance(first, np.ndarray):
            assert first.tobytes() == second.tobytes()
        for kept, arg in zip(before, sample.args, strict=True):
            assert kept is None or kept.tobytes() == arg.tobytes()


@pytest.mark.parametrize("op", COMPUTED, ids=NAMES)
def test_bad_inputs_are_refused_by_code(op: OpDef) -> None:
    assert len(op.bad) >= 2
    for bad in op.bad:
        with pytest.raises(GraphError) as caught:
            apply(op.name, bad.types, bad.attrs)
        assert caught.value.code == bad.code, bad
        assert op.name in str(caught.value)


@pytest.mark.parametrize("op", COMPUTED, ids=NAMES)
def test_a_refusal_names_the_operand_or_attribute(op: OpDef) -> None:
    names = {o.strip("?*") for o in op.operands} | set(op.attrs)
    for bad in op.bad:
        if bad.code in ("graph.rank", "graph.shape", "graph.dtype", "graph.attribute"):
            with pytest.raises(GraphError) as caught:
                apply(op.name, bad.types, bad.attrs)
            assert set(caught.value.message.replace(":", " ").split()) & names


@pytest.mark.parametrize("op", COMPUTED, ids=NAMES)
def test_other_types_never_crash(op: OpDef) -> None:
    """Whatever the operands' types, the answer is types or a GraphError."""
    rng = np.random.default_rng(3)
    sample = samples(op)[0]
    attrs = complete_attrs(op, sample.attrs)
    count = len([o for o in op.operands if not o.endswith("?")])
    dtypes = ("f32", "f16", "bf16", "u32", "i32", "q8_0", "q4_k", "int8x2")
    for _ in range(300):
        types = tuple(
            Type(str(rng.choice(dtypes)), tuple(rng.choice([1, 2, 32, 64], rng.integers(1, 5))))
            for _ in range(count)
        )
        try:
            op.infer(types, attrs)
        except GraphError as error:
            assert error.code.startswith("graph.")


@pytest.mark.parametrize("op", [o for o in COMPUTED if o.attrs], ids=lambda o: o.name)
def test_other_attributes_never_crash(op: OpDef) -> None:
    wild = (
        0, -1, 1, 7, 10**400, 1.5, float("nan"), float("inf"), -float("inf"), True, "", "f32", (),
        (0,), (1, 2), (-1, 5, 3), (1.5,), ("a",), [2, 3], None,
    )  # fmt: skip
    sample = samples(op)[0]
    types = tuple(map(value_type, sample.args))
    for name in op.attrs:
        for value in wild:
            try:
                apply(op.name, types, {**sample.attrs, name: value})
            except GraphError as error:
                assert error.code.startswith("graph.")


@pytest.mark.parametrize("op", list(ops().values()), ids=list(ops()))
def test_rows_are_complete(op: OpDef) -> None:
    assert op.form in FORMS and op.doc
    assert set(op.rows) <= {o.rstrip("?") for o in op.operands}
    for name, default in op.attrs.items():
        assert name.isidentifier()
        assert default is REQUIRED or isinstance(default, (int, float, str, tuple))
    assert (op.inplace is None) or op.writes


def test_optional_operands_come_last() -> None:
    for op in ops().values():
        marks = [o[-1] == "?" or o[0] == "*" for o in op.operands]
        assert marks == sorted(marks)


def test_unknown_ops_and_attributes() -> None:
    with pytest.raises(GraphError) as caught:
        opdef("frobnicate")
    assert caught.value.code == "graph.unknown_op"
    with pytest.raises(GraphError) as caught:
        apply("add", (Type("f32", (1,)),) * 2, {"axis": 1})
    assert caught.value.code == "graph.unknown_attribute"


def test_roots_are_not_applied() -> None:
    for name in (*ROOTS, "fused"):
        with pytest.raises(GraphError) as caught:
            apply(name, (), {"rule": "r"} if name == "fused" else {})
        assert caught.value.code == "graph.declared"


def test_the_records_are_plain() -> None:
    assert Bad((), {}, "c") == Bad((), {}, "c")
    assert all(inspect.isfunction(op.infer) for op in ops().values())
