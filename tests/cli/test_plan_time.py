"""plan --time: shares of the limit and their sums, against numbers worked out by hand."""

from __future__ import annotations

import json

import pytest

from tests.cli import fake


def test_json(call):
    result = call("plan", "fake", "--time", "--json", "--form", "decode", "-d", "5", "--rows", "3")
    record = json.loads(result.stdout)
    assert fake.FakeLane.last.calls == [("decode", {"rows": 3, "depth": 5})]
    assert (record["form"], record["rows"], record["depth"]) == ("decode", 3, 5)
    first, second, third, fourth = record["launches"][:4]
    # 1,500 bytes at 1 MB/s are 1.5 ms of 3 ms; 100 multiply-adds at 4 * 10^5 less.
    assert (first["of_limit"], first["time_us"], first["wait_us"]) == (0.5, 2000.0, 1000.0)
    assert second["of_limit"] is None
    assert third["of_limit"] == pytest.approx(200 / 2e5 / 1e-3)  # two words: half of int8's peak
    # 100 multiply-adds in 3 ms of 10^4 cycles, on 2 cores; and alone 0.25 ms by the peak.
    assert first["macs_per_cycle"] == round(100 / 3e-3 / 1e4 / 2, 2) and first["recipe"] == "int8"
    assert first["of_peak"] == pytest.approx(0.25 / 3, abs=1e-3)
    assert second["macs_per_cycle"] is None and second["of_peak"] is None
    assert (fourth["of_limit"], fourth["of_peak"]) == (0.8, 0.6)  # 4 ms of bytes, 3 of arithmetic
    heads, matmul, chain, rows = record["kernels"]
    assert (heads["kernel"], heads["count"], chain["computes"]) == ("attention", 2, "chain")
    assert (matmul["kernel"], matmul["count"], matmul["bytes"], matmul["macs"]) == (
        "matmul", 2, 1500, 300,
    )  # fmt: skip
    assert matmul["of_limit"] == pytest.approx(2.5 / 4) and rows["of_limit"] is None
    assert record["run_us"] == 20000 and record["limits"]["int8"] == 0.0


def test_products_and_attention_by_recipe(call):
    found = json.loads(call("plan", "fake", "--time", "--json").stdout)["arithmetic"]
    told = {(x["what"], x["recipe"]): x for x in found}
    assert list(told) == [("attention", "f32"), ("products", "int8"), ("products", "int8x2")]
    heads, words = told["attention", "f32"], told["products", "int8x2"]
    assert (heads["count"], heads["macs"], heads["of_peak"]) == (2, 600, 0.75)  # 6 ms of 8
    # Two launches, 300 multiply-adds in 3 ms, at most 2 * 10^5 a second; 2 cores of 10^4 cycles.
    assert (words["count"], words["of_peak"], words["macs_per_cycle"]) == (2, 0.5, 5.0)
    lines = call("plan", "fake", "--time").stdout.splitlines()
    assert "attention (f32): 3.8 MAC/cycle of a core, 0.75 of the peak" in lines
    assert "products (int8x2): 5.0 MAC/cycle of a core, 0.50 of the peak" in lines


def test_the_table(call):
    lines = call("plan", "fake", "--time").stdout.splitlines()
    assert lines[0] == "form decode: 1 rows after 0 positions"
    assert lines[2].split() == ["0", "matmul", "head", "2000.0", "1000.0", "1.5", "kB", "0.00", "M",
                                "1.7", "0.08", "0.50"]  # fmt: skip
    assert lines[8] == "" and lines[11].split()[:3] == ["2", "matmul", "head"]
    assert lines[-5].startswith("run 20000.0 us: launches 11000.0, waiting at barriers 4000.0")
    assert lines[-1].endswith("0.0 GHz")


@pytest.mark.parametrize("more", [["--time", "--program"], ["--rows", "3"], ["-d", "3"]])
def test_options_that_do_not_go_together(call, more):
    assert call("plan", "fake", *more).exit_code == 2


def test_the_help_says_which_forms_there_are(call):
    help = " ".join(call("plan", "--help").stdout.split())
    assert "decode or prefill; with --time also verify" in help
    assert call("plan", "fake", "--form", "verify").exit_code == 2
    assert call("plan", "fake", "--form", "prefill").exit_code == 0
