"""Tuning: the fastest candidate is found and kept, noise changes nothing, bits never change."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

import lanewise as lw
from lanewise.lane import tune as tuning
from lanewise.lane.tune import CANDIDATES, Tuned, Tuning, name_of, tune
from tests.kernels.native import CPU
from tests.lane.fakes import FakeEngine
from tests.models.support import GOLDEN


class Scripted(FakeEngine):
    """A session whose runs take what `cost` says of its figures, by a clock of its own."""

    def __init__(self, cost: Any) -> None:
        super().__init__(context=64, chunk=32)
        self.cost, self.now, self.figures, self.count = cost, 0.0, (0, 0, 0), 0

    def tune(self, ahead: int, units: int, chunk: int) -> None:
        self.figures = (ahead, units, chunk)

    def run(self, form: str, scalars: Mapping[str, int]) -> None:
        self.count += 1
        self.now += self.cost(form, *self.figures)

    def clock(self) -> float:
        return self.now


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("LANEWISE_CACHE_DIR", str(tmp_path))
    monkeypatch.setenv("LANEWISE_TUNE", "auto")
    return tmp_path


def quiet(stage: str, done: int, total: int, detail: str) -> None:
    assert stage == "tune" and 0 <= done <= total


def cost(form: str, ahead: int, units: int, chunk: int) -> float:
    if form == "decode":
        return {0: 0.010, -1: 0.0099, 1024: 0.008, 4096: 0.009}[ahead]
    return 0.02 - 0.001 * units - 0.003 * chunk


def test_the_fastest_of_each_form() -> None:
    session = Scripted(cost)
    told = tune(session, "a", quiet, session.clock)
    assert told.tuning == Tuning(ahead=1024, chunk=1) and session.figures == (1024, 0, 1)
    assert [t.form for t in told.trials] == ["decode"] * 4 + ["prefill"] * 3
    assert [t.seconds for t in told.trials[:4]] == pytest.approx([0.010, 0.0099, 0.008, 0.009])
    assert "1024 bytes ahead" in told.lines()[0] and len(told.lines()) == 8


def test_less_than_the_noise_changes_nothing() -> None:
    session = Scripted(lambda form, ahead, units, chunk: 0.010 - (0.0002 if ahead else 0.0))
    assert tune(session, "a", quiet, session.clock).tuning == Tuning()
    assert session.figures == (0, 0, 0)


def test_one_slow_turn_is_forgiven() -> None:
    """A neighbour in one turn of the built-in figures must not elect another."""
    calls = {"n": 0}

    def noisy(form: str, ahead: int, units: int, chunk: int) -> float:
        calls["n"] += 1
        return 0.05 if calls["n"] % 9 == 2 else 0.01

    session = Scripted(noisy)
    assert tune(session, "a", quiet, session.clock).tuning == Tuning()


def test_one_lucky_turn_elects_nobody() -> None:
    """Half of the time in one turn of four thousand bytes ahead, as much as all else otherwise."""
    calls = {"n": 0}

    def lucky(form: str, ahead: int, units: int, chunk: int) -> float:
        calls["n"] += ahead == 4096
        return 0.005 if ahead == 4096 and calls["n"] == 3 else 0.01

    session = Scripted(lucky)
    assert tune(session, "a", quiet, session.clock).tuning == Tuning()


def test_a_slow_model_is_not_held_up() -> None:
    """Seconds for a step: nothing is chosen, and the budget is kept but for the step under way."""
    session = Scripted(lambda *figures: 5.0)
    assert tune(session, "a", quiet, session.clock) == Tuned()
    assert session.now <= 4 * 5.0 and session.figures == (0, 0, 0)


def test_kept_by_name(folder: Path) -> None:
    first = Scripted(cost)
    told = tune(first, "a", quiet, first.clock)
    again = Scripted(cost)
    assert tune(again, "a", quiet, again.clock) == told
    assert again.count == 0 and again.figures == (1024, 0, 1)
    other = Scripted(cost)
    tune(other, "b", quiet, other.clock)
    assert other.count > 0
    for path in (folder / "cpu" / "tuning").iterdir():
        path.write_bytes(path.read_bytes()[:-9])
    damaged = Scripted(cost)
    assert tune(damaged, "a", quiet, damaged.clock) == told and damaged.count > 0


def test_a_name_is_a_machines() -> None:
    names = {name_of(i, m, t) for i in ("p", "q") for m in ("cpu", "other") for t in (1, 2)}
    assert len(names) == 8


def test_a_lane_that_was_tuned_gives_the_same_bits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every candidate, whatever this machine would choose."""
    ids = list(range(1, 30))
    monkeypatch.setenv("LANEWISE_TUNE", "off")
    with lw.compile(GOLDEN / "llama_tied.q8_0.gguf", threads=2) as lane:
        assert lane.tuned == Tuned()
        plain = lane.logits(ids)
        text = lane.generate(ids, max_tokens=8, temperature=0).read()
    monkeypatch.setenv("LANEWISE_TUNE", "auto")
    for changes in (c for each in CANDIDATES.values() for c in each):
        chosen = Tuned(Tuning(**changes))

        def forced(session: Any, *_: Any, chosen: Tuned = chosen) -> Tuned:
            tuning._apply(session, chosen.tuning)
            return chosen

        monkeypatch.setattr("lanewise.lane.make.tune", forced)
        with lw.compile(GOLDEN / "llama_tied.q8_0.gguf", threads=2) as lane:
            assert lane.tuned is chosen
            assert (lane.logits(ids) == plain).all()
            assert lane.generate(ids, max_tokens=8, temperature=0).read() == text


def test_a_lane_measures_once() -> None:
    stages: list[str] = []
    path = GOLDEN / "llama_tied.q8_0.gguf"
    with lw.compile(path, threads=1, progress=lambda stage, *_: stages.append(stage)) as lane:
        assert len(lane.tuned.trials) == 7 and stages.count("tune") == 3
        told = lane.tuned
    stages.clear()
    with lw.compile(path, threads=1, progress=lambda stage, *_: stages.append(stage)) as lane:
        assert lane.tuned == told and "tune" not in stages


def test_a_prompt_is_timed_on_the_tiles_of_a_long_one() -> None:
    header = (CPU / "matmul_pairs.h").read_text()
    found = re.search(r"LW_PAIRS_ROWS = (\d+)", header)
    assert found and int(found[1]) <= tuning._ROWS
