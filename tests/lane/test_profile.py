"""Timed programs on a tiny model: the normal one untouched, costs by hand, times that add up."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import lanewise as lw
from lanewise.emit.cpp import times_of
from lanewise.errors import UsageError
from lanewise.lane import Lane
from lanewise.pipeline import Options, compile_forms
from lanewise.plan.cost import launch_cost
from lanewise.quant.format import FORMATS
from tests.models.support import GOLDEN


@pytest.fixture(scope="module")
def lane() -> Iterator[Lane]:
    with lw.compile(GOLDEN / "llama_tied.q8_0.gguf", threads=2) as opened:
        yield opened


def test_the_normal_program_has_no_clock(lane: Lane) -> None:
    graphs = {"decode": lane.forms["decode"].graph}
    plain, plans = compile_forms(graphs)
    timed, _ = compile_forms(graphs, Options(timed=True))
    assert "clock.h" not in plain.text and "lw_tick" not in plain.text
    assert timed.identity != plain.identity and times_of("decode") in timed.text
    assert compile_forms(graphs, Options(timed=False))[0] == plain
    kept = [x for x in timed.text.splitlines() if "lw_tick" not in x and "lw_now" not in x]
    assert len(kept) - len(plain.text.splitlines()) == 3  # include, fact, table
    assert len(plans["decode"].launches) > 10


def test_a_profile(lane: Lane) -> None:
    before = lane.logits([1, 2, 3])
    for form, rows in (("decode", None), ("prefill", 20), ("verify", 3)):
        told = lane.profile(form, rows=rows, depth=40)
        assert (told.form, told.rows, told.depth) == (form, rows or 1, 40)
        parts = sum(x.work_s + x.wait_s for x in told.launches)
        assert 0 < parts <= told.run_s * 1.05
        assert all(x.work_s > 0 and x.wait_s >= 0 for x in told.launches)
    assert (lane.logits([1, 2, 3]) == before).all()


def test_costs_add_up_to_the_model(lane: Lane) -> None:
    spec = lane.spec
    for name, rows, depth in (("decode", 1, 9), ("prefill", 16, 0)):
        plan = lane.forms[name].plan
        costs = [launch_cost(plan, x, rows, depth) for x in plan.launches]
        matrices = [c for c in lane.program.constants if len(c.type.shape) == 2]
        sizes = {c.name: c.type.shape[0] * c.type.shape[1] for c in matrices if c.name != "rope"}
        head = sizes.pop("token_embd.weight")
        products = sum(c.macs for c in costs if c.recipe == "int8x2")
        assert products == rows * sum(sizes.values()) + head
        seen = sum(depth + 1 + r for r in range(rows))
        attention = sum(c.macs for c in costs if c.recipe == "f32")
        assert attention == 2 * spec.layers * spec.heads * spec.head_dim * seen
        q8 = FORMATS["q8_0"]
        stored = sum(sizes.values()) // q8.block * q8.nbytes
        assert sum(c.nbytes for c in costs) >= stored + head // q8.block * q8.nbytes
        assert sum(c.nbytes for c in costs) <= 1.5 * (stored + head * 34 // 32)


@pytest.mark.parametrize(("form", "rows", "depth", "code"), [
    ("logits", None, 0, "usage.form"), ("decode", 2, 0, "usage.option"),
    ("decode", 1, 128, "usage.option"),
])  # fmt: skip
def test_bad_requests(form: str, rows: int, depth: int, code: str, lane: Lane) -> None:
    if form == "logits":
        form = "nothing"
    with pytest.raises(UsageError) as e:
        lane.profile(form, rows=rows, depth=depth)
    assert e.value.code == code and e.value.remedy
