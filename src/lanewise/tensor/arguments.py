"""What an op's function is given, looked at before anything else: one rule for all of them.

Laws: an argument of another kind than its annotation says is one refusal, at the caller's line,
with what to write instead; a missing one is noticed before any poison; NumPy numbers become
Python's, so that equal calls have equal attributes.  Where no argument belongs to a builder there
is nobody who could collect the refusal: it is raised.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable, Mapping
from typing import Any, ParamSpec, TypeVar, cast

import numpy as np

from lanewise.dtypes import DTYPES, DType, known_as
from lanewise.errors import GraphError, call_site
from lanewise.ir.ops.rules import MATRICES
from lanewise.tensor.builder import CALLED, Builder
from lanewise.tensor.handles import Int4, Quantized, State, Tensor, short

P = ParamSpec("P")
R = TypeVar("R")

# kind of an annotation -> (what it takes, how a refusal calls it)
_KINDS: dict[str, tuple[Callable[[Any], bool], str]] = {
    "Tensor": (lambda v: isinstance(v, Tensor), "a tensor"),
    "State": (lambda v: isinstance(v, State), "a state"),
    "Quantized": (lambda v: isinstance(v, Quantized), "a matrix of `quantized`"),
    "Int4": (lambda v: isinstance(v, Int4), "a matrix of `int4`"),
    "Builder": (lambda v: isinstance(v, Builder), "a builder"),
    "DType": (lambda v: isinstance(v, DType), "a dtype"),
    "int": (lambda v: _whole(v), "an integer"),
    "float": (lambda v: _whole(v) or isinstance(v, float | np.floating), "a number"),
    "str": (lambda v: isinstance(v, str), "a string"),
    "Sequence[int]": (
        lambda v: isinstance(v, tuple | list) and all(map(_whole, v)), "a tuple of integers"),
    "SamplingOptions": (lambda v: type(v).__name__ == "SamplingOptions", "SamplingOptions"),
    "None": (lambda v: v is None, "None"),
}  # fmt: skip
_QUANTISED = {"linear": "quant_matmul", "matmul": "quant_matmul", "int4_matmul": "quant_matmul",
              "int4_matvec": "quant_matmul", "gather_rows": "quant_gather_rows"}  # fmt: skip
_LAST = ("reduce_sum", "reduce_max", "argmax")  # reduce the last axis, and are given others
_VALUES = ("Tensor", "State", "Quantized", "Int4")


def _whole(value: Any) -> bool:
    return isinstance(value, int | np.integer) and not isinstance(value, bool)


def plain(value: Any) -> Any:
    """A number, or a sequence of them, of Python's own types."""
    if isinstance(value, np.integer):
        return int(value)
    if isinstance(value, np.floating):
        return float(value)
    return tuple(plain(v) for v in value) if isinstance(value, list | tuple) else value


def builder_of(op: str, *operands: Any) -> Builder:
    """The builder of the first operand that has one.  Raises GraphError ``graph.operand`` if none
    has."""
    found = _builder(operands)
    if found is None:
        given = ", ".join(short(x) for x in operands)
        raise GraphError("graph.operand", f"{op} takes tensors of a builder, not {given}",
                         place=call_site(), remedy="declare one: b.input, b.weight or b.constant")
    return found


def _builder(values: Iterable[Any]) -> Builder | None:
    return next((b for b in map(_own, values) if b is not None), None)


def _own(x: Any) -> Builder | None:
    """Whose an argument is."""
    if isinstance(x, Builder):
        return x
    x = x.weight if isinstance(x, Quantized) else x.codes if isinstance(x, Int4) else x
    return x.builder if isinstance(x, Tensor | State) else None


def instead(value: Any, kinds: tuple[str, ...], name: str, op: str = "") -> str:
    """What to write in place of a value of another kind."""
    if isinstance(value, State) and "Tensor" in kinds:
        return f"read_state({name}) gives the tensor of a state"
    if isinstance(value, Tensor) and "State" in kinds:
        return "declare it by b.state; a write gives its next version"
    if isinstance(value, Quantized | Int4):
        took = "int4_matmul" if isinstance(value, Int4) else _QUANTISED.get(op, "")
        if took and name in ("w", "b", "table"):
            return f"{took} takes it"
    if isinstance(value, Quantized | Int4) and "Tensor" in kinds:
        return "`quant_matmul`, `quant_gather_rows`, `int4_matmul` take it; experts: `quantized`"
    if "Quantized" in kinds or "Int4" in kinds:
        return f"declare it by `{'quantized' if 'Quantized' in kinds else 'int4'}`"
    if "State" in kinds:
        return f"declare a state: {name} = b.state({name!r}, t.f32, shape)"
    number = isinstance(value, int | float | np.number)
    if number and (name.endswith("name") or name == "base"):
        fixed = "; a fixed factor: x * b.constant(number)" if op == "scale" else ""
        return f'name a scalar: b.scalar("s"), "s" here, and its number with each run{fixed}'
    if value is None and kinds == ("int",):
        return f"give {name} as an integer: x.shape[axis] is the end"
    if isinstance(value, np.ndarray) and "Tensor" in kinds:
        return f"b.constant({name}), or declare a port for it"
    if "DType" in kinds:
        return to_float(value)
    if kinds == ("int",) and isinstance(value, tuple | list):
        return f"give {name} one by one, as arguments: {', '.join(map(str, value))}"
    if "Sequence[int]" in kinds and (number or isinstance(value, np.ndarray)):
        return f"give {name} as a tuple of integers: {f'({value},)' if number else 'tuple(...)'}"
    if "Tensor" in kinds:
        said = f"b.constant({value!r})" if number else "numbers enter by `b.constant`"
        return f"{said}, or as a port: b.input"
    return f"give {name} as {_KINDS[kinds[0]][1]}" if kinds[0] in _KINDS else f"give {name}"


