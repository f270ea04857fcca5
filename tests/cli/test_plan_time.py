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
    first, second, third = record["launches"]
    # 1,500 bytes at 1 MB/s are 1.5 ms of 3 ms; 100 multiply-adds at 4 * 10^5 less.
    assert (first["of_limit"], first["time_us"], first["wait_us"]) == (0.5, 2000.0, 1000.0)
    assert second["of_limit"] is None
    assert third["of_limit"] == pytest.approx(200 / 2e5 / 1e-3)  # two words: half of int8's peak
    matmul, rows = record["kernels"]
    assert (matmul["kernel"], matmul["count"], matmul["bytes"], matmul["macs"]) == (
        "matmul", 2, 1500, 300,
    )  # fmt: skip
    assert matmul["of_limit"] == pytest.approx(2.5 / 4) and rows["of_limit"] is None
    assert record["run_us"] == 6000 and record["limits"]["int8"] == 0.0


def test_the_table(call):
    lines = call("plan", "fake", "--time").stdout.splitlines()
    assert lines[0] == "form decode: 1 rows after 0 positions"
    assert lines[2].split() == ["0", "matmul", "head", "2000.0", "1000.0", "1.5", "kB", "0.00", "M",
                                "0.50"]  # fmt: skip
    assert lines[5] == "" and lines[7].split()[:3] == ["2", "matmul", "head"]
    assert lines[-2].startswith("run 6000.0 us: launches 4000.0, waiting at barriers 1000.0")


@pytest.mark.parametrize("more", [["--time", "--program"], ["--rows", "3"], ["-d", "3"]])
def test_options_that_do_not_go_together(call, more):
    assert call("plan", "fake", *more).exit_code == 2


def test_the_help_says_which_forms_there_are(call):
    help = " ".join(call("plan", "--help").stdout.split())
    assert "decode or prefill; with --time also verify" in help
    assert call("plan", "fake", "--form", "verify").exit_code == 2
    assert call("plan", "fake", "--form", "prefill").exit_code == 0
