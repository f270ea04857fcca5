"""bench: what is measured, and the JSON that scripts read."""

from __future__ import annotations

import json

import pytest

from lanewise.cli.measure import Work, measure, median
from tests.cli import fake


def bench(call, *args):
    result = call("bench", *args, "--json")
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout.splitlines()[-1])


def test_json_has_every_key(call):
    record = bench(call, "fake", "-p", "20", "-n", "4", "-d", "8", "-t", "3", "-r", "2")
    assert record["prompt"] == 20 and record["generate"] == 4 and record["depth"] == 8
    assert record["threads"] == 3 and record["activations"] == "int8x2" and record["repeat"] == 2
    assert record["pp"] == pytest.approx(20 / 0.5), "only the 20 new tokens count, not the depth"
    assert record["tg"] == pytest.approx(4 / 0.04)
    assert record["first_token_s"] == 0.25
    assert record["peak_bytes"] > 1 << 20 and record["open_s"] >= 0
    assert len(record["pp_runs"]) == len(record["tg_runs"]) == 2


def test_a_test_can_be_left_out(call):
    record = bench(call, "fake", "-p", "0", "-n", "4")
    assert record["pp"] is None and record["tg"] > 0 and record["first_token_s"] == 0.25
    record = bench(call, "fake", "-p", "16", "-n", "0")
    assert record["tg"] is None and record["pp"] > 0


def test_the_work_fits_the_context_that_is_asked_for(call):
    bench(call, "fake", "-p", "20", "-n", "64", "-d", "8")
    lane = fake.FakeLane.last
    most = max(len(ids) + options["max_tokens"] for ids, options in lane.calls)
    assert most <= lane.options["context"] <= most + 64
    assert all(options["temperature"] == 0 for _, options in lane.calls)


def test_no_prompt_finds_its_own_start_in_the_cache():
    lane = fake.FakeLane("fake", {"threads": 1, "context": None})
    measure(lane, Work(prompt=10, generate=3, depth=5, repeat=3))
    prompts = [ids for ids, options in lane.calls if len(ids) == 15]
    assert len(prompts) == 4, "one to warm up"
    assert len({tuple(ids[:5]) for ids in prompts}) == 1, "the depth is the same"
    assert len({ids[5] for ids in prompts}) == 4, "what comes after it is not"


def test_writing_goes_on_after_an_early_end():
    lane = fake.FakeLane("early", {"threads": 1, "context": None})
    result = measure(lane, Work(prompt=0, generate=10, depth=0, repeat=1))
    assert result.tg == [pytest.approx(100.0)]
    assert sum(min(3, options["max_tokens"]) - 1 for _, options in lane.calls) >= 2 * 10


def test_median():
    assert median([3.0, 1.0, 2.0]) == 2.0 and median([]) is None


def test_the_table(call):
    result = call("bench", "fake", "-p", "20", "-n", "4", "-d", "8", "-r", "2")
    lines = result.stdout.splitlines()
    assert lines[0] == "fake: 2 threads, int8x2"
    assert lines[1].split() == ["test", "tok/s", "range", "of", "limit", "MAC/cycle"]
    assert lines[2].split()[:7] == ["pp20", "@", "d8", "40.00", "40.0", "-", "40.0"]
    assert lines[3].split()[:4] == ["tg4", "@", "d8", "100.00"]
    assert "first token 0.25 s" in lines[4] and "peak" in lines[4]
    assert lines[5].startswith("limits: read 0.0 GB/s")


def test_shares_of_the_limit(call):
    """By hand, from the fake's constants: 32 x 32 q8_0, 32 f32, a 50 x 32 f16 head."""
    record = bench(call, "fake", "-p", "20", "-n", "4", "-d", "8")
    stored = 32 * 32 // 32 * 34 + 32 * 4 + 50 * 32 * 2
    cached = 2 * 2 * 2 * 8 * 2  # K and V, layers, heads, width, bytes
    assert record["tg_of_limit"] == round(100 * (stored + cached * (8 + 1 + 2.5)) / 1e6, 3)
    attention = 2 * 2 * 4 * 8 * (20 * 8 + 20 * 21 / 2) / 1e5
    seconds = 20 * 32 * 32 / 2e5 + 50 * 32 / 1e5 + attention  # int8x2: half of int8's peak
    assert record["pp_of_limit"] == pytest.approx(seconds / 0.5, abs=6e-4)
    assert record["limits"]["threads"] == record["threads"]
    macs = 20 * 32 * 32 + 50 * 32 + 2 * 2 * 4 * 8 * (20 * 8 + 20 * 21 / 2)
    assert record["pp_macs_per_cycle"] == round(macs / 0.5 / 1e4 / 2, 3)
    one_word = bench(call, "fake", "-p", "20", "-n", "0", "-d", "8", "--activations", "int8")
    assert one_word["pp_of_limit"] < record["pp_of_limit"] and one_word["tg_of_limit"] is None
    exact = bench(call, "fake", "-p", "20", "-n", "0", "-d", "8", "--activations", "f32")
    seconds = 2 * (20 * 32 * 32 / 1e5 + 50 * 32 / 1e5) + attention
    assert exact["pp_of_limit"] == pytest.approx(seconds / 0.5, abs=6e-4)


def test_no_limits(call):
    record = bench(call, "fake", "-p", "20", "-n", "4", "--no-limits")
    assert record["limits"] is record["tg_of_limit"] is record["pp_of_limit"] is None
    assert record["pp_macs_per_cycle"] is None
