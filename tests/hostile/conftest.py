"""What the hostile tests share: a cache of their own, compiled into once, and ways to run things.

Laws: nothing here touches the user's cache; every run that could crash is a process of its own.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
GOLDEN = ROOT / "tests" / "golden"
TINY = GOLDEN / "llama_tied.q8_0.gguf"
HANG_S = 300.0  # of wall time, for many files, on a machine that others use


@dataclass
class Ran:
    """How a command ended: exit code (negative: a signal), and what it wrote."""

    code: int
    out: str
    err: str


def environment(cache: Path | None, **more: str) -> dict[str, str]:
    """This process's environment without its LANEWISE_ variables, with a cache."""
    env = {k: v for k, v in os.environ.items() if not k.startswith("LANEWISE_")}
    env["PYTHONPATH"] = os.pathsep.join([str(ROOT / "src"), str(ROOT)])
    if cache is not None:
        env["LANEWISE_CACHE_DIR"] = str(cache)
    return env | more


def start(args: Sequence[str], env: dict[str, str], **more: Any) -> subprocess.Popen[bytes]:
    """A Python process, its streams piped."""
    pipes = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    return subprocess.Popen([sys.executable, *args], env=env, cwd=ROOT, **{**pipes, **more})


def finish(process: subprocess.Popen[bytes], timeout: float = HANG_S) -> Ran:
    try:
        out, err = process.communicate(timeout=timeout)
    except subprocess.TimeoutExpired:
        process.kill()
        process.communicate()
        raise AssertionError(f"a hang: {process.args}") from None
    return Ran(process.returncode, out.decode(errors="replace"), err.decode(errors="replace"))


def lanewise(*args: str, env: dict[str, str], stdin: bytes = b"", **more: Any) -> Ran:
    """The command line as a process."""
    process = start(["-m", "lanewise", *args], env, stdin=subprocess.PIPE, **more)
    try:
        out, err = process.communicate(stdin, timeout=HANG_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.communicate()
        raise AssertionError(f"a hang: {args}") from None
    return Ran(process.returncode, out.decode(errors="replace"), err.decode(errors="replace"))


@pytest.fixture(scope="session")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A cache in which the tiny model's program and packers are compiled.  Add to it, but damage
    only a copy (`fresh`)."""
    cache = tmp_path_factory.mktemp("compiled") / "cache"
    ran = lanewise(
        "run", str(TINY), "hi", "-t", "1", "-n", "1", "--temp", "0", env=environment(cache)
    )
    assert ran.code == 0, ran.err
    return cache


@pytest.fixture
def fresh(compiled: Path, tmp_path: Path) -> Path:
    """A copy of the compiled cache, for a test to damage."""
    copy = tmp_path / "cache"
    shutil.copytree(compiled, copy)
    return copy


@dataclass
class Outcome:
    """What became of a file in `tests.hostile.drive`."""

    code: str
    message: str
    remedy: str
    trace: str
    cpu_s: float
    peak: int
    ids: tuple[int, ...]


@pytest.fixture(scope="session")
def drive() -> Callable[..., dict[Path, Outcome]]:
    """`drive(paths, cache, work)`: every file through the whole lane, in processes of 200 files;
    a file that kills its process is told as "DIED"."""

    def run(paths: Sequence[Path], cache: Path, work: Path) -> dict[Path, Outcome]:
        found: dict[Path, Outcome] = {}
        for number in range(0, len(paths), 200):
            group = paths[number : number + 200]
            while left := [p for p in group if p not in found]:
                _drive(left, cache, work, found)
        return found

    return run


def _drive(paths: Sequence[Path], cache: Path, work: Path, found: dict[Path, Outcome]) -> None:
    listed, out = work / "list", work / "out"
    listed.write_text("\n".join(map(str, paths)))
    ran = finish(start(["-m", "tests.hostile.drive", str(listed), str(out)], environment(cache)))
    last: Path | None = None
    for line in out.read_text().splitlines():
        row = json.loads(line)
        if "begin" in row:
            last = Path(row["begin"])
            continue
        last = None
        names = Outcome.__dataclass_fields__
        known = {k: v for k, v in row.items() if k in names}
        found[Path(row["path"])] = Outcome(**known | {"ids": tuple(row.get("ids", ()))})
    if last is not None:
        why = f"exit {ran.code}: {ran.err[-2000:]}"
        found[last] = Outcome("DIED", why, "", "", 0.0, 0, ())
    assert last is not None or ran.code == 0, ran.err
    assert last is not None or not ran.err, ran.err  # a warning is not silent either
