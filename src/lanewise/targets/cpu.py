"""The CPU target: which instruction set, and how a compiler is asked for it.

Laws: one instruction set per program, chosen from what the CPU has (LANEWISE_ISA overrides it,
and a set that the CPU lacks is refused before anything runs); the flags are part of every cached
object's key; objects are freestanding, so that one triple serves glibc and musl alike.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from lanewise.errors import BuildError, UsageError
from lanewise.targets.host import Host, host

# What compilers take x86-64-v3 to have, and may use without being asked by name.
_V3 = "avx2 fma f16c bmi1 bmi2 movbe abm"

# The sets, best first: (architecture, features that the CPU must have).
ISAS: dict[str, tuple[str, str]] = {
    "avx512": ("x86_64", f"{_V3} avx512f avx512bw avx512cd avx512dq avx512vl avx512_vnni"),
    "avx2": ("x86_64", _V3),
    "neon_i8mm": ("aarch64", "asimd asimddp i8mm"),
    "neon_dotprod": ("aarch64", "asimd asimddp"),
    "neon": ("aarch64", "asimd"),
    "scalar": ("", ""),
}

# No contraction and no fast-math: a fused multiply-add is an op that a recipe names.
COMMON_FLAGS = (
    "-O2", "-ffp-contract=off", "-fno-math-errno", "-fno-exceptions", "-fno-rtti", "-std=c++17",
    "-fno-stack-protector", "-fvisibility=hidden", "-fPIC", "-g0", "-fomit-frame-pointer",
)  # fmt: skip

# Compiler family -> (its flag for the set); zig has its own names for CPUs.
_ISA_FLAGS: dict[tuple[str, str], tuple[str, ...]] = {
    ("avx512", "zig"): ("-mcpu=x86_64_v4+avx512vnni",),
    ("avx512", ""): ("-march=x86-64-v4", "-mavx512vnni"),
    ("avx2", "zig"): ("-mcpu=x86_64_v3",),
    ("avx2", ""): ("-march=x86-64-v3",),
    ("neon_i8mm", "zig"): ("-mcpu=generic+dotprod+i8mm",),
    ("neon_i8mm", ""): ("-march=armv8.2-a+dotprod+i8mm",),
    ("neon_dotprod", "zig"): ("-mcpu=generic+dotprod",),
    ("neon_dotprod", ""): ("-march=armv8.2-a+dotprod",),
    ("neon", "zig"): ("-mcpu=generic",),
    ("neon", ""): ("-march=armv8-a",),
    ("scalar", "zig"): ("-DLW_SCALAR",),
    ("scalar", ""): ("-DLW_SCALAR",),
}


@dataclass(frozen=True, slots=True)
class CpuTarget:
    """One instruction set (a row of `ISAS`) of one architecture."""

    isa: str
    arch: str

    @property
    def name(self) -> str:
        """Such as "cpu-avx512"."""
        return f"cpu-{self.isa}"

    def flags(self, family: str = "zig") -> tuple[str, ...]:
        """What a compiler of the family ("zig", "clang" or "gcc") is told for every unit."""
        triple = {
            "zig": ("-target", f"{self.arch}-linux-gnu"),
            "clang": (f"--target={self.arch}-linux-gnu",),
        }.get(family, ())
        return (*triple, *_ISA_FLAGS[self.isa, "zig" if family == "zig" else ""], *COMMON_FLAGS)

    def compile_command(
        self,
        source: Path | str,
        output: Path | str,
        defines: Iterable[str] = (),
        includes: Iterable[Path | str] = (),
        *,
        family: str = "zig",
        export: bool = False,
    ) -> list[str]:
        """Arguments, after the compiler's own words, that turn a source file into an object.

        ``export``: what the unit defines can be seen from outside the library it is linked into.
        """
        return [
            *self.flags(family),
            *(("-fvisibility=default",) if export else ()),
            *(f"-D{d}" for d in defines),
            *(f"-I{i}" for i in includes),
            "-c", str(source), "-o", str(output),
        ]  # fmt: skip

    def link_command(
        self, objects: Sequence[Path | str], output: Path | str, *, family: str = "zig"
    ) -> list[str]:
        """Arguments that link objects into a shared library; no runtime of the compiler's own
        (building those costs a minute), so that memcpy and the like come from the process."""
        triple = self.flags(family)[: {"zig": 2, "clang": 1}.get(family, 0)]
        return [
            *triple, "-shared", "-nostdlib", "-Wl,-Bsymbolic", "-Wl,-z,noexecstack",
            *map(str, objects), "-o", str(output),
        ]  # fmt: skip


def supported(machine: Host | None = None) -> tuple[str, ...]:
    """Instruction sets that the machine (default: the one at hand) can run, best first."""
    machine = machine or host()
    return tuple(
        isa
        for isa, (arch, needs) in ISAS.items()
        if arch in ("", machine.arch) and machine.features.issuperset(needs.split())
    )


def detect(isa: str = "auto", machine: Host | None = None) -> CpuTarget:
    """The target for the machine: its best instruction set ("auto"), or the one named.

    Raises UsageError ``usage.isa`` for a name that is not in the table or that this CPU lacks,
    BuildError ``build.platform`` for an architecture that nothing is written for.
    """
    machine = machine or host()
    if machine.arch not in ("x86_64", "aarch64"):
        raise BuildError(
            "build.platform", f"no code is generated for {machine.arch or 'this machine'}",
            remedy="run on x86-64 or 64-bit ARM",
        )  # fmt: skip
    can = supported(machine)
    isa = "" if isa == "auto" else isa
    if isa and isa not in ISAS:
        raise UsageError(
            "usage.isa", f"no instruction set {isa!r}", place="LANEWISE_ISA",
            remedy=f"one of: {', '.join(can)}",
        )  # fmt: skip
    if isa and isa not in can:
        arch, needs = ISAS[isa]
        lacks = sorted(set(needs.split()) - machine.features) if arch == machine.arch else [arch]
        raise UsageError(
            "usage.isa", f"this CPU cannot run {isa!r} (it lacks {', '.join(lacks)})",
            place="LANEWISE_ISA", remedy=f"unset it, or choose one of: {', '.join(can)}",
        )  # fmt: skip
    return CpuTarget(isa or can[0], machine.arch)


def cpu_target() -> CpuTarget:
    """The target of this process: `detect` with the setting ``isa`` (LANEWISE_ISA)."""
    from lanewise import settings

    return detect(settings.get("isa"))
