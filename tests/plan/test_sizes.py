"""Sizes that the planner and the headers must agree on: asked of the headers themselves."""

from __future__ import annotations

import pytest

from lanewise.ir.graph import Type
from lanewise.kernels.layout import act_bytes, attention_scratch, packed_bytes, product_scratch
from lanewise.kernels.library import KernelObject
from lanewise.quant.format import FORMATS
from lanewise.runtime.build import Unit, build_units, kernel_unit
from lanewise.runtime.library import Library
from lanewise.targets.cpu import cpu_target
from tests.native import packers

SMALL = ("f8_e4m3", "f8_e5m2")  # of this package's own, a byte an element
NATIVE = (
    "f32", "f16", "bf16", "q8_0", "q4_0", "q4_1", "q5_0", "q5_1", "q4_k", "q5_k", "q6_k", *SMALL,
)  # fmt: skip


def unit(source: str, *defines: str) -> Library:
    made = kernel_unit(KernelObject(source, defines, ()), export=True)
    return Library(build_units([made], cpu_target()))


@pytest.mark.parametrize("fmt", NATIVE)
def test_packed_bytes(fmt: str) -> None:
    native = packers((fmt,), cpu_target()).function(f"lw_packed_bytes_{fmt}", "lll")
    block, row_bytes = (1, int) if fmt in SMALL else (FORMATS[fmt].block, FORMATS[fmt].row_bytes)
    for n in (1, 16, 17, 40, 576):
        for blocks in (1, 2, 3, 18):
            k = block * blocks
            assert packed_bytes(Type(fmt, (n, k))) == native(n, k), (n, k)
            if n % 16 == 0 and n * k >= 1 << 14:
                assert native(n, k) <= 1.03 * n * row_bytes(k)


@pytest.mark.parametrize("recipe", ["int8x2", "int8"])
def test_activation_bytes(recipe: str) -> None:
    native = unit("activations.cpp").function(f"lw_act_bytes_{recipe}", "ll")
    for k in (32, 64, 96, 576, 1536, 8192):
        assert act_bytes(recipe, k) == native(k)


@pytest.mark.parametrize("kv", ["f16", "f32"])
def test_attention_scratch_is_enough(kv: str) -> None:
    native = unit("attention.cpp", f"LW_KV={kv}").function(f"lw_attention_scratch_{kv}", "lll")
    for d in (8, 64, 128, 256):
        for group in (1, 3, 4, 8, 16):
            assert attention_scratch(d, group) >= native(d, group), (d, group)


def test_product_scratch_is_enough() -> None:
    """The function is inline in matmul.h: a program of one line asks it."""
    program = b"""#include "matmul.h"
extern "C" __attribute__((visibility("default"))) int64_t f() {
  return lw_matmul_scratch(8192, 256);
}"""
    library = Library(build_units([Unit("size", program, (), True)], cpu_target()))
    assert product_scratch(8192, 256) >= library.function("f", "l")()
