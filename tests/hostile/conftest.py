"""What the hostile tests share: a cache of their own, compiled into once, and ways to run things.

Laws: nothing here touches the user's cache; every run that could crash is a process of its own.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
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


def start(
    args: Sequence[str], env: dict[str, str], before: Sequence[str] = (), **more: Any
) -> subprocess.Popen[bytes]:
    """A Python process, its streams piped; ``before`` are words in front of the command."""
    pipes = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    command = [*before, sys.executable, *args]
    return subprocess.Popen(command, env=env, cwd=ROOT, **{**pipes, **more})


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
def pristine(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A cache that holds what a start with the tiny model needs and nothing else: to be copied."""
    cache = tmp_path_factory.mktemp("pristine") / "cache"
    ran = lanewise(
        "run", str(TINY), "hi", "-t", "1", "-n", "1", "--temp", "0", env=environment(cache)
    )
    assert ran.code == 0, ran.err
    return cache


@pytest.fixture(scope="session")
def compiled(pristine: Path) -> Path:
    """A copy of it that all tests add to and none damages."""
    return shutil.copytree(pristine, pristine.parent / "compiled")


@pytest.fixture
def fresh(pristine: Path, tmp_path: Path) -> Path:
    """A copy of it, for a test to damage."""
    return shutil.copytree(pristine, tmp_path / "cache")


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


@dataclass(frozen=True)
class Job:
    """A file for `tests.hostile.drive`, and what is changed in it while it is driven."""

    name: str
    path: Path
    patches: tuple[tuple[int, bytes], ...] = ()

    def line(self) -> str:
        patches = [(at, raw.hex()) for at, raw in self.patches]
        return json.dumps({"name": self.name, "path": str(self.path), "patches": patches})


def drive(jobs: Sequence[Job], cache: Path, work: Path, group: int = 200) -> dict[str, Outcome]:
    """Every file through the whole lane, in processes of so many; name -> outcome.  What kills
    its process is told as "DIED", and the rest goes on in another."""
    found: dict[str, Outcome] = {}
    for number in range(0, len(jobs), group):
        some = jobs[number : number + group]
        while left := [job for job in some if job.name not in found]:
            _drive(left, cache, work, found)
    return found


def _drive(jobs: Sequence[Job], cache: Path, work: Path, found: dict[str, Outcome]) -> None:
    listed, out = work / "list", work / "out"
    listed.write_text("\n".join(job.line() for job in jobs))
    # Measuring runs a step of every form: memory that is no fault of a file's.
    env = environment(cache, LANEWISE_TUNE="off")
    ran = finish(start(["-m", "tests.hostile.drive", str(listed), str(out)], env))
    last = ""
    for line in out.read_text().splitlines():
        row = json.loads(line)
        last = row.get("begin", "")
        if not last:
            known = {k: v for k, v in row.items() if k in Outcome.__dataclass_fields__}
            found[row["name"]] = Outcome(**known | {"ids": tuple(row.get("ids", ()))})
    if last:
        why = f"exit {ran.code}: {ran.err[-2000:]}"
        found[last] = Outcome("DIED", why, "", "", 0.0, 0, ())
    else:
        # A warning is not silent either.
        assert ran.code == 0 and not ran.err, ran.err
