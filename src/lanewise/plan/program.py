"""The Program record: one source text with the manifest that says how to run it.

The text is compiled as one unit and linked with its kernel objects.  Every form is a function
`void symbol(LwContext*, int32_t t, int32_t T)`; all forms share one table of buffers (constants,
states, and each form's inputs and outputs) and one array of scalars.
"""

from __future__ import annotations

from dataclasses import dataclass

from lanewise.ir.graph import Type
from lanewise.kernels.library import KernelObject

__all__ = ["Buffer", "Constant", "FormEntry", "KernelObject", "Program"]


@dataclass(frozen=True, slots=True)
class Constant:
    """A constant of the program.  `packer`: "raw" (the bytes as they are) or "panels"
    (rows interleaved by 16, by the packer of its dtype or format); `nbytes` as stored."""

    name: str
    type: Type
    packer: str
    nbytes: int


@dataclass(frozen=True, slots=True)
class Buffer:
    """An entry of the program's table of buffers; kind: constant, state, input or output."""

    name: str
    kind: str
    nbytes: int
    type: Type


@dataclass(frozen=True, slots=True)
class FormEntry:
    """One entry point: what it reads and writes, by index into the program's buffers."""

    name: str
    symbol: str
    capacity: int
    inputs: tuple[tuple[str, int], ...]
    outputs: tuple[tuple[str, int], ...]


@dataclass(frozen=True)
class Program:
    """The whole program; `scalars` are (name, "u32" | "f32") in the order of the native array."""

    text: str
    identity: str
    target: str
    objects: tuple[KernelObject, ...]
    buffers: tuple[Buffer, ...]
    constants: tuple[Constant, ...]
    forms: tuple[FormEntry, ...]
    scalars: tuple[tuple[str, str], ...]
    arena_bytes: int
    private_bytes: int  # per thread
    scratch_bytes: int  # per thread

    def __str__(self) -> str:
        return self.text

    def __repr__(self) -> str:
        forms = ", ".join(f.name for f in self.forms) or "no forms"
        return f"<Program {self.identity[:12]} for {self.target}: {forms}>"

    def form(self, name: str) -> FormEntry:
        return next(f for f in self.forms if f.name == name)

    def buffer(self, name: str) -> int:
        return next(i for i, b in enumerate(self.buffers) if b.name == name)
