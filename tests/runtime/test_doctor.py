"""The doctor: a row for every question, and a remedy where something is wrong."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest

from lanewise.errors import RunError
from lanewise.runtime import cache, cpus, doctor
from lanewise.runtime.doctor import Row
from lanewise.targets.cpu import detect
from lanewise.targets.host import Host


def by_name() -> dict[str, Row]:
    found = doctor.rows()
    names = [r.name for r in found]
    assert len(set(names)) == len(names)
    assert all(r.remedy for r in found if not r.ok)
    return {r.name: r for r in found}


def test_a_sound_machine(cache_dir: Path) -> None:
    found = by_name()
    assert all(r.ok for r in found.values()), found
    assert detect().isa in found["instruction set"].value
    assert found["compiler"].value.startswith("zig ")
    assert found["compiles and runs"].value.startswith("yes")
    assert found["cache"].value == str(cache_dir)
    assert "numpy" in found["packages"].value
    assert not [e for e in cache.entries() if e.kind.startswith("tmp")]


def test_the_instruction_set_of_an_arm(monkeypatch: pytest.MonkeyPatch) -> None:
    arm = Host("aarch64", frozenset(("asimd", "asimddp", "i8mm")), "")
    monkeypatch.setattr("lanewise.targets.cpu.host", lambda: arm)
    (row,) = doctor._isa()
    assert row.value == "neon_i8mm (can run: neon_i8mm, neon_dotprod, neon, scalar)"
    assert not row.remedy
    monkeypatch.setenv("LANEWISE_ISA", "neon_dotprod")
    (row,) = doctor._isa()
    assert row.value.startswith("neon_dotprod") and "neon_i8mm would be faster" in row.remedy


def test_a_broken_compiler(
    cache_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "cxx"
    path.write_text("#!/bin/sh\n[ $1 = --version ] && echo clang version 1 && exit\nexit 7\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("LANEWISE_CXX", str(path))
    found = by_name()
    assert found["compiler"].ok and not found["compiles and runs"].ok
    assert "exit status 7" in found["compiles and runs"].value
    monkeypatch.setenv("LANEWISE_CXX", "/nowhere")
    found = by_name()
    assert not found["compiler"].ok and "build.compiler" in found["compiler"].value


def test_a_cache_that_cannot_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("LANEWISE_CACHE_DIR", str(tmp_path / "file"))
    found = [r for r in doctor.rows() if not r.ok]
    assert found and all(r.remedy for r in found)
    assert any("build.cache" in r.value for r in found)


def test_advice(cache_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    never = tmp_path / "enabled"
    never.write_text("always madvise [never]\n")
    monkeypatch.setattr(doctor, "HUGE_PAGES", never)
    monkeypatch.setattr(doctor, "_compiles", lambda: iter(()))
    monkeypatch.setattr(cpus, "cpu_quota", lambda: 0.5)
    monkeypatch.setenv("LANEWISE_THREADS", "3")
    monkeypatch.setenv("LANEWISE_ISA", "scalar")
    found = by_name()
    assert found["huge pages"].value == "never" and "madvise" in found["huge pages"].remedy
    assert found["threads"].value == "3" and "set it to 1" in found["threads"].remedy
    assert "quota 0.5" in found["CPUs"].value
    assert found["instruction set"].remedy


def test_nothing_raises(cache_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def dies() -> None:
        raise RuntimeError("no")

    def refuses() -> None:
        raise RunError("run.x", "no", remedy="do")

    monkeypatch.setattr(doctor, "_QUESTIONS", (("a", dies), ("b", refuses)))
    assert doctor.rows() == [
        Row("a", "RuntimeError: no", False, "please report this"),
        Row("b", "no [run.x]", False, "do"),
    ]
