"""Whether this machine can compile and run: one row per question, each with its remedy.

Laws: a row never raises; what is wrong is in its row, with what to do; nothing is left behind.
"""

from __future__ import annotations

import os
import platform
import shutil
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

from lanewise.errors import LanewiseError
from lanewise.runtime import cache, compiler, cpus, memory
from lanewise.targets.cpu import CpuTarget, cpu_target, supported
from lanewise.targets.host import host

HUGE_PAGES = Path("/sys/kernel/mm/transparent_hugepage/enabled")
PACKAGES = (
    "numpy", "ml_dtypes", "ziglang", "tokenizers", "jinja2", "click", "rich", "platformdirs",
    "prompt_toolkit",
)  # fmt: skip
# A first start writes packed weights and objects; less free space than this is worth a word.
_LITTLE = 1 << 30
_FEATURES = (
    "avx2", "fma", "f16c", "avx512f", "avx512bw", "avx512dq", "avx512vl", "avx512_vnni",
    "avx512_bf16", "amx_int8", "asimd", "asimddp", "i8mm", "sve",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Row:
    """One answer: ``ok`` is False where something will not work; then ``remedy`` says what to
    do.  A row that is ok may carry advice as its remedy."""

    name: str
    value: str
    ok: bool = True
    remedy: str = ""


def rows() -> list[Row]:
    """Everything, in order of reading."""
    found: list[Row] = []
    for name, ask in _QUESTIONS:
        try:
            found.extend(ask())
        except LanewiseError as e:
            what = f"{e.place}: {e.message}" if e.place else e.message
            found.append(Row(name, f"{what} [{e.code}]", False, e.remedy))
        except Exception as e:  # a doctor that dies of what it looks for is of no use
            found.append(Row(name, f"{type(e).__name__}: {e}", False, "please report this"))
    return found


def _cpu() -> Iterator[Row]:
    machine = host()
    yield Row("CPU", f"{machine.model or 'unnamed'} ({machine.arch})")
    has = [f for f in _FEATURES if f in machine.features]
    yield Row("CPU features", " ".join(has) or "none that matter")


def _isa() -> Iterator[Row]:
    target = cpu_target()
    can = supported()
    advice = ""
    if target.isa == "scalar":
        advice = "programs run, many times slower than with AVX2 or NEON"
    elif target.isa != can[0]:
        advice = f"{can[0]} would be faster: unset LANEWISE_ISA"
    yield Row("instruction set", f"{target.isa} (can run: {', '.join(can)})", True, advice)


def _threads() -> Iterator[Row]:
    from lanewise.runtime.pool import default_threads

    quota = cpus.cpu_quota()
    limit = "no quota" if quota is None else f"quota {quota:g}"
    yield Row("CPUs", f"{os.cpu_count()} in all, {cpus.affinity()} by affinity, {limit}")
    threads, most = default_threads(), cpus.available_cpus()
    advice = ""
    if threads > most:
        advice = f"more threads than CPUs run slower: unset LANEWISE_THREADS, or set it to {most}"
    yield Row("threads", str(threads), True, advice)


def _compiler() -> Iterator[Row]:
    tool = compiler.find()
    yield Row("compiler", f"{tool.identity.splitlines()[0]} ({' '.join(tool.words)})")


def _compiles() -> Iterator[Row]:
    yield Row("compiles and runs", try_compiler(cpu_target()))


def try_compiler(target: CpuTarget) -> str:
    """Compile, link, load and call a function of its own, past the cache; the time it took."""
    from lanewise.errors import BuildError
    from lanewise.runtime.library import Library

    tool = compiler.find()
    start = time.perf_counter()
    with cache.workspace() as work:
        source, made, library = work / "try.cpp", work / "try.o", work / "try.so"
        with cache.writing(work):
            source.write_text('extern "C" int lw_try(int x) { return x + 1; }\n')
        for command in (
            target.compile_command(source, made, family=tool.family, export=True),
            target.link_command([made], library, family=tool.family),
        ):
            said = compiler.run([*tool.words, *command], work)
            if said.status != 0:
                raise BuildError(
                    "build.compiler", f"it does not compile: {compiler.first_lines(said, 3)}",
                    place=tool.words[0], remedy=compiler.REMEDY,
                )  # fmt: skip
        if Library(library).function("lw_try", "ii")(41) != 42:
            raise BuildError(
                "build.compiler", "what it made gives a wrong answer", place=tool.words[0],
                remedy=compiler.REMEDY,
            )  # fmt: skip
    return f"yes, in {time.perf_counter() - start:.2f} s"


def _cache() -> Iterator[Row]:
    top = cache.root()
    yield Row("cache", str(top))
    with cache.workspace() as work, cache.writing(work):
        (work / "probe").write_bytes(b"1")
    yield Row("cache writable", "yes")
    size = sum(e.nbytes for e in cache.entries())
    free = shutil.disk_usage(top).free
    few = free < _LITTLE
    yield Row(
        "cache size", f"{memory.mib(size)}, {memory.mib(free)} free", not few,
        "free space, or set LANEWISE_CACHE_DIR to another disk" if few else "",
    )  # fmt: skip


def _memory() -> Iterator[Row]:
    yield Row("memory available", memory.mib(memory.available()))
    try:
        text = HUGE_PAGES.read_text()
    except OSError:
        yield Row("huge pages", "not known")
        return
    chosen = text.partition("[")[2].partition("]")[0] or text.strip()
    advice = ""
    if chosen == "never":
        advice = f"about a tenth of the speed: echo madvise | sudo tee {HUGE_PAGES}"
    yield Row("huge pages", chosen, True, advice)


def _python() -> Iterator[Row]:
    from lanewise import __version__

    yield Row("lanewise", __version__)
    version = platform.python_version()
    yield Row("Python", f"{platform.python_implementation()} {version} ({sys.executable})")
    yield Row("system", f"{platform.system()} {platform.release()}")


def _packages() -> Iterator[Row]:
    versions: list[str] = []
    missing: list[str] = []
    for name in PACKAGES:
        try:
            versions.append(f"{name} {metadata.version(name)}")
        except metadata.PackageNotFoundError:
            missing.append(name)
    yield Row("packages", ", ".join(versions))
    if missing:
        names = " ".join(missing)
        yield Row("missing packages", names, False, f"pip install {names}")


_QUESTIONS: tuple[tuple[str, Callable[[], Iterator[Row]]], ...] = (
    ("Python", _python),
    ("packages", _packages),
    ("CPU", _cpu),
    ("instruction set", _isa),
    ("threads", _threads),
    ("memory", _memory),
    ("cache", _cache),
    ("compiler", _compiler),
    ("compiles and runs", _compiles),
)
