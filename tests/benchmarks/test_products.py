"""Products alone: rates and shares of given times, and one small product for real."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

import pytest

from benchmarks import products


class Bench:
    """A 100 x 320 matrix of 2,000 bytes whose products take given seconds."""

    n, k, bytes, copies, weights = 100, 320, 2000, 3, None
    lib = SimpleNamespace(bench_clock=lambda: 1e6)

    def __init__(self, *took: float) -> None:
        self.took = iter(took)
        self.asked: list[tuple[int, int, int, int]] = []

    def seconds(self, rows: int, threads: int, copies: int, reps: int) -> float:
        self.asked.append((rows, threads, copies, reps))
        return next(self.took)


def test_rates_and_shares_of_given_times(monkeypatch: pytest.MonkeyPatch) -> None:
    reads = {1: 4000.0, 4: 8000.0}
    monkeypatch.setattr(products, "read_rate", lambda lib, data, threads, s: reads[s])
    bench: Any = Bench(1.0, 0.5, 2.0, 3.2, 1.6, 0.8)
    one, many = products.measure(bench, 2, [1, 1000], 3, 40.0)
    assert one == {"rows": 1, "gb_s": 2e-6, "best": 4e-6, "of_read": 0.25}
    # 32 million multiply-adds in 1.6 s, on two cores of 10^6 cycles.
    assert many == {"rows": 1000, "macs_per_cycle": 10.0, "best": 20.0, "of_peak": 0.25}
    assert bench.asked == [(1, 2, 3, 1)] * 3 + [(1000, 2, 1, 9)] * 3
    assert products.told(many) == "M=1000  10.0 MAC/c (best 20.0) 0.25 of peak"
    assert products.told(one) == "M=1   0.0 GB/s (best  0.0) 0.25 of read"
    (bare,) = products.measure(Bench(1.0), 1, [32], 1, None)  # type: ignore[arg-type]
    assert bare["of_peak"] is None and products.told(bare).endswith("(best  1.0)")


def test_one_product(capsys: pytest.CaptureFixture[str]) -> None:
    isa = products.native.isas()[0]
    words = ["--isa", isa, "--formats", "q8_0", "--acts", "int8", "--shapes", "64x256"]
    products.main([*words, "--threads", "2", "--rows", "1,32", "--rounds", "1", "--json"])
    told = json.loads(capsys.readouterr().out)
    (row,) = told["rows"]
    assert (row["format"], row["activations"], row["isa"], row["threads"]) == (
        "q8_0", "int8", isa, 2,
    )  # fmt: skip
    one, many = row["products"]
    assert one["gb_s"] > 0 and one["of_read"] > 0
    assert many["of_peak"] == pytest.approx(many["macs_per_cycle"] / row["peak"])
