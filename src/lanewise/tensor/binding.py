"""What a submission binds, checked whole before anything is bound.

Laws: bytes are never copied or converted; what would need it is refused with the words that do it.
Every mistake of a set is found at once.  An array that is bound again is asked whether it is still
of the shape, strides and dtype that it had, and writable where it is written; weights that are
given again (and what a `Bindings` holds) are not looked at twice.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from lanewise.dtypes import DTYPES, extension
from lanewise.errors import LanewiseError, RunError, collect
from lanewise.ir.ops.rules import regroups, reordered
from lanewise.quant.format import FORMATS
from lanewise.tensor.buffers import Array, Buffer
from lanewise.tensor.handles import PortDesc, ScalarDesc, State, Tensor
from lanewise.tensor.interop import device_of, from_object


def numpy_type(port: PortDesc) -> tuple[Any, tuple[int, ...]]:
    """(NumPy dtype, shape) of the array that a port takes; a format's rows are bytes."""
    row = DTYPES.get(port.dtype)
    if row is not None:
        return row.numpy, port.shape
    *lead, k = port.shape
    return np.dtype(np.uint8), (*lead, FORMATS[port.dtype].row_bytes(k))


@dataclass(frozen=True, slots=True)
class Bound:
    """What is bound: the caller's object, its array, its bytes begin..end, what it was then."""

    value: Any
    array: Array
    begin: int
    end: int
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    written: bool


def view(port: PortDesc, value: Any, want: tuple[Any, tuple[int, ...]] | None = None) -> Array:
    """The array of what is bound, without a copy.  Raises RunError."""
    if isinstance(value, Buffer):
        if value.closed:
            raise _bad("closed", port, "was closed", "make a new one by `Runtime.buffer`")
        value = value.array
    if not isinstance(value, np.ndarray):
        value = _foreign(port, value)
    elif isinstance(value, np.ma.MaskedArray):
        raise _bad("kind", port, "has a mask, which nobody reads", _made(port) or "x.filled(0)")
    dtype, shape = want or numpy_type(port)
    if value.dtype != dtype:
        what = f"is {value.dtype}, it must be {dtype.name}"
        what += "" if port.dtype in DTYPES else f": the bytes of {port.dtype}'s rows"
        raise _bad("dtype", port, what, _made(port) or _converted(port, value.dtype, shape))
    if value.shape != shape:
        raise _bad("shape", port, f"has shape {value.shape}, it must be {shape}",
                   _made(port) or _reshaped(value.shape, shape))  # fmt: skip
    if not value.flags.c_contiguous:
        raise _bad("strides", port, f"has strides {value.strides}: it must be row-major and packed",
                   _made(port) or "np.ascontiguousarray(x)")  # fmt: skip
    if port.kind in _WRITTEN and not value.flags.writeable:
        raise _bad("readonly", port, "is read-only", "bind an array that can be written")
    if not value.flags.aligned:
        raise _bad("alignment", port, "is not aligned to its elements", _made(port) or "x.copy()")
    return value


_WRITTEN = ("state", "output")


def _name(dtype: Any) -> str:
    """How code says a dtype."""
    return f"{'ml_dtypes' if extension(dtype) else 'np'}.{dtype.name}"


def _made(port: PortDesc) -> str:
    """What makes the array of a port that is written ("" for others): what is written into a
    converted copy would be lost."""
    if port.kind not in _WRITTEN:
        return ""
    dtype, shape = numpy_type(port)
    said = f"{port.name} = " if port.name.isidentifier() else ""
    if port.kind == "state":
        return f"bind one array in all submissions: {said}np.zeros({shape}, {_name(dtype)})"
    return f"bind an array of its own, and read that: {said}np.empty({shape}, {_name(dtype)})"


def _converted(port: PortDesc, given: Any, shape: tuple[int, ...]) -> str:
    """What converts the array of a port that is read."""
    if port.dtype not in DTYPES:
        whole = f"the checkpoint's bytes as uint8 {shape}"
        return "quantize_int8(x)" if port.dtype == "q8_0" else whole
    want = DTYPES[port.dtype].numpy
    if extension(want) and given == f"u{want.itemsize}":
        return f"x.view({_name(want)})"
    return f"x.astype({want.name!r})"


