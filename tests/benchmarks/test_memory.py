"""Memory and time of starts: what is counted, and what becomes of given counts."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks import memory
from lanewise import settings
from lanewise.runtime import weights
from tests.models.support import GOLDEN

LINUX = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")


def told(**more: Any) -> dict[str, Any]:
    base = {"first_s": 1.0, "pack_s": 0.0, "load_s": 0.25, "base": 10, "opened_peak": 90,
            "peak": 150, "kv": 30, "arena": 20, "packed": 100, "anon": 99, "mapped": 5}  # fmt: skip
    return base | more


def test_ratios_of_given_counts() -> None:
    first = told(first_s=9.0, pack_s=2.0, peak=300, packed=4 * 10**9)
    others = [told(), told(first_s=0.5, peak=165), told(first_s=2.0, load_s=0.5)]
    found = memory.record("a/m.gguf", 100, first, others, 0.125)
    assert (found["model"], found["file"], found["pack_gb_s"]) == ("m.gguf", 100, 2.0)
    assert found["first"]["needed"] == 150 and found["first"]["of_needed"] == 2.0
    assert found["first"]["beyond_load_s"] == 9.0 - 2.0 - 0.25
    # Times are medians, but the peak is the worst.
    second = found["second"]
    assert (second["peak"], second["of_needed"], second["first_s"]) == (165, 1.1, 1.0)
    assert (second["beyond_load_s"], second["beyond_read_s"]) == (0.75, 0.875)


@LINUX
def test_a_peak_is_a_peak() -> None:
    before = memory.status("VmHWM")
    data = np.ones(64 << 20, np.uint8)
    del data
    after = memory.status("VmHWM")
    assert after >= memory.status("VmRSS") > 0
    assert after >= before and after > 64 << 20


def test_stages_are_timed_also_when_they_fail(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in memory.STAGES:
        assert callable(getattr(weights, name))
        monkeypatch.setattr(weights, name, lambda: time.sleep(0.02))
    monkeypatch.setattr(weights, "_pack", lambda: 1 / 0)
    took: dict[str, float] = {}
    memory.watched(took)
    weights._read()  # type: ignore[call-arg]
    weights._read()  # type: ignore[call-arg]
    with pytest.raises(ZeroDivisionError):
        weights._pack()  # type: ignore[call-arg]
    assert took["_read"] >= 0.04 and took["_pack"] > 0 and "_map" not in took


def test_a_plain_read_reads_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "weights"
    path.write_bytes(bytes(1000))
    monkeypatch.setattr(memory, "_PIECE", 64)
    assert memory.read_s(path, 3) > 0
    monkeypatch.setattr(memory.os, "preadv", lambda *of: 1)
    with pytest.raises(RuntimeError, match="not read whole"):
        memory.read_s(path, 1)


@LINUX
def test_a_tiny_model(capsys: pytest.CaptureFixture[str]) -> None:
    model = str(GOLDEN / "llama_tied.q8_0.gguf")
    kernels = str(settings.cache_path())
    Path(kernels, "cpu").mkdir(parents=True, exist_ok=True)
    memory.main([model, "--context", "64", "--starts", "2", "--threads", "1", "--kernels", kernels,
                 "--json"])  # fmt: skip
    (found,) = json.loads(capsys.readouterr().out)["rows"]
    first, second = found["first"], found["second"]
    assert found["file"] == Path(model).stat().st_size
    assert first["pack_s"] > 0 and second["pack_s"] == 0  # packed once
    assert 0 < second["load_s"] < second["first_s"]
    # 2 layers, 64 positions, 2 heads of 8, keys and values in two bytes.
    assert second["kv"] == 2 * 64 * 2 * 8 * 2 * 2
    assert second["needed"] == found["file"] + second["kv"] + second["arena"]
    assert second["base"] < second["opened_peak"] <= second["peak"]


@LINUX
def test_a_start_that_fails_is_told(tmp_path: Path) -> None:
    args = memory.options(["no-such-file.gguf", "--starts", "1"])
    with pytest.raises(RuntimeError, match="no-such-file"):
        memory.started("no-such-file.gguf", tmp_path, args)
