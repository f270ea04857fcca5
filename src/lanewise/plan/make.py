"""`make_plan`: lower, schedule, place, prove."""

from __future__ import annotations

from lanewise.fuse.rule import Trace
from lanewise.ir.graph import Graph
from lanewise.plan.arena import place_all
from lanewise.plan.check import check
from lanewise.plan.lower import lower
from lanewise.plan.plan import Memory, Plan
from lanewise.plan.schedule import barriers


def make_plan(graph: Graph, trace: Trace | None = None, *, naive: bool = False) -> Plan:
    """The plan of a fused graph.  `naive` shares no bytes, recomputes nothing and puts a barrier
    after every launch: what the clever plan is tested against."""
    lowered = lower(graph, private=not naive)
    launches = tuple(lowered.launches)
    if naive:
        stops = tuple(True for _ in launches)
    else:
        stops = barriers(launches, lowered.arrays)
    phases, phase = list[int](), 0
    for stop in stops:
        phases.append(phase)
        phase += stop
    places, arena, private, (unshared, bound) = place_all(
        launches, lowered.arrays, phases, not naive
    )
    scratch = max((x.scratch for x in launches), default=0)
    plan = Plan(
        graph, tuple(lowered.arrays), launches, stops, places, tuple(lowered.selections),
        Memory(unshared, bound, arena, private, scratch), trace or Trace(), naive,
    )
    check(plan)
    return plan
