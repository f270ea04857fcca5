"""Which C++ compiler: LANEWISE_CXX, else the ziglang wheel's clang; how it is run.

Laws: what a compiler says of itself (its identity) is part of every key, asked once per change
of its file and remembered in the cache; it runs in a folder of its own with its own caches there,
so that nothing of an earlier run is trusted, and without variables that would add to its inputs;
one that hangs, crashes or is interrupted is ended with all its children.
"""

from __future__ import annotations

import json
import os
import shlex
import shutil
import signal
import subprocess
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from lanewise.errors import BuildError
from lanewise.runtime import cache

# One unit takes seconds; this only ends a compiler that hangs.
TIMEOUT_S = 900.0
REMEDY = "pip install ziglang, or set LANEWISE_CXX to a recent clang++"
_UNSET = "unset it to use the ziglang wheel's clang, or name a recent clang++"
# Variables by which a compiler would read files that no key knows of.
_DROPPED = {
    "CPATH", "C_INCLUDE_PATH", "CPLUS_INCLUDE_PATH", "LIBRARY_PATH", "COMPILER_PATH",
    "GCC_EXEC_PREFIX", "CCC_OVERRIDE_OPTIONS", "ZIG_LIB_DIR", "ZIG_VERBOSE_CC",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Compiler:
    """``words``: how a command begins; ``family``: "zig", "clang" or "gcc"; ``identity``: what
    it says of itself."""

    words: tuple[str, ...]
    family: str
    identity: str

    @property
    def path(self) -> Path:
        return Path(self.words[0])


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a run of a compiler ended: exit status (negative: a signal's number), what it said."""

    status: int
    output: str


def find() -> Compiler:
    """The compiler of this process.

    Raises BuildError ``build.compiler``: there is none, or it does not run.
    """
    from lanewise import settings

    chosen = str(settings.get("cxx"))
    words = _named(chosen) if chosen else _wheel()
    return Compiler(words, *_identify(words, "LANEWISE_CXX" if chosen else "ziglang"))


def _named(text: str) -> tuple[str, ...]:
    try:
        words = shlex.split(text)
    except ValueError:
        words = []
    found = shutil.which(words[0]) if words else None
    if not found:
        raise BuildError(
            "build.compiler", f"no compiler {text!r} on this machine", place="LANEWISE_CXX",
            remedy=_UNSET,
        )  # fmt: skip
    return (os.path.abspath(found), *words[1:])  # it runs in another folder


def _wheel() -> tuple[str, ...]:
    try:
        spec = find_spec("ziglang")  # finds, does not import
    except (ImportError, ValueError):
        spec = None
    for folder in (spec.submodule_search_locations or ()) if spec else ():
        for name in ("zig", "zig.exe"):
            path = Path(folder, name)
            if path.is_file():
                return (str(path), "c++")
    raise BuildError(
        "build.compiler", "there is no compiler: the ziglang package is missing", remedy=REMEDY
    )


def _identify(words: tuple[str, ...], place: str) -> tuple[str, str]:
    """(family, identity), remembered as long as the compiler's file stays the same."""
    stat = os.stat(words[0])
    name = cache.key(json.dumps([*words, stat.st_size, stat.st_mtime_ns]))
    remembered = cache.path_of("cpu/compiler", name, ".json")
    # Of a command with words of its own ("ccache g++") the first file says too little.
    plain = len(words) == 1 or place == "ziglang"
    known = cache.load(remembered, name) if plain else None
    if known is not None:
        family, identity = json.loads(known)
        return family, identity
    family, identity = _ask(words, place)
    if plain:
        cache.store(remembered, name, json.dumps([family, identity]).encode())
    return family, identity


def _ask(words: tuple[str, ...], place: str) -> tuple[str, str]:
    with cache.workspace() as work:
        said = run((*words, "--version"), work, timeout_s=120.0)
        if said.status != 0 or not said.output.strip():
            raise BuildError(
                "build.compiler", f"the compiler does not run: {first_lines(said, 3)}",
                place=f"{place} ({words[0]})",
                remedy=_UNSET if place == "LANEWISE_CXX" else REMEDY,
            )  # fmt: skip
        # Where it is installed, and the kernel it runs on, change no object.
        skip = ("InstalledDir", "Target:", "Thread model")
        lines = [x for x in said.output.splitlines() if not x.startswith(skip)]
        identity = "\n".join(lines).strip()
        if words[1:] == ("c++",) and Path(words[0]).stem == "zig":
            version = run((words[0], "version"), work, timeout_s=120.0).output.strip()
            return "zig", f"zig {version}\n{identity}"
    return ("clang" if "clang" in identity.lower() else "gcc"), identity


class Runs:
    """Compilers at work, so that an interrupted build can end them all."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._alive: set[subprocess.Popen[str]] = set()
        self._stopped = False

    def add(self, process: subprocess.Popen[str]) -> None:
        with self._lock:
            self._alive.add(process)
            if self._stopped:
                kill(process)

    def remove(self, process: subprocess.Popen[str]) -> None:
        with self._lock:
            self._alive.discard(process)

    def stop(self) -> None:
        with self._lock:
            self._stopped = True
            for process in self._alive:
                kill(process)


def run(
    command: Sequence[str], work: Path, *, runs: Runs | None = None, timeout_s: float = TIMEOUT_S
) -> Outcome:
    """Run a compiler in a private folder and wait.

    Raises BuildError ``build.compiler`` if it cannot be started or does not end in time.
    """
    zig = str(work / "zig")
    env = {k: v for k, v in os.environ.items() if k not in _DROPPED}
    env |= {"LC_ALL": "C", "TMPDIR": str(work)}
    env |= {"ZIG_GLOBAL_CACHE_DIR": zig, "ZIG_LOCAL_CACHE_DIR": zig, "CCACHE_DISABLE": "1"}
    try:
        process = subprocess.Popen(
            list(command), cwd=work, env=env, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT, text=True, errors="replace", start_new_session=True,
        )  # fmt: skip
    except OSError as e:
        raise BuildError(
            "build.compiler", f"the compiler cannot be started: {e.strerror or e}",
            place=command[0], remedy=REMEDY,
        ) from e  # fmt: skip
    if runs:
        runs.add(process)
    try:
        output, _ = process.communicate(timeout=timeout_s)
    except subprocess.TimeoutExpired as e:
        raise BuildError(
            "build.compiler", f"the compiler did not end within {timeout_s:.0f} s",
            place=command[0], remedy=REMEDY,
        ) from e  # fmt: skip
    finally:
        if process.poll() is None:
            kill(process)
            process.wait()
        if process.stdout:
            process.stdout.close()
        if runs:
            runs.remove(process)
    return Outcome(process.returncode, output)


def kill(process: subprocess.Popen[str]) -> None:
    """End a compiler and what it started."""
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except (OSError, AttributeError):
        process.kill()


def first_lines(outcome: Outcome, count: int) -> str:
    """The first lines of what was said, from the first error if one is told, or how the run
    ended if nothing was."""
    lines = [x for x in outcome.output.splitlines() if x.strip()]
    if not lines:
        return (
            f"exit status {outcome.status}"
            if outcome.status >= 0
            else f"ended by signal {-outcome.status}"
        )
    begin = next((i for i, line in enumerate(lines) if "error:" in line), 0)
    shown = lines[begin : begin + count]
    more = [f"... {len(lines) - len(shown)} more lines"] if len(lines) > len(shown) else []
    return "\n".join([*shown, *more])
