"""Programs as users get them wrong, what comes back, and the same program with the fix that the
refusal names: the table of `test_refusals.py`.

A row: what is recorded; the code; words of the message; words of the remedy; the remedy taken.
"""
from __future__ import annotations

import operator

import numpy as np

from lanewise import tensor as t
from tests.tensor.refusals_layers import ATTENTION, HELPERS, SAMPLING, STATES
from tests.tensor.refusals_words import WORDS
from tests.tensor.wrong import Row, both, out, s, u, w, x

ELEMENTS = {
    "two dtypes": Row(
        lambda b: out(b, x(b, 4, 8) + x(b, 4, 8, name="h", dtype=t.f16)),
        "dtype", "add: b is f16", "cast",
        lambda b: out(b, x(b, 4, 8) + t.cast(x(b, 4, 8, name="h", dtype=t.f16), t.f32))),
    "a sum in 8 bits": Row(
        lambda b: out(b, x(b, 4, dtype=t.f8_e4m3) + x(b, 4, dtype=t.f8_e4m3, name="h")),
        "dtype", "add: a is f8_e4m3", "cast(a, 'f32')",
        lambda b: out(b, t.cast(x(b, 4, dtype=t.f8_e4m3), "f32") + x(b, 4, name="h"))),
    "shapes that do not broadcast": Row(
        lambda b: out(b, x(b, 4, 8) * x(b, 4, name="z")),
        "shape", "does not broadcast", "reshape",
        lambda b: out(b, x(b, 4, 8) * t.reshape(x(b, 4, name="z"), (4, 1)))),
    "a number": Row(
        lambda b: out(b, x(b, 4) * 2.0), "operand", "2.0", 't.scale(x, "name")',
        lambda b: out(b, t.scale(x(both(b, ("name", "f32")), 4), "name"))),
    "what b.scalar returns": Row(
        lambda b: out(b, x(b, 4) * b.scalar("s")),  # type: ignore[func-returns-value]
        "operand", "b is None, which is what b.scalar returns", 't.scale(x, "s")',
        lambda b: out(b, t.scale(x(both(b, ("s", "f32")), 4), "s"))),
    "an array": Row(
        lambda b: out(b, x(b, 4) * np.ones(4, np.float32)), "operand", "ndarray", "b.constant",
        lambda b: out(b, x(b, 4) * b.constant(np.ones(4, np.float32)))),
    "nothing in a sum": Row(
        lambda b: out(b, x(b, 4) + None), "missing_operand", "b is missing", "give add its b",
        lambda b: out(b, x(b, 4) + x(b, 4, name="z"))),
    "what b.scalar returns, in a function": Row(
        lambda b: out(b, t.mul(x(b, 4), b.scalar("s"))),  # type: ignore
        "operand", "b is None, which is what b.scalar returns", 't.scale(x, "s")',
        lambda b: out(b, t.scale(x(both(b, ("s", "f32")), 4), "s"))),
    "nothing": Row(
        lambda b: out(b, t.gather_rows(x(b, 4, 8), None)),  # type: ignore[arg-type]
        "missing_operand", "ids is missing", "give gather_rows its ids",
        lambda b: out(b, t.gather_rows(x(b, 4, 8), u(b, 3)))),
    "integers in arithmetic": Row(
        lambda b: out(b, t.silu(u(b, 4))), "dtype", "silu: x is u32", "declare x as f32",
        lambda b: out(b, t.silu(x(b, 4)))),
    "ids that are floats": Row(
        lambda b: out(b, t.gather_rows(x(b, 4, 8), x(b, 3, name="ids"))),
        "dtype", "ids is f32", "declare ids as u32",
        lambda b: out(b, t.gather_rows(x(b, 4, 8), u(b, 3, name="ids")))),
    "a subscript": Row(
        lambda b: out(b, x(b, 4, 8)[1:3]), "subscript", "no subscript", "t.slice(x, 0, 1, 3)",
        lambda b: out(b, t.slice(x(b, 4, 8), 0, 1, 3))),
    "a subscript of two axes": Row(
        lambda b: out(b, x(b, 4, 8)[-1, 2:]), "subscript", "no subscript",
        "t.reshape(t.contiguous(t.slice(t.slice(x, 1, 2, 8), 0, 3, 4)), (6,))",
        lambda b: out(b, t.reshape(t.contiguous(
            t.slice(t.slice(x(b, 4, 8), 1, 2, 8), 0, 3, 4)), (6,)))),
    "a subscript of a new axis": Row(
        lambda b: out(b, x(b, 4, 8)[:, None]), "subscript", "no subscript", "t.reshape for new",
        lambda b: out(b, t.reshape(x(b, 4, 8), (4, 1, 8)))),
    "swiglu broadcasts nothing": Row(
        lambda b: out(b, t.swiglu(x(b, 4, 8), x(b, 1, 8, name="v"))),
        "shape", "value", "broadcast(value, gate.shape)",
        lambda b: out(b, t.swiglu(x(b, 4, 8), t.broadcast(x(b, 1, 8, name="v"), (4, 8))))),
    "cast to what is no float": Row(
        lambda b: out(b, t.cast(x(b, 4), "u32")), "attribute", "dtype is 'u32'",
        "no op makes integers",
        lambda b: out(b, t.cast(x(b, 4), "f16"))),
    "an undeclared scalar": Row(
        lambda b: out(b, t.scale(x(b, 4), "s")), "scalar", "'s'", "b.scalar('s', 'f32')",
        lambda b: out(b, t.scale(x(both(b, ("s", "f32")), 4), "s"))),
    "a scalar of another kind": Row(
        lambda b: out(b, t.scale(x(both(b, ("s", "u32")), 4), "s")),
        "scalar", "is u32, it must be f32", "declare it as f32",
        lambda b: out(b, t.scale(x(both(b, ("s", "f32")), 4), "s"))),
    "a tensor for a name": Row(
        lambda b: out(b, t.scale(x(b, 4), x(b, 1, name="s"))),  # type: ignore[arg-type]
        "attribute", "name is <Tensor", "give name as a string",
        lambda b: out(b, t.scale(x(both(b, ("s", "f32")), 4), "s"))),
    "a number for a name": Row(
        lambda b: out(b, t.scale(x(b, 4), 2.0)), "attribute",  # type: ignore[arg-type]
        "name is 2.0", "a fixed factor: x * b.constant(number)",
        lambda b: out(b, x(b, 4) * b.constant(2.0))),
    "ids before their table": Row(
        lambda b: out(b, t.gather_rows(u(b, 3), w(b, 4, 8))), "dtype", "the table comes first",
        "gather_rows(table, ids)", lambda b: out(b, t.gather_rows(w(b, 4, 8), u(b, 3)))),
}  # fmt: skip

