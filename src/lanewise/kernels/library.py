"""What must be compiled of the kernel library, as data."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class KernelObject:
    """One compiled unit of the kernel library: a source file under `kernels/<target>/`, its
    preprocessor definitions ("LW_FORMAT=q4_1") and the symbols that it exports."""

    source: str
    defines: tuple[str, ...]
    symbols: tuple[str, ...]
