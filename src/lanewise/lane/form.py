"""Cut: which specialisation of a model's one step; Form: that step, compiled.

Every form of a lane is authored by the same family text over R rows; a cut only fixes the
capacity, what comes out, and the sizes of the cache.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final

from lanewise.ir.graph import Graph
from lanewise.lane.spec import KV_BYTES, PAGE

NOT_FINITE: Final = 0xFFFFFFFF  # the next token of a row whose logits hold a NaN or an infinity


@dataclass(frozen=True, slots=True)
class Cut:
    """`rows` tokens in flight at most.  outputs: "last" gives logits and the next token of one
    row (of every sequence), "all" of each row.  `context` positions per sequence; `kv` is the
    dtype of K and V; `sample=False` leaves the sampler out (logits only)."""

    kind: str
    rows: int
    outputs: str = "last"
    context: int = 4096
    kv: str = "f16"
    sequences: int = 1
    sample: bool = True

    def __post_init__(self) -> None:
        if self.rows < 1 or self.sequences < 1 or self.context < 1:
            raise ValueError(f"rows, sequences and context must be at least 1: {self}")
        if self.outputs not in ("last", "all") or self.kv not in KV_BYTES:
            raise ValueError(f"outputs is last or all, kv is one of {', '.join(KV_BYTES)}: {self}")

    @property
    def outs(self) -> int:
        """The capacity of the outputs."""
        return self.rows if self.outputs == "all" else min(self.rows, self.sequences)

    @property
    def blocks(self) -> int:
        """Pages of one sequence."""
        return -(-self.context // PAGE)


class Form:
    """One form of a lane: `name`, `kind`, `capacity` (rows at most), and, made when first asked
    for, `graph` (the authored step), `source` (its text, which parses back) and `plan`."""

    def __init__(self, name: str, cut: Cut, graph: Callable[[], Graph], plan: Callable[[], Any]):
        self.name, self.kind, self.capacity, self.cut = name, cut.kind, cut.rows, cut
        self._graph, self._plan = graph, plan

    @cached_property
    def graph(self) -> Graph:
        return self._graph()

    @cached_property
    def plan(self) -> Any:
        """What the planner made of it: a `plan.plan.Plan`."""
        return self._plan()

    @property
    def source(self) -> str:
        return str(self.graph)

    @property
    def io(self) -> Mapping[str, str]:
        """Name -> role and type of everything that the form reads and writes across steps."""
        roots = {
            node.name: f"{node.op} {node.types[0]}"
            for _, node in self.graph.roots("input", "state", "scalar")
        }
        outs = {name: f"output {self.graph.type(ref)}" for name, ref in self.graph.outputs}
        return {**roots, **outs}

    def __repr__(self) -> str:
        return f"<Form {self.name}, up to {self.capacity} rows>"