HABITS = {  # of NumPy and torch
    "a function of NumPy": Row(
        lambda b: out(b, np.exp(x(b, 4))), "operand", "np.exp of <Tensor f32[4]>", "t.exp(x)",
        lambda b: out(b, t.exp(x(b, 4)))),
    "a function of NumPy with another name": Row(
        lambda b: out(b, np.sum(x(b, 4, 8))), "operand", "np.sum of", "t.reduce_sum(x)",
        lambda b: out(b, t.reduce_sum(x(b, 4, 8)))),
    "a reduction of NumPy": Row(
        lambda b: out(b, np.maximum.reduce(x(b, 4, 8))), "operand", "np.maximum.reduce",
        "t.reduce_max(x)", lambda b: out(b, t.reduce_max(x(b, 4, 8)))),
    "a mean": Row(
        lambda b: out(b, np.mean(x(b, 4, 8), -1)), "operand", "np.mean",
        "t.reduce_sum(x) * b.constant(1 / x.shape[-1])",
        lambda b: out(b, t.reduce_sum(x(b, 4, 8)) * b.constant(1 / 8))),
    "a function of NumPy without an op": Row(
        lambda b: out(b, np.sin(x(b, 4))), "operand", "np.sin", "b.constant(array)",
        lambda b: out(b, x(b, 4, name="sines") * b.constant(np.sin(np.ones(4, np.float32))))),
    "an array before an operator": Row(
        lambda b: out(b, np.ones(4, np.float32) * x(b, 4)), "operand", "ndarray", "b.constant",
        lambda b: out(b, b.constant(np.ones(4, np.float32)) * x(b, 4))),
    "a product with an array": Row(
        lambda b: out(b, x(b, 4, 8) @ np.ones((8, 2), np.float32)), "operand",
        "matmul: b is of type ndarray", "b.constant",
        lambda b: out(b, x(b, 4, 8) @ b.constant(np.ones((8, 2), np.float32)))),
    "a product of an array": Row(
        lambda b: out(b, np.ones((2, 4), np.float32) @ x(b, 4, 8)), "operand",
        "matmul: a is of type ndarray", "b.constant",
        lambda b: out(b, b.constant(np.ones((2, 4), np.float32)) @ x(b, 4, 8))),
    "an array in place": Row(
        lambda b: out(b, operator.iadd(x(b, 4), np.ones(4, np.float32))), "operand", "ndarray",
        "b.constant",
        lambda b: out(b, operator.iadd(x(b, 4), b.constant(np.ones(4, np.float32))))),
    "an array that adds a tensor in place": Row(
        lambda b: out(b, operator.iadd(np.ones(4, np.float32), x(b, 4))), "operand", "np.add",
        "t.add(a, b)", lambda b: out(b, t.add(b.constant(np.ones(4, np.float32)), x(b, 4)))),
    "a comparison": Row(
        lambda b: out(b, x(b, 4) > 0), "operand", "x > y of <Tensor", "t.maximum",
        lambda b: out(b, t.maximum(x(b, 4), b.constant(0.0)))),
    "an equality": Row(
        lambda b: out(b, x(b, 4) == 0), "operand", "x == y of <Tensor", "a mask enters as numbers",
        lambda b: out(b, x(b, 4) * x(b, 4, name="mask"))),
    "a power": Row(
        lambda b: out(b, x(b, 4) ** 3), "operand", "** 3: only ** 2 is an op", "t.exp(t.log(x)",
        lambda b: out(b, t.exp(t.log(x(b, 4)) * b.constant(3.0)))),
    "a power of a number": Row(
        lambda b: out(b, 2 ** x(b, 4)), "operand", "x ** y", "t.exp(x * b.constant(log(base)))",
        lambda b: out(b, t.exp(x(b, 4) * b.constant(np.log(2.0))))),
    "a remainder": Row(
        lambda b: out(b, x(b, 4) % 2), "operand", "x % y", "do it in NumPy, before",
        lambda b: out(b, t.abs(x(b, 4)))),
    "an item assigned": Row(
        lambda b: operator.setitem(x(b, 4, 8), 0, x(b, 8, name="z")), "subscript",  # type: ignore
        "is assigned to", "t.scatter_rows(state, rows, ids)",
        lambda b: t.scatter_rows(s(b, 4, 8), x(b, 1, 8), u(b, 1))),
    "a state in arithmetic": Row(
        lambda b: out(b, x(b, 4) + s(b, 4)), "operand", "add: an operand is <State",
        "read_state(state)", lambda b: out(b, x(b, 4) + t.read_state(s(b, 4)))),
    "arithmetic of a state": Row(
        lambda b: out(b, s(b, 4) * x(b, 4)), "operand", "mul: an operand is <State",
        "read_state(state)", lambda b: out(b, t.read_state(s(b, 4)) * x(b, 4))),
}  # fmt: skip

