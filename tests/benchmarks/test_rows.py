"""T(M) / T(1): what is timed, in which order, and what becomes of given times."""

from __future__ import annotations

import json
from collections.abc import Callable

import numpy as np
import pytest

from benchmarks import forms, rows
from tests.models.support import GOLDEN

MODEL = str(GOLDEN / "llama_tied.q8_0.gguf")


def test_ratios_of_given_times() -> None:
    told = rows.record("some/m.gguf", {
        ("int8", 1): [1.0, 2.0, 4.0], ("int8", 4): [2.0, 6.0, 16.0],
        ("int8x2", 1): [0.002, 0.002, 0.002], ("int8x2", 4): [0.009, 0.001, 0.006],
    })  # fmt: skip
    assert told["model"] == "m.gguf"
    assert told["activations"]["int8"][4] == {"ms": 6000.0, "ratio": 3.0, "per_row": 0.75}
    assert told["activations"]["int8x2"] == {
        1: {"ms": 2.0, "ratio": 1.0, "per_row": 1.0}, 4: {"ms": 6.0, "ratio": 3.0, "per_row": 0.75},
    }  # fmt: skip


def test_recipes_and_counts_take_turns() -> None:
    order: list[rows.Key] = []
    times = iter(range(100))

    def step(key: rows.Key) -> Callable[[], float]:
        def run() -> float:
            order.append(key)
            return float(next(times))

        return run

    keys = [("int8", 1), ("int8", 2), ("int8x2", 1)]
    took = rows.rounds({k: step(k) for k in keys}, 2, 2)
    assert order == [k for _ in range(3) for k in keys for _ in range(2)]
    assert took == {keys[0]: [6.0, 12.0], keys[1]: [8.0, 14.0], keys[2]: [10.0, 16.0]}


@pytest.mark.parametrize("more", [[], ["--one-form"]])
def test_a_tiny_model(capsys: pytest.CaptureFixture[str], more: list[str]) -> None:
    words = [MODEL, "--rows", "1,2,5", "--rounds", "1", "--samples", "1", "--threads", "2", *more]
    rows.main([*words, "--json"])
    (told,) = json.loads(capsys.readouterr().out)["rows"]
    assert list(told["activations"]) == ["int8x2", "int8"]
    for found in told["activations"].values():
        assert list(found) == ["1", "2", "5"] and found["1"]["ratio"] == 1.0
        assert all(x["ms"] > 0 for x in found.values())


def test_steps_are_the_lanes_own() -> None:
    """Each count's form gives the bits that a lane gives, and one row those of its decode."""
    import lanewise as lw

    with forms.opened(MODEL, [1, 3], 0, activations="int8", threads=1) as made:
        assert set(made.forms) == {"decode", "rows3"}
        made.prepare("rows3", 3, 0)
        made.step("rows3", 3)
        ids = made.ports["rows3"].tokens.tolist()
        found = made.ports["rows3"].logits.copy()
        made.prepare("decode", 1, 0)
        made.ports["decode"].tokens[0] = ids[0]
        made.step("decode", 1)
        assert np.array_equal(made.ports["decode"].logits[0], found[0])
    with lw.compile(MODEL, activations="int8", threads=1) as lane:
        assert np.array_equal(lane.logits(ids), found)