def _reshaped(given: tuple[int, ...], want: tuple[int, ...]) -> str:
    """What makes an array of the wanted shape, where that keeps each number at its place: axes
    that are split, merged or of size 1 by `reshape`, axes in another order by a transpose."""
    if regroups(given, want):
        return f"x.reshape{want}"
    if given[::-1] == want:
        return "its axes are the other way round: np.ascontiguousarray(x.T)"
    axes = reordered(given, want)
    if axes is not None:
        return f"its axes are in another order: np.ascontiguousarray(x.transpose{axes})"
    return f"an array of shape {want}"


def _foreign(port: PortDesc, value: Any) -> Array:
    if getattr(value, "format", None) == port.dtype and hasattr(value, "data"):
        return value.data
    if isinstance(value, Tensor | State):
        raise _bad("kind", port, f"is {value!r}, which has no numbers: it stands for them in a "
                   "recording", "bind the array that holds the numbers")  # fmt: skip
    elsewhere = device_of(value)
    if elsewhere is not None:
        raise _bad("device", port, f"lies on device {elsewhere}, not in this processor's memory",
                   _made(port) or "bring it here first: x.cpu()")  # fmt: skip
    if value is None or isinstance(value, str | dict | set):
        raise _bad("kind", port, f"is {type(value).__name__}, no array", _made(port) or
                   f"bind an array of {port.dtype} {list(port.shape)}")  # fmt: skip
    dtype, shape = numpy_type(port)
    try:
        found = from_object(value, extension(dtype), port.kind in _WRITTEN)
    except (TypeError, ValueError, BufferError, RuntimeError) as error:
        numbers = isinstance(value, Iterable | int | float | complex)
        why = "" if numbers else f" that is used where it is: {error}"
        remedy = "a NumPy array, a DLPack object, a buffer, or Runtime.buffer"
        if numbers or hasattr(value, "__array__"):
            remedy = f"make an array of it: {_array_of(port, value)}"
        raise _bad("kind", port, f"is {type(value).__name__}, no array{why}",
                   _made(port) or remedy) from None  # fmt: skip
    if isinstance(value, bytes | bytearray | memoryview) and found.dtype == np.uint8 != dtype:
        raise _bad("dtype", port, f"is {type(value).__name__}, it must be {dtype.name}",
                   _made(port) or f"np.frombuffer(x, {_name(dtype)}).reshape{shape}")  # fmt: skip
    return found


def _array_of(port: PortDesc, value: Any) -> str:
    """What makes the array of a port that is read of numbers that are none yet."""
    dtype, shape = numpy_type(port)
    if port.dtype not in DTYPES:
        return _converted(port, dtype, shape)
    if isinstance(value, int | float):
        return f"np.full({shape}, x, {_name(dtype)})"
    plain = isinstance(value, Sequence) or hasattr(value, "__array__")
    return f"np.asarray({'x' if plain else 'list(x)'}, {_name(dtype)})"


def _bad(code: str, port: PortDesc, what: str, remedy: str) -> RunError:
    return RunError(f"run.{code}", f"{port.kind} {port.name!r} {what}", remedy=remedy)


def number(scalar: ScalarDesc, value: Any) -> int | float:
    """A scalar's value.  Raises RunError ``run.scalar``."""
    whole = isinstance(value, int | np.integer) and not isinstance(value, bool | np.bool_)
    if scalar.kind == "u32" and whole and 0 <= value < 1 << 32:
        return int(value)
    real = whole or isinstance(value, float | np.floating)
    if scalar.kind == "f32" and real and not _F32_MAX < abs(value) < math.inf:
        return float(value)
    want = "an integer from 0 to 2^32 - 1" if scalar.kind == "u32" else "a number of f32"
    hint = ""
    if getattr(value, "size", 0) == 1 and hasattr(value, "item"):
        hint = ": x.item()"
    elif hasattr(value, "__float__") and _converts(scalar.kind, value):
        hint = f": {'int' if scalar.kind == 'u32' else 'float'}(x)"
    raise RunError("run.scalar", f"scalar {scalar.name!r} is {value!r}, it must be {want}",
                   remedy=f"pass a {scalar.kind}{hint}")  # fmt: skip