VIEWS = {
    "a strided operand": Row(
        lambda b: out(b, t.softmax(t.transpose(x(b, 4, 8)))),
        "strided", "x is a strided view", "softmax(contiguous(",
        lambda b: out(b, t.softmax(t.contiguous(t.transpose(x(b, 4, 8)))))),
    "reshape of a view": Row(
        lambda b: out(b, t.reshape(t.permute(x(b, 4, 8), 1, 0), (32,))),
        "strided", "x", "contiguous",
        lambda b: out(b, t.reshape(t.contiguous(t.permute(x(b, 4, 8), 1, 0)), (32,)))),
    "another size": Row(
        lambda b: out(b, t.reshape(x(b, 4, 8), (5, 5))), "shape", "size", "32 elements",
        lambda b: out(b, t.reshape(x(b, 4, 8), (2, 16)))),
    "a dimension to be guessed": Row(
        lambda b: out(b, t.reshape(x(b, 4, 8), (-1, 8))), "attribute", "> 0", "reshape(x, (4, 8))",
        lambda b: out(b, t.reshape(x(b, 4, 8), (4, 8)))),
    "axes twice": Row(
        lambda b: out(b, t.permute(x(b, 4, 8), 1, 1)), "attribute", "once", "every axis of 0..1",
        lambda b: out(b, t.permute(x(b, 4, 8), 1, 0))),
    "axes as a tuple": Row(
        lambda b: out(b, t.permute(x(b, 4, 8), (1, 0))), "attribute",  # type: ignore[arg-type]
        "axes is (1, 0)", "one by one, as arguments: 1, 0",
        lambda b: out(b, t.permute(x(b, 4, 8), 1, 0))),
    "a shape that is a number": Row(
        lambda b: out(b, t.reshape(x(b, 4, 8), 32)), "attribute",  # type: ignore[arg-type]
        "shape is 32", "as a tuple of integers: (32,)",
        lambda b: out(b, t.reshape(x(b, 4, 8), (32,)))),
    "an axis beyond": Row(
        lambda b: out(b, t.transpose(x(b, 4, 8), 0, 2)), "attribute", "axis 2", "from -2 to 1",
        lambda b: out(b, t.transpose(x(b, 4, 8), 0, 1))),
    "the axis of a slice": Row(
        lambda b: out(b, t.slice(x(b, 4, 8), 2, 0, 1)), "attribute", "axis is 2", "from -2 to 1",
        lambda b: out(b, t.slice(x(b, 4, 8), 1, 0, 1))),
    "a slice from the end": Row(
        lambda b: out(b, t.slice(x(b, 4, 8), 1, -3, -1)), "attribute", "counts from the end",
        "slice(x, 1, 5, 7)", lambda b: out(b, t.slice(x(b, 4, 8), 1, 5, 7))),
    "a slice to the end": Row(
        lambda b: out(b, t.slice(x(b, 4, 8), 1, 3, None)), "attribute",  # type: ignore
        "end is None", "x.shape[axis]", lambda b: out(b, t.slice(x(b, 4, 8), 1, 3, 8))),
    "a slice beyond": Row(
        lambda b: out(b, t.slice(x(b, 4, 8), 1, 3, 9)), "attribute", "3:9", "end <= 8",
        lambda b: out(b, t.slice(x(b, 4, 8), 1, 3, 8))),
    "a broadcast of 4 to 5": Row(
        lambda b: out(b, t.broadcast(x(b, 4), (5,))), "shape", "[5]", "equal or 1",
        lambda b: out(b, t.broadcast(x(b, 1), (5,)))),
    "softmax of another axis": Row(
        lambda b: out(b, t.softmax(x(b, 4, 8), 0)), "attribute", "axis is 0", "transpose",
        lambda b: out(b, t.softmax(t.contiguous(t.transpose(x(b, 4, 8), 0, 1))))),
}  # fmt: skip

