"""A Program made into a shared library: compile what is new, link, and keep all of it by key.

Laws: a key covers everything that decides an object's bytes (source, the whole set of headers,
definitions, flags, the compiler's identity); what the cache proves is used, anything else is made
again; units compile in parallel, as many at a time as this process has CPUs.  A kernel object is
shared by every program that asks for the same source and definitions.
"""

from __future__ import annotations

import errno
import hashlib
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from functools import cache as memo
from pathlib import Path
from typing import Any, Protocol

from lanewise import disk
from lanewise.errors import BuildError
from lanewise.plan.program import KernelObject, Program
from lanewise.runtime import cache, compiler
from lanewise.runtime.compiler import Compiler, Outcome
from lanewise.runtime.cpus import available_cpus

Progress = Callable[[str, int, int, str], object]
KERNELS = Path(__file__).resolve().parents[1] / "kernels" / "cpu"
_LINES = 12
_NO_SPACE = ("no space left", "nospaceleft", "disk quota exceeded")


class Target(Protocol):
    """What the build asks of a target (`targets.cpu.CpuTarget`)."""

    @property
    def name(self) -> str: ...
    def flags(self, family: str = "zig") -> tuple[str, ...]: ...
    def compile_command(
        self, source: Any, output: Any, defines: Any = (), includes: Any = (), *,
        family: str = "zig", export: bool = False,
    ) -> list[str]: ...  # fmt: skip
    def link_command(self, objects: Any, output: Any, *, family: str = "zig") -> list[str]: ...


@dataclass(frozen=True, slots=True)
class Unit:
    """One thing to compile: ``label`` for people, its ``text``, definitions; ``export``: its
    functions can be called from outside (a program's text, the runtime)."""

    label: str
    text: bytes
    defines: tuple[str, ...] = ()
    export: bool = False


def build(program: Program, target: Target, progress: Progress | None = None) -> Path:
    """The shared library of a program, from the cache or compiled now.

    ``progress("compile", done, total, detail)`` is called as units are finished; a library that
    was there reports once, with detail "cached".  Raises BuildError ``build.compile`` (the
    compiler refused a unit), ``build.link``, ``build.compiler``, ``build.disk_full``,
    ``build.cache``.
    """
    units = [kernel_unit(o) for o in program.objects]
    units.append(Unit("program", program.text.encode(), export=True))
    return build_units(units, target, progress)


def kernel_unit(made: KernelObject, *, export: bool = False) -> Unit:
    """The unit of a kernel object.  Raises BuildError ``build.kernel`` if its file is missing."""
    path = KERNELS / made.source
    try:
        text = path.read_bytes()
    except OSError as e:
        raise BuildError(
            "build.kernel", f"the kernel source cannot be read: {e.strerror or e}",
            place=str(path), remedy="reinstall lanewise",
        ) from e  # fmt: skip
    label = " ".join([made.source, *made.defines]).replace('"', "")
    return Unit(label, text, made.defines, export)


@memo
def headers_digest(folder: Path) -> str:
    """One digest over every header that a unit could include; read once per process."""
    h = hashlib.sha256()
    for path in sorted(p for p in folder.glob("*") if p.suffix in (".h", ".inc")):
        h.update(cache.key(path.name, path.read_bytes()).encode())
    return h.hexdigest()


def build_units(units: Sequence[Unit], target: Target, progress: Progress | None = None) -> Path:
    """The shared library linked from units; as `build`."""
    tool = compiler.find()
    common = cache.key(headers_digest(KERNELS), tool.identity, *target.flags(tool.family))
    names = [cache.key(common, u.text, str(u.export), *u.defines) for u in units]
    name = cache.key(common, "link", *target.link_command((), "", family=tool.family), *names)
    library = cache.path_of("cpu/lib", name, ".so")
    total = len(units)
    if cache.valid(library, name):
        _tell(progress, total, total, "cached")
        return library
    with cache.workspace() as work, cache.turn():
        if cache.valid(library, name):  # another process made it while this one waited
            _tell(progress, total, total, "cached")
            return library
        objects = _objects(dict(zip(names, units, strict=True)), target, tool, work, progress)
        made = work / "library.so"
        command = target.link_command(objects, made, family=tool.family)
        said = compiler.run([*tool.words, *command], work)
        if said.status != 0 or not made.is_file():
            raise _failure("build.link", "linking failed", "", said, tool)
        return cache.publish(made, library, name)


