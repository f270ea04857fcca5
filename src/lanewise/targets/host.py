"""What the machine at hand is: architecture, CPU features, model name.

Laws: features have Linux's names (/proc/cpuinfo); where that file tells nothing, NumPy's own
detection and the ARM auxiliary vector are asked; an unknown machine has no features, and so gets
the scalar model, never a program that dies of an illegal instruction.
"""

from __future__ import annotations

import platform
from dataclasses import dataclass
from functools import cache
from pathlib import Path

CPUINFO = Path("/proc/cpuinfo")

_ARCHES = {"x86_64": "x86_64", "amd64": "x86_64", "aarch64": "aarch64", "arm64": "aarch64"}

# NumPy's name of a feature (or group of features) -> Linux's names of what it implies.
_NUMPY_FEATURES = {
    "AVX2": "avx2", "FMA3": "fma", "F16C": "f16c",
    "X86_V3": "avx2 fma f16c bmi1 bmi2 movbe abm",
    "AVX512_SKX": "avx512f avx512cd avx512bw avx512dq avx512vl",
    "X86_V4": "avx512f avx512cd avx512bw avx512dq avx512vl",
    "AVX512_ICL": "avx512_vnni", "AVX512_CLX": "avx512_vnni",
    "NEON": "asimd", "ASIMDDP": "asimddp",
}  # fmt: skip
# (key of getauxval, bit) -> feature, from Linux's arch/arm64 uapi/asm/hwcap.h.
_HWCAPS = {(16, 1): "asimd", (16, 20): "asimddp", (26, 13): "i8mm"}


@dataclass(frozen=True, slots=True)
class Host:
    """``arch``: "x86_64", "aarch64" or what the platform calls itself; ``model`` may be ""."""

    arch: str
    features: frozenset[str]
    model: str


@cache
def host() -> Host:
    """The machine at hand; asked once per process."""
    machine = platform.machine().lower()
    arch = _ARCHES.get(machine, machine)
    try:
        text = CPUINFO.read_text(errors="replace")
    except OSError:
        text = ""
    features, model = parse_cpuinfo(text)
    if not features:
        features = _auxiliary() if arch == "aarch64" else _by_numpy()
    return Host(arch, features, model)


def parse_cpuinfo(text: str) -> tuple[frozenset[str], str]:
    """(features common to all CPUs listed, model name) of the text of /proc/cpuinfo.

    Cores of one machine may differ (ARM); a program may be moved between them.
    """
    features: frozenset[str] | None = None
    model = ""
    for line in text.splitlines():
        name, _, value = line.partition(":")
        name = name.strip()
        if name in ("flags", "Features"):
            found = frozenset(value.split())
            features = found if features is None else features & found
        elif name in ("model name", "Model") and not model:
            model = value.strip()
    return features or frozenset(), model


def _by_numpy() -> frozenset[str]:
    try:
        from numpy._core._multiarray_umath import (  # pyright: ignore
            __cpu_features__ as found,  # pyright: ignore
        )
    except ImportError:
        return frozenset()
    names: set[str] = set()
    for name, words in _NUMPY_FEATURES.items():
        if found.get(name):
            names.update(words.split())
    if {"avx2", "fma", "f16c"} <= names:
        # Every CPU with these three has the rest of x86-64-v3; NumPy does not name them.
        names.update(("bmi1", "bmi2", "movbe", "abm"))
    return frozenset(names)


def _auxiliary() -> frozenset[str]:
    import ctypes

    try:
        getauxval = ctypes.CDLL(None).getauxval
    except (OSError, AttributeError):
        return _by_numpy()
    getauxval.restype = ctypes.c_ulong
    getauxval.argtypes = [ctypes.c_ulong]
    return frozenset(name for (key, bit), name in _HWCAPS.items() if getauxval(key) >> bit & 1)
