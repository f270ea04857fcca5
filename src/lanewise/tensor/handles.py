"""What an author holds: tensors, versions of states, quantised weights; and their descriptions.

Laws: a handle is a value and never changes; a poisoned one stands for an op that was refused, and
whatever takes it is poisoned too, without another refusal.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, cast

from lanewise.ir.graph import Ref, Type
from lanewise.tensor.habits import Habits, instead, subscript

if TYPE_CHECKING:
    from lanewise.tensor.builder import Builder

Shape = tuple[int, ...]


def short(x: Any) -> str:
    """What was given, in a few words (an array would be pages)."""
    plain = isinstance(x, int | float | str | tuple | list | None) and len(repr(x)) < 60
    return repr(x) if plain or isinstance(x, _Handle) else f"of type {type(x).__name__}"


class _Handle(Habits):
    """A value of one builder's graph; `ref` is None where an op was refused."""

    __slots__ = ("builder", "ref", "type")

    def __init__(self, builder: Builder, ref: Ref | None, type: Type) -> None:
        self.builder = builder
        self.ref = ref
        self.type = type

    @property
    def poisoned(self) -> bool:
        """True if this stands for an op that was refused."""
        return self.ref is None

    @property
    def shape(self) -> Shape:
        """Extents, outermost first; a scalar is (1,)."""
        return self.type.shape

    @property
    def dtype(self) -> str:
        """The name of the dtype or format ("f32", "q4_1")."""
        return self.type.dtype

    def __repr__(self) -> str:
        kind = self.__class__.__name__
        return f"<{kind} {self.type}{' (refused)' if self.poisoned else ''}>"

    def _apply(self, op: str, *operands: Any) -> Tensor:
        state = next((x for x in operands if isinstance(x, State)), None)
        if state is not None:
            self.builder.refuse("operand", f"{op}: an operand is {state!r}",
                                "read_state(state) gives the tensor of a state")  # fmt: skip
            return self.builder.poison(state)
        return self.builder.op(op, operands, strided=True)

    def __add__(self, other: Any) -> Tensor:
        return self._apply("add", self, other)

    def __sub__(self, other: Any) -> Tensor:
        return self._apply("sub", self, other)

    def __mul__(self, other: Any) -> Tensor:
        return self._apply("mul", self, other)

    def __truediv__(self, other: Any) -> Tensor:
        return self._apply("div", self, other)

    def __radd__(self, other: Any) -> Tensor:
        return self._apply("add", other, self)

    def __rsub__(self, other: Any) -> Tensor:
        return self._apply("sub", other, self)

    def __rmul__(self, other: Any) -> Tensor:
        return self._apply("mul", other, self)

    def __rtruediv__(self, other: Any) -> Tensor:
        return self._apply("div", other, self)

    def __neg__(self) -> Tensor:
        return self._apply("neg", self)

    def __abs__(self) -> Tensor:
        return self._apply("abs", self)

    def __pow__(self, power: Any) -> Tensor:
        """The square; other powers are refused."""
        if type(power) in (int, float) and power == 2:
            return self._apply("square", self)
        self.builder.refuse("operand", f"{self!r} ** {short(power)}: only ** 2 is an op",
                            instead("power"))  # fmt: skip
        return self.builder.poison(self)

    def __getitem__(self, key: Any) -> Tensor:
        self.builder.refuse("subscript", f"{self!r} takes no subscript",
                            subscript(self.shape, key))  # fmt: skip
        return self.builder.poison(self)

    def __matmul__(self, other: Any) -> Tensor:
        from lanewise.tensor.ops import matmul

        return matmul(cast(Any, self), other)

    def __rmatmul__(self, other: Any) -> Tensor:
        from lanewise.tensor.ops import matmul

        return matmul(other, cast(Any, self))


class Tensor(_Handle):
    """An immutable value.  `strided`: its elements are not packed (a view): elementwise ops,
    views and `contiguous` take it, other ops refuse it."""

    __slots__ = ("strided",)

    def __init__(
        self, builder: Builder, ref: Ref | None, type: Type, strided: bool = False
    ) -> None:
        super().__init__(builder, ref, type)
        self.strided = strided


class State(_Handle):
    """A version of a caller's buffer, or of a window of it: `window` is the path of layers from
    the root, `version` the number of the write that made it (0: as it came in)."""

    __slots__ = ("root", "version", "window")

    def __init__(
        self, builder: Builder, ref: Ref | None, type: Type, root: str, window: tuple[int, ...],
        version: int,
    ) -> None:  # fmt: skip
        super().__init__(builder, ref, type)
        self.root = root
        self.window = window
        self.version = version


@dataclass(frozen=True)
class Quantized:
    """A matrix [N, K] of int8 codes with one f16 scale per 32 of a row, as one value."""

    weight: Tensor


@dataclass(frozen=True)
class Int4:
    """A matrix of packed 4-bit codes: u32 words of eight (low nibble first), f16 scale and zero
    per group of 128; `weights` counts the codes, since the last word may hold fewer."""

    codes: Tensor
    scales: Tensor
    zeros: Tensor
    weights: int


@dataclass(frozen=True, slots=True)
class ValueDesc:
    """Declares an input or a weight: `Builder.declare_input(ValueDesc(...))` is the same as
    `Builder.input(name, dtype, shape)`."""

    name: str
    dtype: Any
    shape: Shape


@dataclass(frozen=True, slots=True)
class PortDesc:
    """A buffer that a plan takes by name; kind: input, weight, state or output.  `layout` says
    how a state's bytes lie: "rows" "pages/k", "pages/v"
    ("pages/k/16" of pages of 16; see `to_pages`)."""

    name: str
    kind: str
    dtype: str
    shape: Shape
    layout: str = "rows"


@dataclass(frozen=True, slots=True)
class ScalarDesc:
    """A number of a submission; kind: "u32" or "f32"."""

    name: str
    kind: str


@dataclass(frozen=True, slots=True)
class KernelSelection:
    """Which kernel an op became, and why; `rejected` names the rows before it with reasons."""

    op: str
    kernel: str
    reason: str
    rejected: tuple[tuple[str, str], ...] = field(default=())
