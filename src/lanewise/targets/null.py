"""The null target: plans and programs for it can be made and read, and never built or run.

It lets every stage before the compiler be tested on a machine without one.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

from lanewise.errors import BuildError


@dataclass(frozen=True, slots=True)
class NullTarget:
    """A target with `CpuTarget`'s surface that refuses to compile (BuildError ``build.null``)."""

    isa: str = "scalar"
    arch: str = ""

    @property
    def name(self) -> str:
        return "null"

    def flags(self, family: str = "zig") -> tuple[str, ...]:
        return ()

    def compile_command(
        self,
        source: Path | str,
        output: Path | str,
        defines: Iterable[str] = (),
        includes: Iterable[Path | str] = (),
        *,
        family: str = "zig",
        export: bool = False,
    ) -> NoReturn:
        raise _refusal()

    def link_command(
        self, objects: Sequence[Path | str], output: Path | str, *, family: str = "zig"
    ) -> NoReturn:
        raise _refusal()


def _refusal() -> BuildError:
    return BuildError(
        "build.null", "the null target cannot be built", remedy="plan for a CPU target instead"
    )
