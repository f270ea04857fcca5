"""perplexity: windows, and the value against its definition computed another way."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest

from lanewise.cli import common
from lanewise.cli.perplexity import nll, windows
from lanewise.errors import UsageError
from tests.cli import fake


@pytest.mark.parametrize(
    ("count", "window", "stride", "expected"),
    [
        (10, 4, 4, [(0, 1, 4), (4, 5, 8), (8, 9, 10)]),
        (9, 4, 4, [(0, 1, 4), (4, 5, 8)]),  # a window of one token scores nothing
        (10, 4, 2, [(0, 1, 4), (2, 4, 6), (4, 6, 8), (6, 8, 10)]),
        (3, 8, 8, [(0, 1, 3)]),
        (1, 8, 8, []),
    ],
)
def test_windows(count, window, stride, expected):
    assert list(windows(count, window, stride)) == expected


@pytest.mark.parametrize("stride", [1, 2, 3, 5, 8])
def test_no_token_is_scored_twice(stride):
    scored = [t for _, first, end in windows(50, 8, stride) for t in range(first, end)]
    assert len(scored) == len(set(scored))
    if stride < 8:
        assert scored == list(range(1, 50)), "with overlap all but the very first token"


def test_nll_is_the_definition():
    rng = np.random.default_rng(3)
    logits = rng.normal(0, 10, (200, 7)).astype(np.float32)
    ids = rng.integers(0, 7, 200).tolist()
    expected = []
    for t in range(199):
        row = [math.exp(float(x)) for x in logits[t]]
        expected.append(-math.log(row[ids[t + 1]] / math.fsum(row)))
    np.testing.assert_allclose(nll(logits, ids), expected, rtol=1e-12, atol=1e-12)


def test_large_logits_do_not_overflow():
    assert nll(np.array([[5000.0, 0.0], [0, 0]], np.float32), [0, 1])[0] == 5000.0


def test_the_command(call, tmp_path):
    """The fake gives the token itself logit 1 and 49 others 0: p(same) = e / (e + 49)."""
    same = -math.log(math.e / (math.e + 49))
    other = -math.log(1 / (math.e + 49))
    path = tmp_path / "text"
    path.write_text("aab")  # two tokens scored: one the same as before it, one another
    result = call("perplexity", "fake", str(path), "--json")
    record = json.loads(result.stdout)
    assert record["perplexity"] == pytest.approx(math.exp((same + other) / 2), rel=1e-6)
    assert record["tokens"] == 2 and record["windows"] == 1 and record["window"] == 512
    assert record["nll_error"] == pytest.approx((other - same) / 2 / math.sqrt(2), rel=1e-6)
    assert fake.FakeLane.last.options["context"] is None
    plain = call("perplexity", "fake", "-", "-c", "2", stdin="aabb")
    first, second, last = plain.stdout.splitlines()
    assert first.startswith("1/2  1 tokens  perplexity ")
    assert f"{math.exp(same):.4f}" in first and last.startswith(f"perplexity {math.exp(same):.4f}")
    assert second.startswith("2/2  2 tokens")


@pytest.mark.parametrize("end", ["", "\n", "\r\n", "\n\n"])
def test_stdin_is_the_text_as_a_file_is(call, tmp_path, end):
    path = tmp_path / "text"
    path.write_bytes(f"aab{end}".encode())
    asked = []
    for args in ([str(path)], ["-"], ["-", "--limit", "9"]):
        record = json.loads(call("perplexity", "fake", *args, "--json", stdin=f"aab{end}").stdout)
        asked.append((record["perplexity"], fake.FakeLane.last.calls))
    ids = [b % fake.VOCAB for b in path.read_bytes()]
    assert asked[0][1] == [(ids, {})] and asked[1] == asked[0] == asked[2]


def test_too_little_text(call):
    result = call("perplexity", "fake", "-", stdin="a")
    assert result.exit_code == 2 and "error[usage.text]: -: the text has 1 tokens" in result.stderr


def test_a_logit_that_is_not_finite_is_an_error(call, monkeypatch):
    monkeypatch.setattr(
        fake.FakeLane, "logits", lambda self, ids: np.full((len(ids), 50), np.nan, np.float32)
    )
    result = call("perplexity", "fake", "-", stdin="abc")
    assert result.exit_code == 1 and "error[run.not_finite]" in result.stderr


def test_a_limit_reads_no_more_than_it_takes(call, tmp_path):
    """Of a long file the start; what is no text lies behind it, and a cut character at its end."""
    path = tmp_path / "text"
    text = ("é" + "ab" * 9) * 30_000
    path.write_bytes(text.encode() + b"\xff")
    args = ("-c", "8", "--stride", "5", "--json")
    found = json.loads(call("perplexity", "fake", str(path), *args, "--limit", "3").stdout)
    path.write_text(text[:40])
    whole = json.loads(call("perplexity", "fake", str(path), *args, "--limit", "3").stdout)
    assert found.pop("seconds") >= 0 <= whole.pop("seconds")
    assert found == whole and found["windows"] == 3 and found["tokens"] == 17
    path.write_bytes(text.encode() + b"\xff")
    result = call("perplexity", "fake", str(path), *args)
    assert result.exit_code == 2 and f"(byte {len(text.encode())})" in result.stderr


@pytest.mark.parametrize("size", [1, 2, 3, 5, 100])
def test_a_text_comes_in_pieces(tmp_path, size):
    path = tmp_path / "text"
    data = "a€b𝄞".encode()
    path.write_bytes(data)
    with common.Text(str(path)) as text:
        known, whole = text.start(size)
        assert known == data[:size].decode("utf-8", "ignore") and whole == (size > len(data))
        assert text.start(size + 4)[0] == data[: size + 4].decode("utf-8", "ignore")
        assert text.start() == (data.decode(), True)
    path.write_bytes(data[:-1])
    with common.Text(str(path)) as text, pytest.raises(UsageError, match=r"byte 5\b"):
        text.start(6)
        text.start()
