"""What authors write out of habit with NumPy and torch: each is refused with what is written here.

Laws: what Python lets a value answer (an operator, a subscript, a function of NumPy) is collected
as any refusal and gives a poisoned tensor; what must give a number, or a method that is not there,
raises.  A name that nobody knows is an AttributeError, as of any object; the others are that too,
so that `hasattr` stays true.  Two handles are equal if they are one object: sets and dictionaries
hold them.
"""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any

import numpy as np

from lanewise.closing import OfThisProcess
from lanewise.errors import GraphError, call_site

if TYPE_CHECKING:
    from lanewise.tensor.builder import Builder

_SHAPE = "t.reshape(x, shape)"
_NUMBERS = "b.output(name, x), run the plan, and read the array that was bound"
_JOIN = "no op joins tensors: give each an output of its own, or t.scatter_rows into one state"
_CAST = "t.cast(x, 'f16') for float16; else 'f32', 'bf16', 'f8_e4m3' or 'f8_e5m2'"
_MASK = ("no op compares: t.relu, t.maximum and t.minimum choose by size; a mask enters as numbers "
         "(an input, or b.constant)")  # fmt: skip

# name of NumPy's or torch's -> what is written here; names of our own ops need no row
_INSTEAD = {
    **dict.fromkeys(("sum", "add.reduce"), "t.reduce_sum(x)"),
    **dict.fromkeys(("max", "amax", "maximum.reduce"), "t.reduce_max(x)"),
    **dict.fromkeys(("min", "amin", "minimum.reduce"), "-t.reduce_max(-x)"),
    **dict.fromkeys(("mean", "average"), "t.reduce_sum(x) * b.constant(1 / x.shape[-1])"),
    **dict.fromkeys(("T", "mT", "swapaxes", "swapdims", "t"), "t.transpose(x)"),
    **dict.fromkeys(("moveaxis", "movedim"), "t.permute(x, *axes)"),
    **dict.fromkeys(
        ("view", "flatten", "ravel", "squeeze", "unsqueeze", "expand_dims", "unflatten"), _SHAPE),
    **dict.fromkeys(("expand", "expand_as", "broadcast_to"), "t.broadcast(x, shape)"),
    **dict.fromkeys(("repeat", "tile"), "t.contiguous(t.broadcast(x, shape))"),
    **dict.fromkeys(("astype", "to", "type"), _CAST), "float": "t.cast(x, 'f32')",
    "half": "t.cast(x, 'f16')", "bfloat16": "t.cast(x, 'bf16')",
    **dict.fromkeys(("power", "pow", "float_power"), "t.square(x), t.sqrt(x), or t.exp(t.log(x) * "
                    "b.constant(p)) of a positive x"),
    **dict.fromkeys(("absolute", "fabs"), "t.abs(x)"),
    **dict.fromkeys(("negative",), "-x"), **dict.fromkeys(("subtract",), "x - y"),
    **dict.fromkeys(("multiply",), "x * y"), **dict.fromkeys(("divide", "true_divide"), "x / y"),
    **dict.fromkeys(("reciprocal",), "b.constant(1.0) / x"),
    **dict.fromkeys(("dot", "mm", "bmm", "inner", "einsum", "tensordot"), "t.matmul(a, b)"),
    **dict.fromkeys(("item", "tolist", "numpy", "detach", "cpu", "data", "asarray", "array",
                     "array_repr", "array_str"), _NUMBERS),
    **dict.fromkeys(("size", "ndim", "dim", "numel", "nelement"), "x.shape, len(x.shape)"),
    **dict.fromkeys(("clip", "clamp"), "t.minimum(t.maximum(x, low), high), of b.constant"),
    **dict.fromkeys(("copy", "clone"), "x itself: a tensor never changes"),
    **dict.fromkeys(("where", "masked_fill"), "x * m + y * (b.constant(1.0) - m), m a mask of 0 "
                    "and 1: an input, or b.constant"),
    **dict.fromkeys(("concatenate", "concat", "cat", "stack", "vstack", "hstack"), _JOIN),
    **dict.fromkeys(("split", "chunk", "narrow", "array_split"), "t.slice(x, axis, start, end)"),
    **dict.fromkeys(("take", "index_select", "gather", "embedding"), "t.gather_rows(table, ids)"),
    **dict.fromkeys(("sort", "argsort", "topk"), "t.top_k(x, k)"),
    **dict.fromkeys(("zeros", "empty"), "b.constant(np.zeros(shape, np.float32))"),
    "ones": "b.constant(np.ones(shape, np.float32))",
    "full": "b.constant(np.full(shape, number, np.float32))",
    "arange": "b.constant(np.arange(n, dtype=np.float32)), np.uint32 for ids",
    "eye": "b.constant(np.eye(n, dtype=np.float32))",
    "tensor": "b.constant(np.array(numbers, np.float32))",
    "randn": "b.constant(rng.standard_normal(shape).astype(np.float32)), rng of NumPy",
    **dict.fromkeys(("zeros_like", "empty_like"), "b.constant(np.zeros(x.shape, np.float32))"),
    "ones_like": "b.constant(np.ones(x.shape, np.float32))",
    "full_like": "b.constant(np.full(x.shape, number, np.float32))",
    "dropout": "x itself: a step that runs a model drops nothing",
    **dict.fromkeys(("input", "placeholder"), "b.input(name, dtype, shape), b = rt.builder()"),
    **dict.fromkeys(("weight", "parameter", "Parameter", "param", "variable"),
                    "b.weight(name, dtype, shape), b = rt.builder()"),
    "state": "b.state(name, dtype, shape), b = rt.builder()",
    "scalar": "b.scalar(name, kind), b = rt.builder()",
    "constant": "b.constant(array), b = rt.builder()",
    "output": "b.output(name, x), b = rt.builder()",
    **dict.fromkeys(("greater", "greater_equal", "less", "less_equal", "equal", "not_equal",
                     "gt", "ge", "lt", "le", "eq", "ne", "isnan", "isfinite", "isclose"), _MASK),
    **dict.fromkeys(("var", "std"), "t.layer_norm and t.rms_norm normalise; else "
                    "t.reduce_sum(t.square(x)) * b.constant(1 / x.shape[-1])"),
    **dict.fromkeys(("log_softmax",), "t.log(t.softmax(x))"),
    **dict.fromkeys(("norm",), "t.sqrt(t.reduce_sum(t.square(x)))"),
    **dict.fromkeys(("fill_", "copy_", "zero_", "fill", "put"), "t.scatter_rows writes a state"),
}  # fmt: skip
_ELSE = "no op does that: do it in NumPy, before, and bind it, or b.constant(array)"
_OPERATORS = {
    "add": "add", "subtract": "sub", "multiply": "mul", "divide": "div", "true_divide": "div",
}  # fmt: skip


