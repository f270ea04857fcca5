"""An op is a row: operands, attributes, shape rule, NumPy meaning, samples, refusals, doc.

Rows live in `ir/ops/*.py` and register here under their name.  `infer` raises GraphError with a
code "graph.<reason>" and says the operand; `ref` is the op's meaning (float64 inside unless the
row says otherwise), the oracle of every target.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np

from lanewise.errors import GraphError
from lanewise.ir.graph import Type

# Modules of rows, imported when the first op is looked up (importing lanewise stays fast).
MODULES: Final = (
    "roots", "elementwise", "shape", "contract", "norm", "attention", "sampling", "state",
    "ragged", "masks", "recurrent", "moe", "grouped",
)


class _Required:
    def __repr__(self) -> str:
        return "REQUIRED"


REQUIRED: Final = _Required()

Infer = Callable[[tuple[Type, ...], Mapping[str, Any]], tuple[Type, ...]]
# (operand values, attributes, types of the results) -> result values
Reference = Callable[[Sequence[Any], Mapping[str, Any], tuple[Type, ...]], tuple[Any, ...]]


@dataclass(frozen=True)
class Sample:
    """A legal call: operand values (NumPy arrays, `QuantArray`, ...) and attributes."""

    args: tuple[Any, ...]
    attrs: Mapping[str, Any] = field(default_factory=dict[str, Any])


@dataclass(frozen=True)
class Bad:
    """An illegal call: operand types, attributes, and the code it must be refused with."""

    types: tuple[Type, ...]
    attrs: Mapping[str, Any]
    code: str


@dataclass(frozen=True)
class OpDef:
    """One op.  `operands` names them: "x" required, "bias?" optional (trailing), "*xs" the rest.
    `attrs` maps a name to its default, or to REQUIRED.  `form` tells the planner how results
    follow from operands: "root", "view" (same bytes), "elementwise", "row" (each row of the
    leading axis from the same row of the ragged operands), "product", "kernel"."""

    name: str
    operands: tuple[str, ...]
    attrs: Mapping[str, Any]
    infer: Infer
    ref: Reference
    doc: str
    form: str
    samples: Callable[[np.random.Generator], Iterator[Sample]]
    bad: tuple[Bad, ...] = ()
    writes: bool = False  # operand 0 is a state, result 0 its next version
    ulp: float = 0.0  # a target's f32 result may differ from `ref` by so many ULP ...
    rtol: float = 0.0  # ... or by so much of the sum of absolute terms (reductions)
    # operands whose leading axis is the results' (row i of them makes row i); elementwise and
    # shape rows say it by their shapes
    rows: tuple[str, ...] = ()
    # of an op that writes: the same in place, inplace(state, *other operands, **attributes)
    inplace: Callable[..., None] | None = None


_OPS: dict[str, OpDef] = {}
_loaded = False


def register(op: OpDef) -> OpDef:
    if op.name in _OPS:
        raise ValueError(f"op {op.name!r} is registered twice")
    _OPS[op.name] = op
    return op


def ops() -> Mapping[str, OpDef]:
    """Every registered op, by name."""
    global _loaded
    if not _loaded:
        # Threads may come here together: each waits for the modules that another imports, and
        # nobody sees the table before it is whole.
        for module in MODULES:
            importlib.import_module(f"lanewise.ir.ops.{module}")
        _loaded = True
    return _OPS


def opdef(name: str) -> OpDef:
    """The row of an op; GraphError "graph.unknown_op" if there is none."""
    try:
        return ops()[name]
    except KeyError:
        raise GraphError(
            "graph.unknown_op", f"there is no op {name!r}", remedy="see `lanewise.ir.ops`"
        ) from None


def complete_attrs(op: OpDef, attrs: Mapping[str, Any]) -> dict[str, Any]:
    """`attrs` with defaults filled in; unknown and missing ones are refused."""
    unknown = sorted(set(attrs) - set(op.attrs))
    if unknown:
        raise GraphError(
            "graph.unknown_attribute",
            f"{op.name} has no attribute {', '.join(unknown)}",
            remedy=f"it has: {', '.join(sorted(op.attrs)) or 'none'}",
        )
    full = {**op.attrs, **attrs}
    missing = sorted(k for k, v in full.items() if v is REQUIRED)
    if missing:
        raise GraphError("graph.missing_attribute", f"{op.name} needs {', '.join(missing)}",
                         remedy=f"give it: {missing[0]}=...")  # fmt: skip
    return full


def apply(
    name: str, types: tuple[Type, ...], attrs: Mapping[str, Any]
) -> tuple[dict[str, Any], tuple[Type, ...]]:
    """Check one application: (complete attributes, result types)."""
    op = opdef(name)
    required = [o for o in op.operands if not o.endswith("?") and not o.startswith("*")]
    most = None if any(o.startswith("*") for o in op.operands) else len(op.operands)
    if len(types) < len(required) or (most is not None and len(types) > most):
        raise GraphError(
            "graph.operands",
            f"{name} takes {len(required)}{'' if most == len(required) else ' or more'} operands"
            f" ({', '.join(op.operands)}), not {len(types)}",
            remedy=f"give {', '.join(op.operands)}; those with ? may be left out",
        )
    full = complete_attrs(op, attrs)
    return full, op.infer(types, full)