PRODUCTS = {
    "a matrix the other way round": Row(
        lambda b: out(b, t.linear(x(b, 4, 8), w(b, 8, 5))),
        "shape", "rows must have 8", "[outputs, inputs]: [5,8]",
        lambda b: out(b, t.linear(x(b, 4, 8), w(b, 5, 8)))),
    "inner sizes": Row(
        lambda b: out(b, t.matmul(x(b, 4, 8), w(b, 5, 8))),
        "shape", "inner sizes", "contiguous(transpose(b))",
        lambda b: out(b, t.matmul(x(b, 4, 8), t.contiguous(t.transpose(w(b, 5, 8)))))),
    "leading axes": Row(
        lambda b: out(b, t.matmul(x(b, 2, 4, 8), w(b, 3, 8, 5))),
        "shape", "leading axes", "broadcast",
        lambda b: out(b, t.matmul(x(b, 2, 4, 8), t.contiguous(t.broadcast(w(b, 1, 8, 5),
                                                                         (2, 8, 5)))))),
    "half activations": Row(
        lambda b: out(b, t.linear(x(b, 4, 8, dtype=t.f16), w(b, 5, 8))),
        "dtype", "linear: x is f16", "cast(x, 'f32')",
        lambda b: out(b, t.linear(t.cast(x(b, 4, 8, dtype=t.f16), "f32"), w(b, 5, 8)))),
    "three axes": Row(
        lambda b: out(b, t.linear(x(b, 2, 4, 8), w(b, 5, 8))),
        "rank", "rank must be 2", "reshape(x",
        lambda b: out(b, t.linear(t.reshape(x(b, 2, 4, 8), (8, 8)), w(b, 5, 8)))),
    "a weight that is an input": Row(
        lambda b: out(b, t.linear(x(b, 4, 8), x(b, 5, 8, name="w"))),
        "weight", "no declared weight", "b.weight",
        lambda b: out(b, t.linear(x(b, 4, 8), w(b, 5, 8)))),
    "a view for a weight": Row(
        lambda b: out(b, t.linear(x(b, 4, 8), t.transpose(w(b, 8, 5)))), "weight",
        "no declared weight", "matmul(x, w), which takes any tensor, of w before",
        lambda b: out(b, t.matmul(x(b, 4, 8), w(b, 8, 5)))),
    "a constant for a weight": Row(
        lambda b: out(b, t.linear(x(b, 4, 8), b.constant(np.ones((5, 8), np.float32)))), "weight",
        "no declared weight", "matmul(x, contiguous(transpose(w)))",
        lambda b: out(b, t.matmul(x(b, 4, 8), t.contiguous(t.transpose(
            b.constant(np.ones((5, 8), np.float32))))))),
    "a weight before its activations": Row(
        lambda b: out(b, t.linear(w(b, 5, 8), x(b, 4, 8))), "operand", "the weight comes second",
        "linear(x, w)", lambda b: out(b, t.linear(x(b, 4, 8), w(b, 5, 8)))),
    "a gain before its activations": Row(
        lambda b: out(b, t.rms_norm(w(b, 8), x(b, 4, 8), 1e-5)), "shape", "x comes first",
        "rms_norm(x, gain, ...)", lambda b: out(b, t.rms_norm(x(b, 4, 8), w(b, 8), 1e-5))),
    "one row for a matrix": Row(
        lambda b: out(b, t.linear(x(b, 8), w(b, 5, 8))), "rank", "rank must be 2",
        "reshape(x, (1, 8))",
        lambda b: out(b, t.linear(t.reshape(x(b, 8), (1, 8)), w(b, 5, 8)))),
    "a matrix of `quantized` for linear": Row(
        lambda b: out(b, t.linear(x(b, 4, 32), t.quantized(b, "w", (5, 32)))),  # type: ignore
        "operand", "w is of type Quantized", "quant_matmul takes it",
        lambda b: out(b, t.quant_matmul(x(b, 4, 32), t.quantized(b, "w", (5, 32))))),
    "a table of `quantized`": Row(
        lambda b: out(b, t.gather_rows(t.quantized(b, "w", (5, 32)), u(b, 3))),  # type: ignore
        "operand", "table is of type Quantized", "quant_gather_rows takes it",
        lambda b: out(b, t.quant_gather_rows(t.quantized(b, "w", (5, 32)), u(b, 3)))),
    "4 bits for 8": Row(
        lambda b: out(b, t.quant_matmul(x(b, 4, 32), t.int4(b, "w", 32, 4))),  # type: ignore
        "operand", "w is of type Int4", "int4_matmul takes it",
        lambda b: out(b, t.int4_matmul(x(b, 4, 32), t.int4(b, "w", 32, 4)))),
    "a bias of another size": Row(
        lambda b: out(b, t.linear(x(b, 4, 8), w(b, 5, 8), w(b, 4, name="b"))),
        "shape", "bias is f32[4]", "shape (5,)",
        lambda b: out(b, t.linear(x(b, 4, 8), w(b, 5, 8), w(b, 5, name="b")))),
    "a format in arithmetic": Row(
        lambda b: out(b, x(b, 4, 32) + w(b, 4, 32, dtype="q8_0")),
        "dtype", "b is q8_0", "linear",
        lambda b: out(b, x(b, 4, 32) + w(b, 4, 32))),
    "rows that are no whole blocks": Row(
        lambda b: out(b, t.linear(x(b, 4, 40), w(b, 5, 40, dtype="q8_0"))),
        "shape", "blocks of 32", "rows of 64",
        lambda b: out(b, t.linear(x(b, 4, 64), w(b, 5, 64, dtype="q8_0")))),
    "a plain weight for quant_matmul": Row(
        lambda b: out(b, t.quant_matmul(x(b, 4, 32), w(b, 5, 32))),  # type: ignore[arg-type]
        "operand", "w is <Tensor", "`quantized`",
        lambda b: out(b, t.quant_matmul(x(b, 4, 32), t.quantized(b, "w", (5, 32))))),
    "int4 of another size": Row(
        lambda b: out(b, t.int4_matmul(x(b, 4, 7), t.int4(b, "w", 8, 16))),
        "shape", "128 weights", "int4(b, name, 7, columns)",
        lambda b: out(b, t.int4_matmul(x(b, 4, 7), t.int4(b, "w", 7, 16)))),
    "int4 of nothing": Row(
        lambda b: t.int4(b, "w", 8, 0), "shape", "[8,0]", "positive",
        lambda b: out(b, t.int4_matmul(x(b, 4, 8), t.int4(b, "w", 8, 1)))),
    "a gain of another size": Row(
        lambda b: out(b, t.rms_norm(x(b, 4, 8), w(b, 4), 1e-5)),
        "shape", "gain is f32[4]", "shape (8,)",
        lambda b: out(b, t.rms_norm(x(b, 4, 8), w(b, 8), 1e-5))),
    "eps of 0": Row(
        lambda b: out(b, t.rms_norm(x(b, 4, 8), w(b, 8), 0)), "attribute", "> 0", "eps above 0",
        lambda b: out(b, t.rms_norm(x(b, 4, 8), w(b, 8), 1e-6))),
    "experts stored the other way round": Row(
        lambda b: out(b, t.grouped_matmul(x(b, 6, 8), w(b, 3, 5, 8), u(b, 3))),
        "shape", "inner sizes", "[experts, 8, outputs]",
        lambda b: out(b, t.grouped_matmul(x(b, 6, 8), w(b, 3, 8, 5), u(b, 3)))),
    "more than the row": Row(
        lambda b: out(b, t.top_k(x(b, 4, 8), 9)[0]), "attribute", "1..8", "k",
        lambda b: out(b, t.top_k(x(b, 4, 8), 8)[0])),
}  # fmt: skip

