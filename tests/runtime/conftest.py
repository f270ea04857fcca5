"""Small programs written by hand, a cache of their own for each test, and the machine's target."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from lanewise.plan.program import KernelObject, Program
from lanewise.targets.cpu import CpuTarget, detect

TEXT = """
extern "C" int lw_test_answer(int x) { return x + %d; }
"""


@pytest.fixture
def cache_dir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "cache"
    monkeypatch.setenv("LANEWISE_CACHE_DIR", str(path))
    monkeypatch.delenv("LANEWISE_CXX", raising=False)
    monkeypatch.delenv("LANEWISE_ISA", raising=False)
    return path


@pytest.fixture(scope="session")
def target() -> CpuTarget:
    return detect()


@pytest.fixture
def make_program() -> Callable[..., Program]:
    def make(number: int = 1, text: str = "", objects: tuple[KernelObject, ...] = ()) -> Program:
        return Program(
            text=text or TEXT % number, identity=f"test-{number}", target="cpu", objects=objects,
            buffers=(), constants=(), forms=(), scalars=(), arena_bytes=0, private_bytes=0,
            scratch_bytes=0,
        )  # fmt: skip

    return make
