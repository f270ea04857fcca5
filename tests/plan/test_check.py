"""The independent check catches every fault that is planted in a finished plan."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from lanewise.errors import LanewiseError
from lanewise.ir.text import parse_graph
from lanewise.pipeline import Options, plan_graph
from lanewise.plan.arena import Life, lower_bound, place
from lanewise.plan.check import check
from lanewise.plan.plan import Place, Plan
from lanewise.plan.program import Program

SPECS = Path(__file__).parent.parent / "specs"


def layer_plan(**options: object) -> Plan:
    return plan_graph(parse_graph((SPECS / "rules" / "gate_up.txt").read_text()),
                      Options(**options))  # type: ignore[arg-type]  # fmt: skip


def faults(plan: Plan) -> str:
    with pytest.raises(LanewiseError) as caught:
        check(plan)
    assert "plan.check" in str(caught.value)
    return str(caught.value)


def test_sound_plans_pass() -> None:
    check(layer_plan())
    check(layer_plan(naive=True))
    check(layer_plan(hold=("all",)))


@pytest.mark.parametrize("hold", [(), ("all",)])
def test_every_barrier_is_needed(hold: tuple[str, ...]) -> None:
    plan = layer_plan(hold=hold)
    stops = [i for i, b in enumerate(plan.barriers) if b]
    assert stops
    for stop in stops:
        fewer = tuple(b and i != stop for i, b in enumerate(plan.barriers))
        assert "no barrier between" in faults(replace(plan, barriers=fewer))


def test_arrays_that_overlap_while_alive() -> None:
    plan = layer_plan(naive=True, hold=("all",))
    arena = [i for i, p in enumerate(plan.places) if p is not None and p.region == "arena"]
    assert len(arena) >= 3
    moved = list(plan.places)
    moved[arena[1]] = plan.places[arena[0]]
    assert "another array or nothing" in faults(replace(plan, places=tuple(moved)))


def test_array_read_before_it_is_written() -> None:
    plan = layer_plan(naive=True)
    order = [1, 0, *range(2, len(plan.launches))]
    moved = tuple(plan.launches[i] for i in order)
    assert "holds another array or nothing" in faults(replace(plan, launches=moved))


def test_array_beyond_the_arena() -> None:
    plan = layer_plan(naive=True)
    i = next(i for i, p in enumerate(plan.places) if p is not None and p.region == "arena")
    places = list(plan.places)
    places[i] = Place("arena", plan.memory.allocated)
    assert "beyond the arena" in faults(replace(plan, places=tuple(places)))


def test_private_launch_that_writes_shared_bytes() -> None:
    plan = layer_plan(naive=True)
    launches = (replace(plan.launches[0], mode="private"), *plan.launches[1:])
    assert "is private and writes arena" in faults(replace(plan, launches=launches))


def test_use_beyond_its_array() -> None:
    plan = layer_plan()
    first = plan.launches[0]
    uses = tuple(replace(u, begin=u.begin + 64) for u in first.uses)
    assert "goes beyond" in faults(replace(plan, launches=(replace(first, uses=uses),
                                                           *plan.launches[1:])))  # fmt: skip


def test_places_never_overlap_and_stay_near_the_bound() -> None:
    """Random lifetimes: disjoint in time or in bytes, and never below the lower bound."""
    rng = np.random.default_rng(5)
    for _ in range(50):
        lives = []
        for a in range(30):
            begin = int(rng.integers(0, 40))
            end = begin + int(rng.integers(0, 8))
            lives.append(Life(a, begin, end, 64 * int(rng.integers(1, 50))))
        at, total = place(lives, True)
        for x in lives:
            assert at[x.array] % 64 == 0 and at[x.array] + x.nbytes <= total
            for y in lives:
                if x.array < y.array and not (x.end < y.begin or y.end < x.begin):
                    a, b = at[x.array], at[y.array]
                    assert a + x.nbytes <= b or b + y.nbytes <= a
        alive = max(sum(x.nbytes for x in lives if x.begin <= m <= x.end) for m in range(60))
        assert lower_bound(lives) == alive <= total <= 1.6 * alive
        assert place(lives, False)[1] == sum(x.nbytes for x in lives)


def test_explain_names_launches_barriers_and_rules() -> None:
    plan = layer_plan()
    text = plan.explain()
    assert f"{len(plan.launches)} launches, {sum(plan.barriers)} barriers" in text
    assert "rule gate_up: fired 1" in text and "matmul_q4_1_int8x2" in text
    assert text.count("--------") == sum(plan.barriers)
    assert "rule gate_up: held" in layer_plan(hold=("gate_up",)).explain()


def test_plan_and_program_print_as_text() -> None:
    plan = layer_plan()
    assert str(plan) == plan.explain() and f"{len(plan.launches)} launches" in repr(plan)
    program = Program("// text\n", "f" * 64, "cpu-scalar", (), (), (), (), (), 0, 0, 0)
    assert str(program) == "// text\n"
    assert repr(program) == "<Program ffffffffffff for cpu-scalar: no forms>"
