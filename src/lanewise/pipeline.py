"""The pipeline: passes over a graph, then a plan, then the program's text.

    Graph --numerics, fusion--> Graph --make_plan--> Plan --emit--> Program

Nothing here loads a compiler or a device.  The verifier runs after every pass.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

from lanewise.emit.cpp import emit
from lanewise.fuse.numerics import numerics
from lanewise.fuse.rule import Trace, fuse, held_rules
from lanewise.fuse.rules import RULES
from lanewise.ir.graph import Graph
from lanewise.ir.verify import verify
from lanewise.kernels.table import accept
from lanewise.plan.make import make_plan
from lanewise.plan.plan import Plan
from lanewise.plan.program import Program


@dataclass(frozen=True)
class Options:
    """What a compilation may vary: recipes of quantised products, rules held back, naive plans, and
    whether the program counts the time of every launch."""

    activations: str = "int8x2"
    hold: tuple[str, ...] = ()
    naive: bool = False
    timed: bool = False


@dataclass
class State:
    """What passes hand on."""

    graph: Graph
    options: Options
    trace: Trace = field(default_factory=Trace)


@dataclass(frozen=True)
class Pass:
    """A pass is a row: what it does, whether it may be left out, and why it stands here."""

    name: str
    run: Callable[[State], None]
    required: bool
    why: str


def _numerics(state: State) -> None:
    state.graph = numerics(state.graph, state.options.activations)


def _fusion(state: State) -> None:
    state.graph, state.trace = fuse(state.graph, RULES, accept, state.options.hold)


PASSES: Final = (
    Pass("numerics", _numerics, True, "first: a shared quantised input must be a node before "
         "fusion looks for it"),
    Pass("fusion", _fusion, False, "last: every other pass sees plain ops only"),
)  # fmt: skip


def run_passes(graph: Graph, options: Options) -> State:
    """All passes, the verifier before the first and after each."""
    state = State(graph, options)
    verify(state.graph)
    for step in PASSES:
        step.run(state)
        verify(state.graph)
    return state


def plan_graph(graph: Graph, options: Options = Options()) -> Plan:
    """One form's plan."""
    state = run_passes(graph, options)
    return make_plan(state.graph, state.trace, naive=options.naive)


def compile_forms(
    graphs: Mapping[str, Graph],
    options: Options = Options(),
    *,
    target: str = "cpu-avx2",
    facts: Mapping[str, str] | None = None,
) -> tuple[Program, dict[str, Plan]]:
    """The program of several forms of one computation, and each form's plan.

    `facts` are said in the program's header (model, context, ...) and are part of its identity.
    Raises what the passes raise: GraphError, UsageError ("usage.hold", "usage.activations"),
    PlanError ("plan.no_kernel", "plan.output").
    """
    plans = {name: plan_graph(graph, options) for name, graph in graphs.items()}
    held = held_rules(RULES, options.hold)
    said = {
        "target": target, "activations": options.activations, "held": ", ".join(held) or "none",
        **{f"graph of {name}": graph.identity for name, graph in graphs.items()},
        **({"timed": "every launch"} if options.timed else {}),
        **(facts or {}),
    }  # fmt: skip
    return emit(plans, target, said, timed=options.timed), plans


def parse_hold(hold: Iterable[str] | str) -> tuple[str, ...]:
    """Names of rules to hold, checked against the table (UsageError "usage.hold")."""
    return held_rules(RULES, hold)