def _converts(kind: str, value: Any) -> bool:
    """Is it a number of the kind, once it is of Python's type?"""
    try:
        return 0 <= int(value) < 1 << 32 if kind == "u32" else abs(float(value)) <= _F32_MAX
    except (TypeError, ValueError, OverflowError):
        return False


_F32_MAX = float(np.finfo(np.float32).max)


@dataclass(frozen=True, slots=True)
class Last:
    """Bindings that were good: names and values in their order, and the places that are looked at
    however often the same object comes: what is no weight.

    A step has a hundred weights, and what a step has read pushes all else out of the caches: to
    touch each weight's Python object more than once costs more than a small step does.
    """

    names: list[str]
    values: list[Any]
    looked: list[int]

    def news(self, bindings: Mapping[str, Any]) -> Iterable[str]:
        """The names that have to be looked at."""
        if len(bindings) <= _SHORT:
            return bindings
        names = list(bindings)
        if names != self.names:
            return names
        same = list(map(operator.is_, bindings.values(), self.values))
        if all(same):
            return [names[i] for i in self.looked]
        new = {i for i, known in enumerate(same) if not known}
        return [names[i] for i in sorted(new.union(self.looked))]


NOTHING = Last([], [], [])
_SHORT = 16  # bindings of which each is looked at: telling them apart takes as long


