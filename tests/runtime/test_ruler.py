"""The ruler: rates of this machine, by another way of measuring where there is one."""

from __future__ import annotations

import time
from dataclasses import replace

import numpy as np
import pytest

from lanewise.plan.program import KernelObject
from lanewise.runtime.build import build_units, kernel_unit
from lanewise.runtime.ruler import KINDS, Limits, measure, shown
from lanewise.targets.cpu import CpuTarget


@pytest.fixture(scope="module")
def limits() -> Limits:
    return measure(1, nbytes=64 << 20, runs=3)


def test_reading_is_about_as_fast_as_numpy(limits: Limits) -> None:
    data = np.ones(64 << 17, np.int64)
    took = []
    for _ in range(5):
        began = time.perf_counter()
        data.max()
        took.append(time.perf_counter() - began)
    ours, theirs = limits.read, data.nbytes / min(took)
    assert theirs / 4 < ours < theirs * 20


def test_multiply_adds_are_of_a_machine_that_exists(limits: Limits) -> None:
    found = {kind: getattr(limits, kind) for kind in KINDS}
    assert 1e8 < found["f32"] < 3e11
    if limits.isa in ("avx2", "avx512"):
        # Twice the lanes, and four times: never less than f32 by more than the noise of a machine.
        assert found["int8"] > found["f32"] / 2 and 1e8 < found["int16"] < 1e12
        assert found["int8"] < 1e12
    # Products of pairs: at most two for each of a word's, and at the least their half.
    if limits.isa == "avx512":
        assert found["int16"] / 2 < found["pairs"] < 3 * found["int16"]
    else:
        assert found["pairs"] == 0.0


@pytest.mark.parametrize("isa", ["neon_i8mm", "neon_dotprod", "neon"])
def test_it_compiles_for_another_machine(isa: str) -> None:
    unit = kernel_unit(KernelObject("ruler.cpp", (), ()), export=True)
    raw = np.fromfile(build_units([unit], CpuTarget(isa, "aarch64")), np.uint8)
    text = raw[: raw.size // 4 * 4].view(np.uint32)
    usmmla = (text & np.uint32(0xFFE0FC00)) == 0x4E80AC00
    assert usmmla.any() == (isa == "neon_i8mm")


def test_peaks_of_recipes() -> None:
    x = Limits("avx2", 2, 1e10, 1e11, 8e11, 3e11)
    assert [x.peak(r) for r in ("int8", "int8x2", "f32", "f64")] == [8e11, 4e11, 1e11, 5e10]
    assert x.record() == {
        "isa": "avx2", "threads": 2, "read": 10.0, "f32": 100.0, "int8": 800.0, "int16": 300.0,
        "pairs": 0.0, "clock": 0.0,
    }  # fmt: skip
    assert shown(x.record()) == "100 (f32), 800 (int8), 300 (int16)"
    paired = replace(x, int8=4e11, pairs=3.5e11)
    assert [paired.peak(r) for r in ("int8", "int8x2")] == [4e11, 3.5e11]
    assert shown(paired.record()) == "100 (f32), 400 (int8), 300 (int16), 350 (pairs)"
    assert x.per_cycle(6e9) is None
    assert replace(x, clock=3e9).per_cycle(6e10) == 10.0  # of each of 2 threads


def test_the_clock_is_of_a_machine_that_exists(limits: Limits) -> None:
    """No core does more than 4 vectors of multiply-adds a cycle; on x86 none has done less than
    half a vector, whatever else the machine does meanwhile."""
    assert 1e8 < limits.clock < 8e9
    lanes = {"avx512": 16, "avx2": 8}.get(limits.isa, 4)
    each = limits.per_cycle(limits.f32)
    assert each is not None and lanes / 8 < each < 16 * lanes