def _tell(progress: Progress | None, done: int, total: int, detail: str) -> None:
    if progress is not None:
        progress("compile", done, total, detail)


def _objects(
    units: dict[str, Unit], target: Target, tool: Compiler, work: Path, progress: Progress | None
) -> list[Path]:
    """The object of every unit, made where the cache has none that it can prove."""
    found = {name: cache.path_of("cpu/obj", name, ".o") for name in units}
    missing = [name for name, path in found.items() if not cache.valid(path, name)]
    # A program's text takes longest; what is started first is finished first.
    missing.sort(key=lambda name: -len(units[name].text))
    done, total = len(units) - len(missing), len(units)
    _tell(progress, done, total, "")
    runs = compiler.Runs()
    pool = ThreadPoolExecutor(max_workers=max(1, min(len(missing), available_cpus())))
    try:
        waiting: dict[Future[Path], str] = {
            pool.submit(_compile, name, units[name], target, tool, work, found[name], runs): name
            for name in missing
        }
        while waiting:
            ended, _ = wait(waiting, return_when=FIRST_COMPLETED)
            for future in ended:
                label = units[waiting.pop(future)].label
                future.result()
                done += 1
                _tell(progress, done, total, label)
    except BaseException:
        runs.stop()
        raise
    finally:
        pool.shutdown(wait=True, cancel_futures=True)
    return list(found.values())


def _compile(
    name: str,
    unit: Unit,
    target: Target,
    tool: Compiler,
    work: Path,
    path: Path,
    runs: compiler.Runs,
) -> Path:
    own = work / name
    source, made = own / "unit.cpp", own / "unit.o"
    with cache.writing(own):
        own.mkdir()
        # Messages name the unit, not the copy.
        source.write_bytes(b'#line 1 "%s"\n' % unit.label.encode() + unit.text)
    command = target.compile_command(
        source, made, unit.defines, (KERNELS,), family=tool.family, export=unit.export
    )
    said = compiler.run([*tool.words, *command], own, runs=runs)
    if said.status != 0 or not made.is_file():
        said = Outcome(said.status, said.output.replace(f"{own}/", ""))
        what = "the compiler refused a unit" if said.status else "the compiler made no object"
        raise _failure("build.compile", what, unit.label, said, tool)
    return cache.publish(made, path, name)


def _failure(code: str, what: str, place: str, said: Outcome, tool: Compiler) -> BuildError:
    text = said.output.lower()
    # A compiler that runs out of space does not always say so: some just abort.
    if cache.full() or any(words in text for words in _NO_SPACE):
        return cache.refusal(OSError(errno.ENOSPC, "no space left on device"), cache.root())
    if said.status < 0 and not said.output.strip():
        what, remedy = "the compiler was ended", "free memory, or run fewer programs at once"
        if disk.limited():  # its linker dies of that without a word
            remedy = f"raise the limit of a file's size (ulimit -f); else {remedy}"
    elif tool.family == "zig":
        remedy = "this is a defect of lanewise: please report it with the lines above"
    else:
        remedy = "unset LANEWISE_CXX to use the ziglang wheel's clang, or name a recent clang++"
    lines = compiler.first_lines(said, _LINES)
    return BuildError(code, f"{what}: {lines}", place=place, remedy=remedy)


def runtime_library(target: Target, progress: Progress | None = None) -> Path:
    """The pool of threads and the float mode as a library of their own ("lwrt"); as `build`."""
    unit = kernel_unit(KernelObject("runtime.cpp", (), ()), export=True)
    return build_units([unit], target, progress)


def packer_library(
    formats: Sequence[str], target: Target, progress: Progress | None = None
) -> Path:
    """A library with lw_pack_<fmt>, lw_packed_bytes_<fmt> and lw_gather_<fmt>; as `build`."""
    objects = [
        KernelObject("product.cpp", (f"LW_FORMAT={f}", "LW_PACK"), ()) for f in sorted(set(formats))
    ]
    return build_units([kernel_unit(o, export=True) for o in objects], target, progress)
