"""The CPU target: what is chosen on which machine, what is refused, what compilers are told."""

from __future__ import annotations

from pathlib import Path

import pytest

from lanewise.errors import BuildError, UsageError
from lanewise.targets import host as hosts
from lanewise.targets.cpu import ISAS, CpuTarget, cpu_target, detect, supported
from lanewise.targets.host import Host, parse_cpuinfo
from lanewise.targets.null import NullTarget

V3 = "avx2 fma f16c bmi1 bmi2 movbe abm"
V4 = f"{V3} avx512f avx512cd avx512bw avx512dq avx512vl"


def machine(arch: str, features: str) -> Host:
    return Host(arch, frozenset(features.split()), "")


@pytest.mark.parametrize(
    ("arch", "features", "sets"),
    [
        ("x86_64", f"{V4} avx512_vnni sse2", "avx512 avx2 scalar"),
        ("x86_64", V4, "avx2 scalar"),  # AVX-512 without VNNI
        ("x86_64", V3, "avx2 scalar"),
        ("x86_64", "avx avx2 fma", "scalar"),  # without F16C
        ("x86_64", "", "scalar"),
        ("aarch64", "fp asimd asimddp i8mm", "neon_i8mm neon_dotprod neon scalar"),
        ("aarch64", "fp asimd asimddp", "neon_dotprod neon scalar"),
        ("aarch64", "fp asimd i8mm", "neon scalar"),  # a row needs all of its features
        ("aarch64", "fp asimd", "neon scalar"),
        ("aarch64", f"{V4} avx512_vnni", "scalar"),
    ],
)
def test_choice(arch: str, features: str, sets: str) -> None:
    host = machine(arch, features)
    assert supported(host) == tuple(sets.split())
    assert detect("auto", host).isa == sets.split()[0]
    assert detect("scalar", host) == CpuTarget("scalar", arch)
    for isa in sets.split():
        assert detect(isa, host) == CpuTarget(isa, arch)


def test_refusals() -> None:
    with pytest.raises(UsageError) as e:
        detect("avx512", machine("x86_64", V3))
    assert e.value.code == "usage.isa" and "avx512f" in e.value.message
    assert "avx2, scalar" in e.value.remedy
    with pytest.raises(UsageError) as e:
        detect("neon", machine("x86_64", V3))
    assert "aarch64" in e.value.message
    with pytest.raises(UsageError) as e:
        detect("neon_i8mm", machine("aarch64", "asimd asimddp"))
    assert "lacks i8mm" in e.value.message and "neon_dotprod, neon, scalar" in e.value.remedy
    with pytest.raises(UsageError) as e:
        detect("mmx", machine("x86_64", V3))
    assert e.value.code == "usage.isa"
    with pytest.raises(BuildError) as b:
        detect("auto", machine("riscv64", ""))
    assert b.value.code == "build.platform"


def test_setting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LANEWISE_ISA", "scalar")
    assert cpu_target().name == "cpu-scalar"
    monkeypatch.delenv("LANEWISE_ISA")
    assert cpu_target() == detect()


def test_flags() -> None:
    command = CpuTarget("avx512", "x86_64").compile_command(
        "a.cpp", Path("a.o"), ("LW_FORMAT=q4_1",), ("inc",)
    )
    assert command[:3] == ["-target", "x86_64-linux-gnu", "-mcpu=x86_64_v4+avx512vnni"]
    assert command[-6:] == ["-DLW_FORMAT=q4_1", "-Iinc", "-c", "a.cpp", "-o", "a.o"]
    for flag in ("-O2", "-ffp-contract=off", "-fno-math-errno", "-fno-exceptions", "-std=c++17"):
        assert flag in command
    assert not [x for x in command if "fast" in x]
    assert "-fvisibility=default" not in command
    assert CpuTarget("avx2", "x86_64").flags("gcc")[0] == "-march=x86-64-v3"
    assert CpuTarget("avx2", "x86_64").flags("clang")[0] == "--target=x86_64-linux-gnu"
    arm = detect("auto", machine("aarch64", "asimd asimddp i8mm"))
    assert arm.flags()[2] == "-mcpu=generic+dotprod+i8mm"
    assert arm.flags("gcc")[0] == "-march=armv8.2-a+dotprod+i8mm"
    assert detect("auto", machine("aarch64", "asimd")).flags()[2] == "-mcpu=generic"
    assert detect("neon", machine("aarch64", "asimd asimddp i8mm")).flags()[2] == "-mcpu=generic"
    # Objects and programs of every set are keyed apart.
    arms = [CpuTarget(isa, "aarch64") for isa, (arch, _) in ISAS.items() if arch != "x86_64"]
    for family in ("zig", "clang", "gcc"):
        assert len({t.flags(family) for t in arms}) == len({t.name for t in arms}) == 4
    assert "-DLW_SCALAR" in CpuTarget("scalar", "x86_64").flags()
    link = CpuTarget("avx2", "x86_64").link_command(["a.o"], "a.so")
    assert {"-shared", "-nostdlib", "a.o"} <= set(link)


def test_cpuinfo() -> None:
    text = (
        "processor\t: 0\nmodel name\t: Some CPU\nflags\t\t: fpu avx2 fma\n\n"
        "processor\t: 1\nmodel name\t: Some CPU\nflags\t\t: fpu avx2\n"
    )
    assert parse_cpuinfo(text) == (frozenset({"fpu", "avx2"}), "Some CPU")
    arm = "processor\t: 0\nFeatures\t: fp asimd asimddp\n"
    assert parse_cpuinfo(arm) == (frozenset({"fp", "asimd", "asimddp"}), "")
    assert parse_cpuinfo("") == (frozenset(), "")


def test_without_cpuinfo(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    real = supported()
    monkeypatch.setattr(hosts, "CPUINFO", tmp_path / "absent")
    hosts.host.cache_clear()
    try:
        assert supported(hosts.host()) == real  # two sources, one answer
    finally:
        hosts.host.cache_clear()


def test_null() -> None:
    target = NullTarget()
    assert target.name == "null" and target.flags() == ()
    with pytest.raises(BuildError) as e:
        target.compile_command("a.cpp", "a.o")
    assert e.value.code == "build.null"