DECLARATIONS = {
    "no such dtype": Row(
        lambda b: b.input("x", "f99", (4,)), "dtype", "'f99'", "bf16",
        lambda b: out(b, t.abs(b.input("x", "bf16", (4,))))),
    "a state of 8 bits": Row(
        lambda b: b.state("s", t.f8_e5m2, (4, 8)), "dtype", "'f8_e5m2', which no state", "f32, f16",
        lambda b: out(b, t.read_state(b.state("s", t.bf16, (4, 8))))),
    "f64": Row(
        lambda b: b.input("x", "f64", (4,)), "dtype", "'f64'", "f32",
        lambda b: out(b, t.abs(b.input("x", "f32", (4,))))),
    "a dtype of NumPy": Row(
        lambda b: b.input("x", np.float16, (4,)), "dtype", "numpy.float16", "write 'f16'",
        lambda b: out(b, t.abs(b.input("x", "f16", (4,))))),
    "a dtype by NumPy's name": Row(
        lambda b: b.input("x", "float32", (4,)), "dtype", "'float32'", "write 'f32'",
        lambda b: out(b, t.abs(b.input("x", "f32", (4,))))),
    "a dtype in capitals": Row(
        lambda b: b.input("x", "F32", (4,)), "dtype", "'F32'", "write 'f32'",
        lambda b: out(b, t.abs(b.input("x", "f32", (4,))))),
    "an input of a format": Row(
        lambda b: b.input("x", "q8_0", (4, 32)), "dtype", "'q8_0'", "formats are for b.weight",
        lambda b: out(b, t.linear(x(b, 4, 32), b.weight("w", "q8_0", (5, 32))))),
    "a cast to a dtype of NumPy": Row(
        lambda b: out(b, t.cast(x(b, 4), np.float16)), "attribute", "dtype is of type type",
        "write 'f16'", lambda b: out(b, t.cast(x(b, 4), "f16"))),
    "an axis that varies": Row(
        lambda b: b.input("x", t.f32, (None, 8)), "shape", "(None, 8)", "`live` names a scalar",
        lambda b: out(b, t.abs(both(b, ("n", "u32")).input("x", t.f32, (4, 8), live="n")))),
    "a description that is none": Row(
        lambda b: b.declare_input(("x", t.f32, (4,))), "operand",  # type: ignore[arg-type]
        "a description is of type tuple", "ValueDesc(name, dtype, shape)",
        lambda b: out(b, t.abs(b.declare_input(t.ValueDesc("x", t.f32, (4,)))))),
    "an empty axis": Row(
        lambda b: x(b, 4, 0), "shape", "(4, 0)", "positive", lambda b: out(b, t.abs(x(b, 4, 1)))),
    "more than any memory": Row(
        lambda b: x(b, 2**30, 2**20), "shape", "2^40 elements", "smaller",
        lambda b: out(b, t.abs(x(b, 4)))),
    "a result of more than any memory": Row(
        lambda b: out(b, t.broadcast(x(b, 1), (2**30, 2**20))), "shape",
        "broadcast: the result", "smaller", lambda b: out(b, t.broadcast(x(b, 1), (4,)))),
    "a scalar's shape": Row(
        lambda b: x(b), "shape", "()", "a scalar is (1,)", lambda b: out(b, t.abs(x(b, 1)))),
    "a name twice": Row(
        lambda b: (x(b, 4), x(b, 4)), "duplicate_name", "'x'", "rename",
        lambda b: out(b, x(b, 4) + x(b, 4, name="x2"))),
    "an output named as an input": Row(
        lambda b: b.output("x", t.abs(x(b, 4))), "duplicate_name", "'x'", "rename",
        lambda b: b.output("y", t.abs(x(b, 4)))),
    "a scalar named as an input": Row(
        lambda b: both(b, ("x", "f32")) if x(b, 4) is not None else None,
        "duplicate_name", "'x'", "rename",
        lambda b: out(both(b, ("k", "f32")), t.scale(x(b, 4), "k"))),
    "a port named as a constant": Row(
        lambda b: (b.constant(1.0), x(b, 4, name="constant.0")), "duplicate_name", "constant.0",
        "rename", lambda b: out(b, x(b, 4) * b.constant(1.0))),
    "a name of two lines": Row(
        lambda b: x(b, 4, name="a\nb"), "name", "no name", "of one line",
        lambda b: out(b, t.abs(x(b, 4, name="a b")))),
    "a weight's array for its shape": Row(
        lambda b: b.weight("w", t.f32, np.ones((2, 3), np.float32)),
        "shape", "an array in place of a shape", "(2, 3): the array itself is bound",
        lambda b: out(b, t.abs(w(b, 2, 3)))),
    "a shape before its dtype": Row(
        lambda b: b.input("x", (4,), t.f32), "dtype", "dtype (4,)", "name, dtype, shape",
        lambda b: out(b, t.abs(x(b, 4)))),
    "a format in capitals": Row(
        lambda b: b.weight("w", "Q4_K", (5, 256)), "dtype", "'Q4_K'", "write 'q4_k'",
        lambda b: out(b, t.linear(x(b, 4, 256), b.weight("w", "q4_k", (5, 256))))),
    "no name": Row(
        lambda b: b.input("", t.f32, (4,)), "name", "no name", "not empty",
        lambda b: out(b, t.abs(x(b, 4)))),
    "an output without a name": Row(
        lambda b: b.output("", t.abs(x(b, 4))), "name", "no name", "not empty",
        lambda b: b.output("y", t.abs(x(b, 4)))),
    "a scalar without a name": Row(
        lambda b: b.scalar(""), "name", "no name", "not empty",
        lambda b: out(both(b, ("k", "f32")), t.scale(x(b, 4), "k"))),
    "a kind of scalar": Row(
        lambda b: b.scalar("n", "i64"), "scalar", "'i64'", "u32 or f32",
        lambda b: out(both(b, ("n", "f32")), t.scale(x(b, 4), "n"))),
    "a constant beyond u32": Row(
        lambda b: b.constant(np.array([2**40 + 5])), "dtype", "1099511627781", "np.float32",
        lambda b: out(b, b.constant(np.asarray([2**40 + 5]).astype(np.float32)))),
    "a negative constant": Row(
        lambda b: b.constant(-1), "dtype", "-1, which is no u32", "astype(np.int32)",
        lambda b: out(b, b.constant(np.asarray(-1).astype(np.int32)))),
    "a constant beyond f32": Row(
        lambda b: b.constant([1e300]), "dtype", "1e+300, beyond f32", "np.inf",
        lambda b: out(b, b.constant([np.inf]))),
    "a float64 array that f32 rounds": Row(
        lambda b: b.constant(np.array([0.5, 0.1])), "dtype", "0.1", ".astype(np.float32)",
        lambda b: out(b, b.constant(np.array([0.5, 0.1]).astype(np.float32)))),
    "a constant of text": Row(
        lambda b: b.constant(["a"]), "dtype", "<U1", ".astype(np.float32)",
        lambda b: out(b, b.constant([1.0]))),
    "a constant of objects": Row(
        lambda b: b.constant([None, 1.0]), "dtype", "of object: f32", ".astype(np.float32)",
        lambda b: out(b, b.constant([0.0, 1.0]))),
    "a constant of truths": Row(
        lambda b: b.constant(np.array([True])), "dtype", "of bool: f32", ".astype(np.uint32)",
        lambda b: out(b, b.constant(np.asarray(np.array([True])).astype(np.uint32)))),
    "a constant of nothing": Row(
        lambda b: b.constant([]), "shape", "(0,): it holds no number", "a scalar is (1,)",
        lambda b: out(b, b.constant([1.0]))),
    "a constant of ragged rows": Row(
        lambda b: b.constant([[1.0, 2.0], [3.0]]), "shape", "rows are of several lengths",
        "rows of one length", lambda b: out(b, b.constant([[1.0, 2.0], [3.0, 0.0]]))),
    "a constant of a tensor": Row(
        lambda b: b.constant(x(b, 4)), "operand", "recorded already", "use it as it is",
        lambda b: out(b, t.abs(x(b, 4)))),
    "another constant of that name": Row(
        lambda b: (b.constant([1.0], "c"), b.constant([2.0], "c")), "duplicate_name",
        "'constant.c' is a constant of other numbers", "rename",
        lambda b: out(b, b.constant([1.0], "c") + b.constant([2.0], "d"))),
    "a constant whose name is a number": Row(
        lambda b: b.constant([1.0], 5), "name", "name is 5", "a string",  # type: ignore
        lambda b: out(b, b.constant([1.0], "5"))),
    "an output of two": Row(
        lambda b: b.output("y", t.top_k(x(b, 4), 2)), "operand", "no tensor",  # type: ignore
        "an output of its own", lambda b: out(b, t.top_k(x(b, 4), 2)[0])),
    "an output before its name": Row(
        lambda b: b.output(t.abs(x(b, 4)), "y"), "operand", "is 'y', no tensor",  # type: ignore
        "b.output('y', tensor)", lambda b: b.output("y", t.abs(x(b, 4)))),
    "an output of an array": Row(
        lambda b: b.output("y", np.ones(4)), "operand", "ndarray", "b.constant(array)",
        lambda b: out(b, b.constant(np.ones(4)))),
    "an output that is a state": Row(
        lambda b: out(b, s(b, 4)), "operand", "State", "read_state",
        lambda b: out(b, t.read_state(s(b, 4)))),
    "live that is a tensor": Row(
        lambda b: b.input("x", t.f32, (4,), live=u(b, 1)), "live", "no u32",  # type: ignore
        "b.scalar('n', 'u32') before the input, and live='n'",
        lambda b: out(b, t.abs(both(b, ("n", "u32")).input("x", t.f32, (4,), live="n")))),
    "live before its scalar": Row(
        lambda b: b.input("x", t.f32, (4,), live="n"), "live", "'n'", "b.scalar('n', 'u32')",
        lambda b: out(b, t.abs(both(b, ("n", "u32")).input("x", t.f32, (4,), live="n")))),
}  # fmt: skip

ROWS: dict[str, Row] = {
    **ELEMENTS, **HABITS, **VIEWS, **PRODUCTS, **DECLARATIONS, **STATES, **ATTENTION, **HELPERS,
    **SAMPLING, **WORDS,
}  # fmt: skip
