"""Every op's samples on the CPU against the op's own reference, within the row's bound.

All samples of one op are one program: its nodes are independent, so that a fault shows by name.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from lanewise.errors import LanewiseError
from lanewise.ir.builder import GraphBuilder
from lanewise.ir.graph import Graph, Type
from lanewise.ir.opdef import OpDef, opdef, ops
from lanewise.ir.ops.rules import is_format
from lanewise.ir.values import ActArray, value_type
from lanewise.pipeline import Options
from tests.native import Native

# Not run by themselves: roots and views have no launch, a body is tested through its rule.
NO_LAUNCH = {"input", "weight", "constant", "state", "scalar", "layer", "fused"}


def root_of(b: GraphBuilder, op: OpDef, name: str, operand: str, value: Any, type: Type) -> Any:
    """A root of the kind that an operand needs, or a quantised input made in the graph."""
    if op.name == "scale" and operand == "s":
        return b.root("scalar", name, type)
    if (op.writes and operand == op.operands[0]) or (op.name == "attention" and operand in "kv"):
        layout = "panels" if operand == "k" else "rows"
        layout = layout if op.name in ("attention", "kv_write") else "flat"
        return b.root("state", name, type, layout=layout)
    weight = operand == "w" and op.name != "grouped_matmul"
    weight = weight or (operand == "table" and is_format(type.dtype))
    return b.root("weight" if weight else "input", name, type)


def sample_graph(op: OpDef, rng: np.random.Generator) -> tuple[Graph, dict[str, Any], list[Any]]:
    """(graph of all samples, values of its roots, expected results by output name)."""
    b = GraphBuilder(op.name)
    values: dict[str, Any] = {}
    wanted: list[tuple[str, Any, Type]] = []
    names = [o.rstrip("?").lstrip("*") for o in op.operands]
    for i, sample in enumerate(op.samples(rng)):
        refs, types = [], []
        for j, value in enumerate(sample.args):
            operand = names[min(j, len(names) - 1)]
            type = value_type(value)
            if isinstance(value, ActArray):
                pytest.skip("quantised inputs are made by quantize: see the products' tests")
            name = f"s{i}.{operand}"
            values[name] = value
            refs.append(root_of(b, op, name, operand, value, type))
            types.append(type)
        results = b.apply_multi(op.name, *refs, **sample.attrs)
        out_types = tuple(b.type(r) for r in results)
        full = {**op.attrs, **sample.attrs}
        for k, value in enumerate(op.ref(sample.args, full, out_types)):
            if out_types[k].dtype in ("int8", "int8x2"):
                continue
            name = values_name(op, i, k)
            b.output(f"version.{i}" if op.writes and k == 0 else name, results[k])
            wanted.append((name, value, out_types[k]))
    return b.finish(), values, wanted


def values_name(op: OpDef, i: int, k: int) -> str:
    return f"s{i}.{op.operands[0]}" if op.writes and k == 0 else f"out{i}.{k}"


def close(op: OpDef, have: np.ndarray, want: np.ndarray) -> bool:
    """Within the row's bound; integers equal; NaN where NaN is."""
    if want.dtype.kind in "ui":
        return bool((have == want).all())
    a, b = have.astype(np.float64), want.astype(np.float64)
    if not ((np.isnan(a) == np.isnan(b)).all() and (np.isinf(a) == np.isinf(b)).all()):
        return False
    if (a[np.isinf(a)] != b[np.isinf(a)]).any():
        return False
    fine = np.isfinite(a)
    a, b = a[fine], b[fine]
    step = np.spacing(np.abs(b).astype(np.float32)).astype(np.float64)
    if want.dtype != np.float32:
        step = step * 2.0 ** (13 if want.dtype == np.float16 else 16)
    bound = (op.ulp + 0.5) * step + op.rtol * 16 * np.abs(b).max(initial=0.0)
    return bool((np.abs(a - b) <= bound).all())


@pytest.mark.parametrize("name", sorted(set(ops()) - NO_LAUNCH))
def test_samples_on_target(name: str) -> None:
    op = opdef(name)
    graph, values, wanted = sample_graph(op, np.random.default_rng(3))
    if not wanted:
        pytest.skip("results have no form outside a program: see the products' tests")
    try:
        native = Native(graph, values, Options(activations="f32"))
    except LanewiseError as error:
        if error.code == "plan.output" and name in ("reshape", "permute"):
            pytest.skip("a view of an input is no output of its own")
        raise
    have = native.run(values)
    for key, want, _ in wanted:
        assert close(op, have[key], np.asarray(want)), f"{name} {key}: {have[key]} != {want}"