def instead(name: str) -> str:
    """What is written here for a name of NumPy's or torch's; "" if nothing is."""
    import lanewise.tensor as t

    known = _INSTEAD.get(name, "")
    function = getattr(t, name, None) if name in t.__all__ and not known else None
    if not inspect.isfunction(function):
        return known
    needed = [p for p in inspect.signature(function).parameters.values() if p.default is p.empty]
    said = [f"{p.name}={p.name}" if p.kind is p.KEYWORD_ONLY else str(p).split(":")[0]
            for p in needed]  # fmt: skip
    return f"t.{name}({', '.join(said)})"


def subscript(shape: tuple[int, ...], key: Any) -> str:
    """What stands for x[key]: slices of unit step, and a reshape that drops axes."""
    keys: tuple[Any, ...] = key if isinstance(key, tuple) else (key,)
    said, kept = "x", list(shape[len(keys) :])
    for axis, k in reversed(list(enumerate(keys))):
        unit = type(k) is int or (isinstance(k, slice) and k.step in (None, 1))
        if not unit or axis >= len(shape):
            return ("t.slice(x, axis, start, end) for each axis, t.reshape for new ones; "
                    "t.gather_rows(x, ids) for rows by number")  # fmt: skip
        part: slice = k if isinstance(k, slice) else slice(k, k + 1 or None)
        first, last, _ = part.indices(shape[axis])
        if (first, last) != (0, shape[axis]):
            said = f"t.slice({said}, {axis}, {first}, {last})"
        kept = kept if type(k) is int else [last - first, *kept]
    if len(kept) < len(shape):
        said = f"t.reshape(t.contiguous({said}), {tuple(kept or [1])})"
    return said


class NotHere(GraphError, AttributeError):
    """A method that handles and builders do not have, since it is a function: `hasattr` says
    no."""


def absent(owner: Any, name: str) -> AttributeError:
    """The refusal of an attribute that is not there."""
    remedy = "" if name.startswith("_") else instead(name)
    kind = type(owner).__name__
    if not remedy:
        return AttributeError(f"{kind!r} object has no attribute {name!r}", name=name, obj=owner)
    why = "" if remedy.startswith("b.") else ": ops are functions"
    return NotHere("graph.attribute", f"a {kind.lower()} has no {name!r}{why}",
                   place=call_site(), remedy=written(remedy))  # fmt: skip


