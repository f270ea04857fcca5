"""The Plan record: launches in order, barriers between them, and a place for every array.

An *array* is anything with bytes: a step-local value (in the arena, or private to each thread),
or a buffer that somebody else owns (constant, state, input, output).  A *use* is what a launch
touches of an array.  All plain data: `check` proves a finished plan from it, `explain` prints it.
"""

from __future__ import annotations

from dataclasses import dataclass

from lanewise.fuse.rule import Trace
from lanewise.ir.graph import Graph, Type
from lanewise.kernels.table import Selection


@dataclass(frozen=True, slots=True)
class Array:
    """kind: arena, private, constant, state, input, output."""

    name: str
    kind: str
    nbytes: int
    type: Type


@dataclass(frozen=True, slots=True)
class Use:
    """`nbytes` from `begin` of an array.  `part` names how threads share the bytes out: "" is
    any thread, any byte; equal names mean each thread stays within its own share."""

    array: int
    begin: int
    nbytes: int
    write: bool
    part: str = ""


@dataclass(frozen=True, slots=True)
class Launch:
    """One stage of a node's kernel.  `operands` and `results` map the indices of the body's
    roots and outputs, and names of temporaries, to indices into `uses`."""

    kernel: str
    node: int
    stage: int
    mode: str
    uses: tuple[Use, ...]
    slots: tuple[tuple[str, int], ...]
    scratch: int
    operations: int
    label: str

    def slot(self, name: str) -> int:
        """The use of a root ("in0"), an output ("out0") or a temporary ("tmp.best")."""
        return dict(self.slots)[name]


@dataclass(frozen=True, slots=True)
class Place:
    """Where an array begins: region arena or private and an offset, or a named buffer."""

    region: str
    offset: int


@dataclass(frozen=True)
class Memory:
    """Bytes of step-local arrays: without sharing, the most alive at once, as allocated."""

    unshared: int
    lower_bound: int
    allocated: int
    private: int
    scratch: int


@dataclass(frozen=True)
class Plan:
    """A form's plan.  `barriers[i]` says that one stands after launch i."""

    graph: Graph
    arrays: tuple[Array, ...]
    launches: tuple[Launch, ...]
    barriers: tuple[bool, ...]
    places: tuple[Place | None, ...]
    selections: tuple[tuple[int, Selection], ...]
    memory: Memory
    trace: Trace
    naive: bool = False

    @property
    def phases(self) -> tuple[int, ...]:
        """The phase of every launch: how many barriers stand before it."""
        phase, out = 0, list[int]()
        for barrier in self.barriers:
            out.append(phase)
            phase += barrier
        return tuple(out)

    def explain(self) -> str:
        """The plan as text: a table of launches with kernel, reason and bytes."""
        from lanewise.plan.report import explain

        return explain(self)

    __str__ = explain

    def __repr__(self) -> str:
        return (
            f"<Plan of {self.graph.name}: {len(self.launches)} launches, "
            f"{sum(self.barriers)} barriers>"
        )