def to_float(kind: Any) -> str:
    """What `cast` takes in place of what NumPy or torch call a dtype."""
    own = known_as(kind)
    if own in MATRICES:
        return f"write {own!r}"
    if own and not DTYPES[own].is_float:
        return ("no op makes integers of floats: convert in NumPy, and bind the array; "
                "else 'f32', 'f16', 'bf16', 'f8_e4m3' or 'f8_e5m2'")  # fmt: skip
    return "write 'f32', or 'f16', 'bf16', 'f8_e4m3', 'f8_e5m2'"


def checked(function: Callable[P, R]) -> Callable[P, R]:
    """An op's function that refuses arguments of kinds that its annotations do not name."""
    op = function.__name__
    signature = inspect.signature(function)
    parameters = signature.parameters
    rest = next((p.name for p in parameters.values() if p.kind == p.VAR_POSITIONAL), "")
    names = [p.name for p in parameters.values() if p.name != rest]
    most = sum(p.kind is p.POSITIONAL_OR_KEYWORD for p in parameters.values())
    needed = {n for n in names if parameters[n].default is inspect.Parameter.empty}
    kinds = {p.name: tuple(str(p.annotation).split(" | ")) for p in parameters.values()}
    results = str(inspect.signature(function).return_annotation)

    def wrong(name: str, value: Any, b: Builder) -> None:
        wanted = kinds[name]
        if value is None and wanted[0] in _VALUES:
            b.refuse_missing(op, name)
            return
        code = "operand" if set(wanted) & set(_VALUES) else "attribute"
        must = " or ".join(_KINDS[k][1] if k in _KINDS else k for k in wanted)
        b.refuse(code, f"{op}: {name} is {short(value)}, it must be {must}",
                 instead(value, wanted, name, op))  # fmt: skip

    def fits(name: str, value: Any) -> bool:
        row = [_KINDS[k] for k in kinds[name] if k in _KINDS]
        return len(row) < len(kinds[name]) or any(test(value) for test, _ in row)

    @functools.wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        given = {**dict(zip(names, args, strict=False)), **kwargs}
        more = not rest and len(args) > most
        if more or set(given) - set(names) or not needed <= set(given):
            raise misfit(op, signature, args, kwargs)
        more = [(rest, v) for v in args[len(names) :]] if rest else []
        bad = [(n, v) for n, v in [*given.items(), *more] if not fits(n, v)]
        if bad:
            b = builder_of(op, *given.values())
            missing = [x for x in bad if x[1] is None]
            wrong(*(missing or bad)[0], b)
            return cast(R, nothing(b, results, *given.values()))
        owners = {n: b for n, v in given.items() if (b := _own(v)) is not None}
        if len(set(owners.values())) > 1:
            return cast(R, nothing(foreign(op, owners), results, *given.values()))
        token = None if CALLED.get() else CALLED.set(op)
        try:
            return cast(Any, function)(*map(plain, args), **{n: plain(kwargs[n]) for n in kwargs})
        finally:
            if token is not None:
                CALLED.reset(token)

    return call


def misfit(
    op: str, signature: inspect.Signature, args: tuple[Any, ...], options: Mapping[str, Any]
) -> TypeError:
    """Python's own refusal of a call, and how to call it."""
    plain = [p.replace(annotation=p.empty) for p in signature.parameters.values()]
    said = signature.replace(parameters=plain, return_annotation=signature.empty)
    asked = bool({"axis", "dim"} & set(options)) or (op in _LAST and len(args) > 1)
    last = (
        ""
        if "axis" in signature.parameters or not asked
        else (
            f"; it takes the last axis alone: t.{op}(t.contiguous(t.transpose(x))) takes the other"
        )
    )
    try:
        signature.bind(*args, **options)
    except TypeError as error:
        return TypeError(f"{op}: {error}; it is called as {op}{said}{last}")
    return TypeError(f"{op} is called as {op}{said}")  # pragma: no cover


def foreign(op: str, owners: dict[str, Builder]) -> Builder:
    """Refuse operands of several builders, to each of them; gives the first."""
    first = next(iter(owners.values()))
    name = next(n for n, b in owners.items() if b is not first)
    for b in dict.fromkeys(owners.values()):
        b.refuse("foreign", f"{op}: {name} comes from another builder",
                 "a tensor belongs to the builder that made it: declare a port for it here")
    return first


def nothing(b: Builder, results: str, *like: Any) -> Any:
    """The poisoned results of a function, by its return annotation."""
    def one(kind: str) -> Any:
        x = b.poison(*like)
        made: dict[str, Any] = {
            "Tensor": x, "State": State(b, None, x.type, "", (), 0), "Quantized": Quantized(x),
            "Int4": Int4(x, x, x, 0),
        }  # fmt: skip
        return made.get(kind)

    if not results.startswith("tuple["):
        return one(results)
    return tuple(one(r.split(" | ")[0]) for r in results[6:-1].split(", "))


__all__ = ["builder_of", "checked", "instead", "plain"]