def written(remedy: str) -> str:
    """A remedy as a clause: what is written, or why nothing is."""
    return remedy if remedy.startswith("no op") else f"write {remedy}"


class Habits(OfThisProcess):
    """What a handle answers to NumPy, and to Python's operators that record nothing."""

    __slots__ = ()
    _again = "a handle belongs to its builder: record in each process"
    builder: Builder

    def _unfit(self, what: str, remedy: str) -> Any:
        self.builder.refuse("operand", f"{what} of {self!r}, which has no numbers while it is "
                            "recorded", remedy)  # fmt: skip
        return self.builder.poison(self)

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, **options: Any) -> Any:
        """array * tensor, and np.exp(tensor)."""
        name = ufunc.__name__
        if method == "__call__" and not options and len(inputs) == 2:
            if name in _OPERATORS:
                return self.builder.op(_OPERATORS[name], inputs, strided=True)
            if name == "matmul":
                from lanewise.tensor.ops import matmul

                return matmul(*inputs)
        name = name if method == "__call__" else f"{name}.{method}"
        return self._unfit(f"np.{name}", instead(name) or _ELSE)

    def __array_function__(self, function: Any, types: Any, args: Any, options: Any) -> Any:
        name = function.__name__
        return self._unfit(f"np.{name}", instead(name) or _ELSE)

    def __eq__(self, other: object) -> Any:
        return _MASKS["__eq__"](self, other) if _numbers(other) else self is other

    def __ne__(self, other: object) -> Any:
        return _MASKS["__ne__"](self, other) if _numbers(other) else self is not other

    __hash__ = object.__hash__

    def __setitem__(self, key: Any, value: Any) -> None:
        self.builder.refuse("subscript", f"{self!r} is assigned to: a tensor never changes",
                            "t.scatter_rows(state, rows, ids) writes rows of a state")  # fmt: skip

    def __copy__(self) -> Any:
        return self

    def __deepcopy__(self, memo: Any) -> Any:
        return self

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            raise absent(self, name)


def _numbers(x: object) -> bool:
    return isinstance(x, int | float | complex | np.generic | np.ndarray)


def _masks(sign: str) -> Any:
    def compare(self: Habits, other: Any) -> Any:
        return self._unfit(f"x {sign} y", _MASK)  # pyright: ignore[reportPrivateUsage]

    return compare


def _valueless(what: str, remedy: str) -> Any:
    def refuse(self: Any, *args: Any, **options: Any) -> Any:
        raise GraphError("graph.value", f"{self!r} has no value while it is recorded: {what}",
                         place=call_site(), remedy=remedy)  # fmt: skip

    return refuse


def _no_operator(sign: str, remedy: str) -> Any:
    def refuse(self: Habits, *others: Any) -> Any:
        return self._unfit(f"x {sign} y", remedy)  # pyright: ignore[reportPrivateUsage]

    return refuse


_MASKS = {
    f"__{name}__": _masks(sign) for name, sign in (
        ("lt", "<"), ("le", "<="), ("gt", ">"), ("ge", ">="), ("eq", "=="), ("ne", "!="))
}  # fmt: skip
_VALUES = {
    "bool": ("it is neither true nor false", "decide by Python numbers; `poisoned` tells whether "
             "it was refused"),
    "len": ("it has no length", "x.shape[0]"),
    "iter": ("it has no items", "t.slice(x, 0, i, i + 1) for each i of range(x.shape[0])"),
    "array": ("it is no array", _NUMBERS),
    **dict.fromkeys(("int", "float", "complex", "index"), ("it is no number", _NUMBERS)),
}  # fmt: skip
for _name, _sign in (("floordiv", "//"), ("mod", "%"), ("divmod", "divmod"), ("and", "&"),
                     ("or", "|"), ("xor", "^"), ("lshift", "<<"), ("rshift", ">>")):  # fmt: skip
    for _full in (f"__{_name}__", f"__r{_name}__"):
        setattr(Habits, _full, _no_operator(_sign, _ELSE))
Habits.__rpow__ = _no_operator("**", "t.exp(x * b.constant(log(base)))")  # type: ignore
Habits.__invert__ = _no_operator("~", _MASK)  # type: ignore[attr-defined]
for _name in ("__lt__", "__le__", "__gt__", "__ge__"):
    setattr(Habits, _name, _MASKS[_name])
for _name, (_what, _remedy) in _VALUES.items():
    setattr(Habits, f"__{_name}__", _valueless(_what, _remedy))
