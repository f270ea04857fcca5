"""Speculation on and off: what is asked, what is refused, and what becomes of given rates."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from benchmarks import speculation as s


def case(on_ids: list[int]) -> s.Case:
    off = [s.Answer([1, 2, 3], rate) for rate in (10.0, 40.0, 20.0)]
    on = [s.Answer(on_ids, rate, 8, 6) for rate in (20.0, 60.0, 80.0)]
    return s.Case("copying", "x", off, on)


def test_ratios_of_given_rates() -> None:
    assert case([1, 2, 3]).record() == {
        "kind": "copying", "prompt": "x", "tokens": 3, "off": 20.0, "on": 60.0, "ratio": 2.0,
        "drafted": 24, "accepted": 18,
    }  # fmt: skip
    rows = [{"kind": k, "ratio": r} for k, r in (("a", 1.0), ("a", 3.0), ("b", 0.5), ("a", 2.0))]
    assert s.kinds(rows) == {"a": 2.0, "b": 0.5}


def test_other_tokens_fail() -> None:
    case([1, 2, 3]).check()
    for wrong in ([1, 2], [1, 2, 4], [1, 2, 3, 4]):
        with pytest.raises(SystemExit, match="changed the tokens"):
            case(wrong).check()


class Lane:
    """Answers by the prompt alone; guesses make it twice as fast."""

    def __init__(self, spoilt: str = "") -> None:
        self.asked: list[tuple[str, Any]] = []
        self.spoilt = spoilt

    def chat(self, messages: Any, *, speculate: Any, max_tokens: int, **of: Any) -> Any:
        assert of == {"temperature": 0.0, "seed": 1} and max_tokens == 5
        (message,) = messages
        text = message["content"]
        self.asked.append((text, speculate))
        on = speculate != "off"
        ids = [len(text) + (on and text == self.spoilt)] * 5
        told = SimpleNamespace(rate=20.0 if on else 10.0, drafted=4 * on, accepted=3 * on)
        return SimpleNamespace(ids=ids, timings=told, read=lambda: "")


def test_off_and_on_take_turns() -> None:
    args = SimpleNamespace(rounds=2, speculate="auto", generate=5, temp=0.0)
    lane = Lane()
    rows = s.run(lane, args)  # type: ignore[arg-type]
    assert len(rows) == len(s.COPYING) + len(s.OTHERS) >= 12
    assert {(r["off"], r["on"], r["ratio"], r["drafted"]) for r in rows} == {(10.0, 20.0, 2.0, 8)}
    story = [mode for text, mode in lane.asked if text == s.OTHERS["story"]]
    assert story == ["auto", "off", "off", "auto", "auto", "off"]
    with pytest.raises(SystemExit, match="others/story"):
        s.run(Lane(s.OTHERS["story"]), args)  # type: ignore[arg-type]


@pytest.mark.model
def test_the_demo_model(
    smollm2_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    few = {"copying": {"records": s.RECORDS}, "others": {"why": s.OTHERS["why"]}}
    monkeypatch.setattr(s, "KINDS", few)
    s.main([str(smollm2_path), "-n", "24", "--rounds", "1", "--speculate", "3", "--json"])
    told = json.loads(capsys.readouterr().out)
    assert [r["kind"] for r in told["rows"]] == ["copying", "others"]
    assert set(told["medians"]) == set(few)
    for r in told["rows"]:
        assert 0 < r["tokens"] <= 24 and 0 <= r["accepted"] <= r["drafted"]
        assert r["off"] > 0 and r["on"] > 0