class Table:
    """The ports and scalars of a plan; what was last found good."""

    def __init__(self, ports: tuple[PortDesc, ...], scalars: tuple[ScalarDesc, ...]) -> None:
        self.ports = {p.name: p for p in ports}
        self.scalars = {s.name: s for s in scalars}
        self._types = {p.name: numpy_type(p) for p in ports}
        self._weights = {p.name for p in ports if p.kind == "weight"}
        self._written = {p.name for p in ports if p.kind in _WRITTEN}

    def check(
        self, bindings: Mapping[str, Any], known: Mapping[str, Bound], last: Last,
        fixed: int = 0,
    ) -> tuple[dict[str, Bound], dict[str, int | float]]:  # fmt: skip
        """(what changed, scalars).  Raises all that is wrong at once.  `fixed`: how many others
        are bound, and good."""
        errors: list[LanewiseError] = []
        changed: dict[str, Bound] = {}
        numbers: dict[str, int | float] = {}
        for name in last.news(bindings):
            value = bindings[name]
            port = self.ports.get(name)
            try:
                if port is None:
                    numbers[name] = number(self._scalar(name), value)
                    continue
                before = known.get(name)
                if before is None or before.value is not value or not _same(value, before):
                    array = view(port, value, self._types[name])
                    begin = int(array.ctypes.data)
                    changed[name] = Bound(
                        value, array, begin, begin + array.nbytes, array.shape, array.dtype,
                        name in self._written,
                    )  # fmt: skip
            except LanewiseError as error:
                errors.append(error)
        if len(bindings) + fixed != len(self.ports) + len(self.scalars) or errors:
            errors += self._missing(bindings)
        if changed and not errors:
            few = len(changed) <= _FEW
            errors += (self._few if few else self._overlaps)({**known, **changed}, changed)
        collect(errors)
        return changed, numbers

    def lasting(self, bindings: Mapping[str, Any]) -> bool:
        """Are they arrays all of them, which need no second look? (A buffer may be closed.)"""
        return all(
            name in self.ports and not isinstance(value, Buffer) for name, value in bindings.items()
        )

    def good(self, bindings: Mapping[str, Any], last: Last) -> Last:
        """What a set of bindings that was bound looks like to the next."""
        if len(bindings) <= _SHORT:
            return NOTHING
        if list(bindings) == last.names:
            return Last(last.names, list(bindings.values()), last.looked)
        looked = [i for i, n in enumerate(bindings) if n not in self._weights]
        return Last(list(bindings), list(bindings.values()), looked)

    def _scalar(self, name: str) -> ScalarDesc:
        found = self.scalars.get(name)
        if found is None:
            from difflib import get_close_matches

            names = [*self.ports, *self.scalars]
            near = {n.lower(): n for n in names}
            like = get_close_matches(str(name).lower(), near, 1)
            raise RunError(
                "run.extra",
                f"the plan has no {name!r}",
                remedy=f"it has: "
                f"{', '.join(names)}{f'; like it: {near[like[0]]!r}' if like else ''}",
            )
        return found

    def _missing(self, bindings: Mapping[str, Any]) -> list[RunError]:
        absent = [p for n, p in self.ports.items() if n not in bindings]
        lost = [s for n, s in self.scalars.items() if n not in bindings]
        return [
            *(RunError("run.missing", f"{p.kind} {p.name!r} is not bound",
                       remedy=f"bind {p.dtype} {list(p.shape)}") for p in absent),
            *(RunError("run.missing", f"scalar {s.name!r} is not bound", remedy=f"bind a {s.kind}")
              for s in lost),
        ]  # fmt: skip

    def _few(self, bound: Mapping[str, Bound], changed: Mapping[str, Bound]) -> list[RunError]:
        """Do the few that changed overlap others, where one is written?"""
        written, errors = self._written, list[RunError]()
        for name, x in changed.items():
            for other, y in bound.items():
                if x.begin < y.end and y.begin < x.end and other != name:
                    both = other in changed
                    if (name in written or other in written) and not (both and name > other):
                        errors.append(_shared(name, other, written))
        return errors

    def _overlaps(self, bound: Mapping[str, Bound], changed: Mapping[str, Bound]) -> list[RunError]:
        """The same for all: a walk over the spans in order."""
        errors: list[RunError] = []
        reach: list[tuple[int, str]] = []
        for begin, end, name in sorted((x.begin, x.end, n) for n, x in bound.items()):
            reach = [(e, n) for e, n in reach if e > begin]
            errors += [
                _shared(name, n, self._written) for _, n in reach if {n, name} & self._written
            ]
            reach.append((end, name))
        return errors

    def crossing(self, mine: Mapping[str, Bound], other: Mapping[str, Bound]) -> list[RunError]:
        """Bytes that a submission in flight (`other`) has in common with the next (`mine`), where
        either writes them."""
        errors: list[RunError] = []
        reach: list[tuple[int, str, int]] = []
        spans = [(x.begin, x.end, n, s) for s, b in enumerate((mine, other)) for n, x in b.items()]
        for begin, end, name, side in sorted(spans):
            reach = [r for r in reach if r[0] > begin]
            for _, n, s in reach:
                if s != side and {n, name} & self._written:
                    a, b = (name, n) if side == 0 else (n, name)
                    errors.append(RunError(
                        "run.overlap", f"{a!r} shares bytes with {b!r} of a submission in flight, "
                        f"and {a if a in self._written else b!r} is written",
                        remedy=f"wait for its fence, or bind memory of its own to {a!r}",
                    ))  # fmt: skip
            reach.append((end, name, side))
        return errors


_FEW = 4  # bindings that changed: compared one by one


def _shared(name: str, other: str, written: set[str]) -> RunError:
    a, b = sorted((name, other))
    which = b if b in written else a
    return RunError("run.overlap", f"{a!r} and {b!r} share bytes, and {which!r} is written",
                    remedy=f"bind memory of its own to {which!r}")  # fmt: skip


def _same(value: Any, last: Bound) -> bool:
    """Is an object that was good still what it was? (An array's attributes may be assigned to.)"""
    if isinstance(value, Buffer):
        value = value._array
        if value is not last.array:
            return False
    elif value is not last.array:
        return True  # an object that lent its memory
    flags = value.flags
    return (
        value.dtype is last.dtype and value.shape == last.shape and flags.c_contiguous
        and (flags.writeable or not last.written)
    )  # fmt: skip
